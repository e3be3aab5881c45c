//! User configuration from YAML, environment, flags and defaults. Errors name the origin of the value.
//!
//! Layers, in increasing precedence: defaults, the file, `OTEL_*` variables, `TOKOMETER_*` variables, flags. They are
//! merged as trees whose values record where they were set ([`Origin`]), validated against the shape of [`raw::Raw`],
//! deserialized by serde, and converted into the [`Settings`] of each module.

pub mod raw;

mod address;
mod checked;
mod conform;
mod otel;
mod output;
mod secret;
mod shape;
mod sources;
mod tree;

pub(crate) use address::admin as admin_address;
pub use checked::Settings;
pub use output::default_yaml;
pub use secret::shown_url;
pub use shape::schema;
pub use sources::{Environment, Flags, TapFlags};
pub use tokometer_settings::{Duration, FileVersion, Size};
pub use tree::{Origin, Problem};

use std::fmt;
use std::path::{Path, PathBuf};

use crate::config::checked::Problems;
use crate::config::raw::Raw;
use crate::config::tree::{Node, Value};
use tokometer_proxy::listen::Address;

/// Why the configuration could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not YAML.
    #[error("{file}:{line}:{column}: this is not valid YAML: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// The YAML parser's message.
        message: String,
    },
    /// Invalid values: all problems found, at least one.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// A configuration that was loaded and validated.
#[derive(Clone)]
pub struct Config {
    /// Settings by module.
    pub settings: Settings,
    /// Warnings, which do not prevent the start.
    pub warnings: Vec<Problem>,
    /// The file, if one was read.
    pub file: Option<PathBuf>,
    /// The version of the file that was read.
    pub version: Option<FileVersion>,
    raw: Raw,
    environment: Environment,
    /// The values set by file, environment and flags, with their origins.
    set: Node,
}

/// Prints only fields that cannot contain secrets.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("file", &self.file).field("warnings", &self.warnings).finish_non_exhaustive()
    }
}

impl Config {
    /// Reads the file named by the flags or `TOKOMETER_CONFIG` (optional), and merges environment and flags over it.
    ///
    /// # Errors
    ///
    /// All problems found, each with its origin and fix.
    pub fn load(flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        Config::load_and(false, flags, environment)
    }

    /// Like [`Config::load`], for the process that uses the configuration: also checks that certificates, keys and the
    /// access log can be opened.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn load_with_files(flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        Config::load_and(true, flags, environment)
    }

    fn load_and(open_files: bool, flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        let file = flags.config.clone().or_else(|| environment.get("TOKOMETER_CONFIG").map(PathBuf::from));
        // Taken before the file is read, so that a change in between is detected later.
        let version = file.as_deref().and_then(FileVersion::of);
        let text = file.as_deref().map(read_file).transpose()?;
        let config = Layers { open_files, file: file.as_deref().zip(text.as_deref()), flags }.over(environment)?;
        Ok(Config { version, ..config })
    }

    /// Like [`Config::load`], from text in memory.
    ///
    /// # Errors
    ///
    /// As [`Config::load`].
    pub fn from_layers(file: Option<(&Path, &str)>, flags: &Flags, environment: &Environment) -> Result<Config, Error> {
        Layers { open_files: false, file, flags }.over(environment)
    }

    /// The effective configuration as YAML that can be used as a file; each line that is not a default shows where it
    /// was set. Header values, names of tenants, and credentials and queries in URLs are redacted.
    pub fn effective_yaml(&self) -> String {
        output::effective(&self.raw, &self.set)
    }

    /// The effective configuration of a running program that has loaded `new`: keys that need a restart keep the values
    /// of `self`; all other keys have the values of `new`.
    pub fn adopting(&self, new: &Config) -> Config {
        let mut set = self.set.clone();
        for path in shape::reloaded() {
            set.remove(&path);
            if let Some(node) = new.set.find(&path) {
                set.overlay(Node::at(&path, node.value.clone(), &node.origin));
            }
        }
        // Each key is valid in one of the two configurations, so both conversions succeed. The checks of combinations
        // passed for each configuration; problems of the mix are ignored until the restart.
        let raw = raw(&set).unwrap_or_else(|_| self.raw.clone());
        let settings = checked::checked(&raw, &self.environment, &mut Problems::new(&set));
        Config {
            settings: settings.unwrap_or_else(|| self.settings.clone()),
            warnings: new.warnings.clone(),
            file: new.file.clone(),
            version: new.version,
            raw,
            set,
            environment: self.environment.clone(),
        }
    }

    /// A problem with the value of this key, with its origin.
    pub fn problem(&self, path: &str, message: String) -> Problem {
        Problem { origin: self.set.origin(path), path: path.to_owned(), message }
    }

    /// A free port close to that of this listen address.
    pub fn free_port(&self, address: &Address) -> Option<u16> {
        checked::free_port(&self.raw, address)
    }

    /// The configuration as written by the user, with defaults filled in.
    pub fn raw(&self) -> &Raw {
        &self.raw
    }
}

