//! Configuration errors: each message names the place and the fix.

use std::fmt;
use std::path::PathBuf;

use crate::config::value::Origin;

/// An error in the configuration, or a warning about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was set.
    pub origin: Origin,
    /// The key (`relay.keepalive_secs`); empty if it concerns no single key.
    pub path: String,
    /// The problem and the valid form.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin != Origin::Default {
            write!(f, "{}: ", self.origin)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

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
    /// Invalid values: all that were found, at least one.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
