//! Everything a person may set: YAML, environment, flags, defaults; checked, with errors that name the place.
//!
//! Layers, each over the one before: defaults, the file, `OTEL_*` variables, `TOKOMETER_*` variables, flags. They are
//! laid over each other as trees whose values know where they come from ([`Origin`]), checked against the shape of
//! [`raw::Raw`], read by serde, and then turned into the plain [`Settings`] of each module.

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

use crate::config::checked::Problems;
use crate::config::raw::Raw;
use crate::config::value::Node;
use crate::config::value::Value;

/// A configuration that was read and checked.
#[derive(Clone)]
pub struct Config {
    /// What the modules use.
    pub settings: Settings,
    /// What deserves a second look: nothing of it forbids to start.
    pub warnings: Vec<Problem>,
    /// The file, if there was one.
    pub file: Option<PathBuf>,
    raw: Raw,
    /// What file, environment and flags set, with where.
    set: Node,
}

/// Only what can hold no secret.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("file", &self.file).field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the file that flags or `TOKOMETER_CONFIG` name (none is needed), and lays the environment and the flags
    /// over it.
    ///
    /// # Errors
    ///
    /// Every problem that was found, each with its place and mend.
    pub fn load(flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        let file = flags.config.clone().or_else(|| environment.get("TOKOMETER_CONFIG").map(PathBuf::from));
        let text = match &file {
            Some(path) => {
                Some(std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.clone(), source })?)
            }
            None => None,
        };
        let file = file.as_deref().zip(text.as_deref());
        Config::from_layers(file, flags, environment)
    }

    /// The same from text that is at hand.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn from_layers(file: Option<(&Path, &str)>, flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        let mut environment = environment.clone();
        let mut left_out = Vec::new();
        loop {
            match Config::attempt(file, flags, &environment) {
                Ok(mut config) => {
                    left_out.append(&mut config.warnings);
                    return Ok(Config { warnings: left_out, ..config });
                }
                Err(Error::Invalid(problems)) => {
                    // A standard variable that fits by itself, but not with the rest, is left out as well.
                    let foreign = |problem: &Problem| matches!(&problem.origin, Origin::Environment(name) if name.starts_with("OTEL_"));
                    let (foreign, own): (Vec<_>, Vec<_>) = problems.into_iter().partition(foreign);
                    if foreign.is_empty() {
                        return Err(Error::Invalid(own));
                    }
                    for mut problem in foreign {
                        if let Origin::Environment(name) = &problem.origin {
                            environment.remove(name);
                        }
                        problem.message.push_str("; this variable is left out");
                        left_out.push(problem);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn attempt(file: Option<(&Path, &str)>, flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        let mut set = match file {
            Some((path, text)) => read(path, text)?,
            None => Node::empty(),
        };
        set.overlay(otel::layer(environment, &mut warnings));
        let admin = set.find("admin.listen").and_then(|node| node.value.text()).unwrap_or("0.0.0.0:9464").to_owned();
        if let Some((address, origin)) = otel::prometheus_address(environment, &admin) {
            match address::admin(&address) {
                Ok(_) => set.overlay(Node::at("admin.listen", Value::Text(address), &origin)),
                Err(message) => warnings.push(Problem {
                    origin,
                    path: "admin.listen".to_owned(),
                    message: format!("{message}; this variable is left out"),
                }),
            }
        }
        set.overlay(environment::layer(environment, &mut warnings));
        flags::overlay(&mut set, flags, environment, &mut errors);
        conform::conform(&set, &mut errors);
        if !errors.is_empty() {
            return Err(Error::Invalid(once(errors)));
        }
        let raw: Raw = serde_json::from_value(set.without_empty_blocks().to_json()).map_err(|error| {
            let message = format!("this configuration cannot be read: {error}");
            Error::Invalid(vec![Problem { origin: Origin::Default, path: String::new(), message }])
        })?;
        let mut problems = Problems::new(&set);
        let settings = checked::checked(&raw, environment, &mut problems);
        let Problems { errors, warnings: more, .. } = problems;
        warnings.extend(more);
        let settings = settings.filter(|_| errors.is_empty()).ok_or_else(|| Error::Invalid(once(errors)))?;
        let file = file.map(|(path, _)| path.to_owned());
        Ok(Config { settings, warnings: once(warnings), file, raw, set })
    }

    /// The whole configuration as it is in effect, as YAML that can be used as a file; each line that is not a default
    /// tells where it was set. Header values and what URLs carry beside their address are replaced.
    pub fn effective_yaml(&self) -> String {
        print::effective(&self.raw, &self.set)
    }

    /// The configuration as it was written, with defaults filled in.
    pub fn raw(&self) -> &Raw {
        &self.raw
    }
}

fn read(path: &Path, text: &str) -> Result<Node, Error> {
    let file = path.display().to_string();
    let node = value::read(text, &file).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        // The reader's own words end with the place; we put it in front.
        let message = error.without_snippet().to_string();
        let message = message.replace(&format!(" at line {line}, column {column}"), "");
        // Nor has its advice to programmers a place here.
        let message = message.split(", set DuplicateKeyPolicy").next().unwrap_or_default().to_owned();
        Error::Syntax { file, line, column, message }
    })?;
    match node.value {
        Value::Map(_) => Ok(node),
        // The reader makes null of some text that is no YAML, such as a list behind a tab.
        value => {
            let message = format!(
                "{} does not fit here; write keys such as `relay:` at the beginning of lines, without tabs",
                value.kind()
            );
            Err(Error::Invalid(vec![Problem { origin: node.origin, path: String::new(), message }]))
        }
    }
}

/// Each problem once, in the order in which they were found.
fn once(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen: Vec<Problem> = Vec::with_capacity(problems.len());
    for problem in problems {
        if !seen.contains(&problem) {
            seen.push(problem);
        }
    }
    seen
}