/// The layers above and below the environment.
struct Layers<'a> {
    /// Also check that the files named in the configuration can be opened.
    open_files: bool,
    file: Option<(&'a Path, &'a str)>,
    flags: &'a Flags,
}

impl Layers<'_> {
    /// Merges the layers, with `environment` in between. Ignores `OTEL_*` variables that cause errors, with a warning.
    fn over(&self, environment: &Environment) -> Result<Config, Error> {
        let problems = match self.attempt(environment) {
            Err(Error::Invalid(problems)) => problems,
            other => return other,
        };
        // An `OTEL_*` variable that is valid alone but conflicts with other settings is also ignored.
        let is_otel =
            |problem: &Problem| matches!(&problem.origin, Origin::Environment(name) if name.starts_with("OTEL_"));
        let (mut ignored, own): (Vec<Problem>, Vec<Problem>) = problems.into_iter().partition(is_otel);
        if ignored.is_empty() {
            return Err(Error::Invalid(own));
        }
        let mut reduced = environment.clone();
        for problem in &mut ignored {
            if let Origin::Environment(name) = &problem.origin {
                reduced.remove(name);
            }
            problem.message.push_str("; this variable is ignored");
        }
        let mut config = self.over(&reduced)?;
        config.warnings.splice(..0, ignored);
        Ok(config)
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
                // `over` removes this variable and tries again; the other one of host and port, if set, still applies.
                Err(message) => errors.push(Problem { origin, path: "admin.listen".to_owned(), message }),
            }
        }
        set.overlay(sources::variables(environment, &mut errors, &mut warnings));
        sources::flags(&mut set, self.flags, environment, &mut errors);
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
        if let Some(settings) = settings.as_ref().filter(|_| self.open_files && problems.errors.is_empty()) {
            checked::open_files(&raw, settings, &mut problems);
        }
        let Problems { errors, warnings: more, .. } = problems;
        warnings.extend(more);
        let settings = settings.filter(|_| errors.is_empty()).ok_or_else(|| Error::Invalid(once(errors)))?;
        let file = self.file.map(|(path, _)| path.to_owned());
        Ok(Config {
            settings,
            warnings: once(warnings),
            file,
            version: None,
            raw,
            set,
            environment: environment.clone(),
        })
    }
}

/// The values of a tree, with defaults for all other keys.
fn raw(set: &Node) -> Result<Raw, serde_json::Error> {
    serde_json::from_value(set.to_json())
}

fn read(path: &Path, text: &str) -> Result<Node, Error> {
    let file = path.display().to_string();
    let node = tree::read(text, &file).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
        let message = match error.without_snippet() {
            serde_yaml::Error::MultipleDocuments { .. } => {
                "a second document begins here; write one document, without `---` between keys".to_owned()
            }
            error => {
                // The parser's message ends with the position, which `Error::Syntax` shows first.
                let message = error.to_string().replace(&format!(" at line {line}, column {column}"), "");
                // Removes the parser's advice to programmers.
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
fn read_file(path: &Path) -> Result<String, Error> {
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
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

/// A key whose value changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub path: String,
    /// Old value, as YAML on one line, secrets redacted.
    pub from: String,
    /// New value, in the same format.
    pub to: String,
    /// True if the change takes effect only at the next start.
    pub needs_restart: bool,
}

/// Result of a reload.
#[derive(Clone, Debug)]
pub struct Reload {
    /// The new configuration.
    pub config: Config,
    /// Differences from the old configuration.
    pub changes: Vec<Change>,
}

/// Loads the configuration again. The caller keeps `old` on an error. Files such as certificates are not opened,
/// because they take effect only at a restart.
///
/// # Errors
///
/// As [`Config::load`]: the file cannot be read, is not YAML, or contains invalid values.
pub fn reload(old: &Config, flags: &Flags, environment: &Environment) -> Result<Reload, Error> {
    let config = Config::load(flags, environment)?;
    let changes = changes(old, &config);
    Ok(Reload { config, changes })
}

/// The keys with different values, in the order of the file.
fn changes(old: &Config, new: &Config) -> Vec<Change> {
    let (before, after) = (output::tree(old.raw()).leaves(), output::tree(new.raw()).leaves());
    let value = |leaves: &[(String, Node)], path: &str| {
        leaves.iter().find(|(leaf, _)| leaf == path).map(|(_, node)| (node.to_json(), output::shown(path, node)))
    };
    let added = after.iter().filter(|(path, _)| value(&before, path).is_none());
    let changed = before.iter().chain(added).filter_map(|(path, _)| {
        let (from, to) = (value(&before, path), value(&after, path));
        let is_same = from.as_ref().map(|(json, _)| json) == to.as_ref().map(|(json, _)| json);
        let shown = |value: Option<(_, String)>| value.map_or_else(|| "not set".to_owned(), |(_, shown)| shown);
        let needs_restart = !shape::is_reloaded(path);
        (!is_same).then(|| Change { path: secret::shown_path(path), from: shown(from), to: shown(to), needs_restart })
    });
    changed.collect()
}

#[cfg(test)]
mod tests;
