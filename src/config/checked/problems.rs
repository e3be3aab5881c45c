//! Problems with their origins, and checks that several blocks need.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::config::conform::nearest;
use crate::config::tree::{Node, Problem};
use tokometer_observe::observer::OwnPath;

/// Collects problems, each with the place where the value was set.
pub(crate) struct Problems<'a> {
    set: &'a Node,
    pub(crate) errors: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
}

impl<'a> Problems<'a> {
    pub(crate) fn new(set: &'a Node) -> Problems<'a> {
        Problems { set, errors: Vec::new(), warnings: Vec::new() }
    }

    pub(super) fn error(&mut self, path: &str, message: impl Into<String>) {
        self.errors.push(self.problem(path, message.into()));
    }

    pub(super) fn warn(&mut self, path: &str, message: impl Into<String>) {
        self.warnings.push(self.problem(path, message.into()));
    }

    pub(super) fn problem(&self, path: &str, message: String) -> Problem {
        Problem { origin: self.set.origin(path), path: path.to_owned(), message }
    }

    /// True if a layer set this key.
    pub(super) fn is_set(&self, path: &str) -> bool {
        self.set.find(path).is_some()
    }

    /// Returns the value, or records a problem at this path and returns `None`.
    pub(super) fn take<T>(&mut self, path: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.error(path, message)).ok()
    }

    /// Checks that a name is valid and not in `others`. `what` is the plural noun for the message.
    pub(super) fn unique_name<'n>(&mut self, path: &str, what: &str, name: &'n str, others: &mut HashSet<&'n str>) {
        if !is_name(name) {
            let message = format!("invalid name `{name}`; use lowercase letters, digits, `-` and `_`, at most 63");
            self.error(path, message);
        }
        if !others.insert(name) {
            self.error(path, format!("two {what} have the name `{name}`; use unique names"));
        }
    }

    /// Checks that a path is not empty.
    pub(super) fn not_empty(&mut self, key: &str, path: Option<&str>, fix: &str) {
        if path == Some("") {
            self.error(key, format!("the path is empty; {fix}"));
        }
    }

    /// Checks that a certificate and its key are both set or both absent.
    pub(super) fn identity(
        &mut self,
        path: &str,
        (certificate_key, certificate): (&str, &Option<String>),
        (key_key, key): (&str, &Option<String>),
    ) -> Option<(PathBuf, PathBuf)> {
        let (set, missing, what) = match (certificate, key) {
            (Some(certificate), Some(key)) => return Some((certificate.into(), key.into())),
            (None, None) => return None,
            (Some(_), None) => (certificate_key, key_key, "a certificate needs its key"),
            (None, Some(_)) => (key_key, certificate_key, "a key needs its certificate"),
        };
        self.error(&format!("{path}.{set}"), format!("{what}; set `{path}.{missing}` too, or neither"));
        None
    }
}

/// The message for an unknown route.
pub(super) fn unknown_route(name: &str) -> String {
    let hint = match nearest(name, OwnPath::routes()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("write one of {}", OwnPath::routes().collect::<Vec<_>>().join(", ")),
    };
    format!("unknown route `{name}`; {hint}")
}

/// True for a name that can be a label value.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_inner = |c: char| is_plain(c) || "-_".contains(c);
    name.len() <= 63 && name.starts_with(is_plain) && name.ends_with(is_plain) && name.chars().all(is_inner)
}

/// Converts a number to `usize`. Numbers are range-checked earlier, so they fit even in 32 bits.
pub(super) fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
