//! Engine detection in a pod, and the settings for its listen address ([`Engine::info`]).

use std::fmt;

use tokometer_decode::Engine;
use tokometer_decode::engine::{FlagForm, Listen, Parameter};

use crate::inject::value::Value;

/// A setting of a program's listen address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Name of the flag or of the environment variable.
    pub(super) name: &'static str,
    pub(super) value: String,
    /// How the flag is written; `None` for a variable.
    pub(super) form: Option<FlagForm>,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            None => write!(f, "the variable {}={}", self.name, self.value),
            Some(FlagForm::Spaced) => write!(f, "{} {}", self.name, self.value),
            Some(FlagForm::Joined | FlagForm::Once) => write!(f, "{}={}", self.name, self.value),
        }
    }
}

/// The engine of this container, and how it was recognized. The command takes precedence over the image.
pub(super) fn of(container: &Value) -> Option<(Engine, &'static str)> {
    // Only the first argument: later ones may name models.
    let started = container.texts("command").into_iter().chain(container.texts("args").into_iter().take(1));
    let started = started.collect::<Vec<_>>().join(" ").to_lowercase();
    // Only the last path segment: the registry or organization may be named after another engine.
    let image = container.text("image").unwrap_or_default().rsplit('/').next().unwrap_or_default().to_lowercase();
    let by_command = (!container.texts("command").is_empty()).then(|| Engine::of_program(&started)).flatten();
    by_command
        .map(|engine| (engine, "its command"))
        .or_else(|| Engine::of_program(&image).map(|engine| (engine, "its image")))
        .or_else(|| Engine::of_program(&started).map(|engine| (engine, "its arguments")))
}

/// Setting to listen only on this host. `has` returns whether a flag is already set; `direct` is true if added
/// arguments reach the program.
pub(super) fn host(listen: &Listen, host: &str, port: u16, has: impl Fn(&str) -> bool, direct: bool) -> Setting {
    setting(listen.host, address(listen, host, port).unwrap_or_else(|| host.to_owned()), has, direct)
}

/// Setting to listen on this port. `host` is the address, for engines that have one setting for both.
pub(super) fn port(listen: &Listen, host: &str, port: u16, has: impl Fn(&str) -> bool, direct: bool) -> Setting {
    setting(listen.port, address(listen, host, port).unwrap_or_else(|| port.to_string()), has, direct)
}

/// Setting to listen on a Unix socket; `None` if the engine does not support it.
pub(super) fn socket(listen: &Listen, path: &str, has: impl Fn(&str) -> bool) -> Option<Setting> {
    Some(setting(listen.socket?, path.to_owned(), has, false))
}

/// Host and port, if one variable contains both.
fn address(listen: &Listen, host: &str, port: u16) -> Option<String> {
    (listen.host == listen.port).then(|| format!("{host}:{port}"))
}

fn setting(parameter: Parameter, value: String, has: impl Fn(&str) -> bool, direct: bool) -> Setting {
    let (name, form) = match parameter {
        Parameter::Variable(variable) => (variable, None),
        Parameter::Either(flag, form, variable) if !(has(flag) || direct && form == FlagForm::Once) => (variable, None),
        Parameter::Either(flag, form, _) | Parameter::Flag(flag, form) => (flag, Some(form)),
    };
    Setting { name, value, form }
}
