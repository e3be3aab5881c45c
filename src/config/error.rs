//! What is wrong with a configuration, in words that name the place and the mend.

use std::fmt;
use std::path::PathBuf;

use crate::config::value::Origin;

/// One thing that is wrong, or that deserves a second look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was set.
    pub origin: Origin,
    /// The key (`relay.keepalive_secs`); empty for what concerns no single key.
    pub path: String,
    /// What is wrong and what to write instead.
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

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}; check the path and its permissions", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
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
        /// What the YAML reader says.
        message: String,
    },
    /// The values cannot be used. Every one that was found, at least one.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}
