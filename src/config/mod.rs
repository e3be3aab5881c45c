//! User configuration from YAML, environment, flags and defaults, with errors that name the place.
//!
//! Layers, in increasing precedence: defaults, the file, `OTEL_*` variables, `TOKOMETER_*` variables, flags. They are
//! merged as trees whose values record where they were set ([`Origin`]), validated against the shape of [`raw::Raw`],
//! deserialized by serde, and converted into the [`Settings`] of each module.

pub mod raw;

mod address;
mod checked;
mod conform;
mod document;
mod environment;
mod error;
mod flags;
mod nearest;
mod otel;
mod print;
mod redact;
mod reload;
mod resource;
mod settings;
mod shape;
mod value;

pub use document::document;
pub use environment::Environment;
pub use error::{Error, Problem};
pub use flags::Flags;
pub use print::default_yaml;
pub use redact::url as shown_url;
pub use reload::{Change, Reload, reload};
pub use settings::Settings;
pub use shape::schema;
pub use value::Origin;

use std::fmt;
use std::path::Path;
use std::path::PathBuf;

use crate::app::log;
use crate::config::checked::Problems;
use crate::config::raw::Raw;
use crate::config::value::Node;
use crate::config::value::Value;
use tokometer_proxy::relay;

/// A configuration that was loaded and validated.
#[derive(Clone)]
pub struct Config {
    /// Settings by module.
    pub settings: Settings,
    /// Warnings, which do not prevent the start.
    pub warnings: Vec<Problem>,
    /// The file, if one was read.
    pub file: Option<PathBuf>,
    raw: Raw,
    /// The values set by file, environment and flags, with their origins.
    set: Node,
}

/// How far the files named in a configuration are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Files {
    /// Only their names.
    Named,
    /// Also whether they can be opened.
    Opened,
}

/// Prints only fields that cannot contain secrets.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("file", &self.file).field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the file named by the flags or `TOKOMETER_CONFIG` (optional), and merges the environment and the flags
    /// over it.
    ///
    /// # Errors
    ///
    /// Every problem that was found, each with its place and fix.
    pub fn load(flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        Config::load_and(Files::Named, flags, environment)
    }

    /// Like [`Config::load`], for the process that will use it: certificates, keys and the access log must also be
    /// openable.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn load_with_files(flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        Config::load_and(Files::Opened, flags, environment)
    }

    fn load_and(files: Files, flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        let file = flags.config.clone().or_else(|| environment.get("TOKOMETER_CONFIG").map(PathBuf::from));
        let text = match &file {
            Some(path) => {
                let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.clone(), source })?;
                Some(utf8(path, bytes)?)
            }
            None => None,
        };
        Layers { files, file: file.as_deref().zip(text.as_deref()), flags }.over(environment)
    }

    /// Like [`Config::load`], from text in memory.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn from_layers(file: Option<(&Path, &str)>, flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        Layers { files: Files::Named, file, flags }.over(environment)
    }

    /// The effective configuration as YAML that can be used as a file; each line that is not a default shows where it
    /// was set. Header values, and credentials and queries in URLs, are redacted.
    pub fn effective_yaml(&self) -> String {
        print::effective(&self.raw, &self.set)
    }

    /// The effective configuration of a running program that has loaded `new`: keys that need a restart keep the values
    /// of `self`, all others take those of `new`.
    pub fn adopting(&self, new: &Config) -> Config {
        let mut set = self.set.clone();
        for path in reload::LIVE {
            set.remove(path);
            if let Some(node) = new.set.find(path) {
                set.overlay(Node::at(path, node.value.clone(), &node.origin));
            }
        }
        let live = &new.settings;
        let settings = Settings {
            relay: relay::Settings {
                scratch_bytes: self.settings.relay.scratch_bytes,
                keepalive: self.settings.relay.keepalive,
                port_sharing: self.settings.relay.port_sharing,
                ..live.relay.clone()
            },
            observe: live.observe.clone(),
            tokenizer: live.tokenizer.clone(),
            live: live.live.clone(),
            log: log::Settings { levels: live.log.levels.clone(), ..self.settings.log.clone() },
            slo: live.slo.clone(),
            ledger: live.ledger.clone(),
            grace_period: live.grace_period,
            ..self.settings.clone()
        };
        // Both trees conform, so the combination of their blocks does too.
        let raw = raw(&set).unwrap_or_else(|_| self.raw.clone());
        Config { settings, warnings: new.warnings.clone(), file: new.file.clone(), raw, set }
    }

    /// A problem with the value of this key, with its origin.
    pub fn problem(&self, path: &str, message: String) -> Problem {
        Problem { origin: self.set.origin(path), path: path.to_owned(), message }
    }

    /// The configuration as written by the user, with defaults filled in.
    pub fn raw(&self) -> &Raw {
        &self.raw
    }
}

/// The layers above and below the environment.
struct Layers<'a> {
    files: Files,
    file: Option<(&'a Path, &'a str)>,
    flags: &'a Flags,
}

impl Layers<'_> {
    /// Merges them with the environment in between.
    fn over(&self, environment: &Environment) -> Result<Config, Error> {
        let mut environment = environment.clone();
        let mut left_out = Vec::new();
        loop {
            match self.attempt(&environment) {
                Ok(mut config) => {
                    left_out.append(&mut config.warnings);
                    return Ok(Config { warnings: left_out, ..config });
                }
                Err(Error::Invalid(problems)) => {
                    // An `OTEL_*` variable that is valid alone, but not with the other settings, is ignored as well.
                    let foreign = |problem: &Problem| matches!(&problem.origin, Origin::Environment(name) if name.starts_with("OTEL_"));
                    let (foreign, own): (Vec<_>, Vec<_>) = problems.into_iter().partition(foreign);
                    if foreign.is_empty() {
                        return Err(Error::Invalid(own));
                    }
                    for mut problem in foreign {
                        if let Origin::Environment(name) = &problem.origin {
                            environment.remove(name);
                        }
                        problem.message.push_str("; this variable is ignored");
                        left_out.push(problem);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt(&self, environment: &Environment) -> Result<Config, Error> {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        let mut set = match self.file {
            Some((path, text)) => read(path, text)?,
            None => Node::empty(),
        };
        set.overlay(otel::layer(environment, &mut warnings));
        let admin = set.find("admin.listen").and_then(|node| node.value.text()).unwrap_or("0.0.0.0:9464").to_owned();
        if let Some((address, origin)) = otel::prometheus_address(environment, &admin) {
            match address::admin(&address) {
                Ok(_) => set.overlay(Node::at("admin.listen", Value::Text(address), &origin)),
                // The caller removes this variable and keeps the other one.
                Err(message) => errors.push(Problem { origin, path: "admin.listen".to_owned(), message }),
            }
        }
        set.overlay(environment::layer(environment, &mut warnings));
        flags::overlay(&mut set, self.flags, environment, &mut errors);
        conform::conform(&set, &mut errors);
        if !errors.is_empty() {
            return Err(Error::Invalid(once(errors)));
        }
        let raw = raw(&set).map_err(|error| {
            let message = format!("this configuration cannot be read: {error}");
            Error::Invalid(vec![Problem { origin: Origin::Default, path: String::new(), message }])
        })?;
        let mut problems = Problems::new(&set);
        let settings = checked::checked(&raw, environment, &mut problems);
        if let (Files::Opened, Some(settings)) = (self.files, &settings) {
            checked::files::open(&raw, settings, &mut problems);
        }
        let Problems { errors, warnings: more, .. } = problems;
        warnings.extend(more);
        let settings = settings.filter(|_| errors.is_empty()).ok_or_else(|| Error::Invalid(once(errors)))?;
        let file = self.file.map(|(path, _)| path.to_owned());
        Ok(Config { settings, warnings: once(warnings), file, raw, set })
    }
}

/// The values of a tree, with defaults for the rest.
fn raw(set: &Node) -> Result<Raw, serde_json::Error> {
    serde_json::from_value(set.without_empty_blocks().to_json())
}

fn read(path: &Path, text: &str) -> Result<Node, Error> {
    let file = path.display().to_string();
    let node = value::read(text, &file).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let message = match error.without_snippet() {
            serde_yaml::Error::MultipleDocuments { .. } => {
                "a second document begins here; write one, without `---` between its keys".to_owned()
            }
            error => {
                // The parser's message ends with the position, which the caller prints in front.
                let message = error.to_string().replace(&format!(" at line {line}, column {column}"), "");
                // Remove its advice to programmers.
                message.split(", set DuplicateKeyPolicy").next().unwrap_or_default().to_owned()
            }
        };
        Error::Syntax { file, line, column, message }
    })?;
    match node.value {
        Value::Map(_) => Ok(node),
        // The parser returns null for some invalid YAML, such as a list after a tab.
        value => {
            let message = format!(
                "{} is not valid here; write keys such as `relay:` at the start of a line, without tabs",
                value.kind()
            );
            Err(Error::Invalid(vec![Problem { origin: node.origin, path: String::new(), message }]))
        }
    }
}

/// The text of the file, or the position of the first byte that is not UTF-8.
fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = before.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        Error::Syntax {
            file: path.display().to_string(),
            line: before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1,
            column: String::from_utf8_lossy(line).chars().count() as u64 + 1,
            message: "invalid UTF-8; save the file as UTF-8".to_owned(),
        }
    })
}

/// Removes duplicates, keeping the order.
fn once(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen: Vec<Problem> = Vec::with_capacity(problems.len());
    for problem in problems {
        if !seen.contains(&problem) {
            seen.push(problem);
        }
    }
    seen
}
