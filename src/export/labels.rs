//! Free text from the wire, made fit to be a label: cleaned, interned and capped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;

/// The value in place of what is over a cap.
const OTHER: &str = "other";

/// Model names that may stand in labels.
#[derive(Debug)]
pub(crate) struct Names {
    most: usize,
    known: RwLock<HashMap<Box<str>, Arc<str>>>,
    other: Arc<str>,
}

/// A name as a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) text: Arc<str>,
    /// It stands for others: the cap was reached, or nothing vouches for the name.
    pub(crate) folded: bool,
}

impl Names {
    pub(crate) fn new(most: usize) -> Names {
        Names { most, known: RwLock::default(), other: OTHER.into() }
    }

    /// `other`, whatever the name.
    pub(crate) fn other(&self) -> Arc<str> {
        Arc::clone(&self.other)
    }

    /// The label for this name; `None` when nothing of it is left. A name that is new takes a place only if
    /// `admitted`: names of requests that the server refused must not use up the places.
    pub(crate) fn intern(&self, raw: &str, admitted: bool) -> Option<Name> {
        let clean = clean(raw)?;
        if let Some(text) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(clean.as_ref()) {
            return Some(Name { text: Arc::clone(text), folded: false });
        }
        if admitted {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() < self.most || known.contains_key(clean.as_ref()) {
                let text = known.entry(clean.as_ref().into()).or_insert_with(|| clean.as_ref().into());
                return Some(Name { text: Arc::clone(text), folded: false });
            }
        }
        Some(Name { text: self.other(), folded: true })
    }
}

/// The text without what cannot be read in a label; `None` when nothing is left.
pub(crate) fn clean(raw: &str) -> Option<std::borrow::Cow<'_, str>> {
    let readable = |c: char| c == ' ' || c.is_ascii_graphic() || c.is_alphanumeric();
    let trimmed = raw.trim();
    if trimmed.is_empty() {
        None
    } else if trimmed.chars().all(readable) {
        Some(trimmed.into())
    } else {
        Some(trimmed.chars().map(|c| if readable(c) { c } else { '_' }).collect::<String>().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: Option<Name>) -> String {
        name.unwrap().text.to_string()
    }

    #[test]
    fn names_over_the_cap_are_other_and_known_ones_stay() {
        let names = Names::new(2);
        assert_eq!(text(names.intern("a", true)), "a");
        assert_eq!(text(names.intern("b", true)), "b");
        assert_eq!(names.intern("c", true), Some(Name { text: OTHER.into(), folded: true }));
        assert_eq!(names.intern("a", false), Some(Name { text: "a".into(), folded: false }));
    }

    #[test]
    fn a_name_that_the_server_refused_takes_no_place() {
        let names = Names::new(1);
        assert!(names.intern("made-up", false).unwrap().folded);
        assert_eq!(text(names.intern("real", true)), "real");
    }

    #[test]
    fn what_cannot_be_read_is_replaced() {
        assert_eq!(clean(" meta-llama/Llama-3.1 "), Some("meta-llama/Llama-3.1".into()));
        assert_eq!(clean("a\u{0}b\nc\u{202e}d"), Some("a_b_c_d".into()));
        assert_eq!(clean("模型"), Some("模型".into()));
        assert_eq!(clean("\t \n"), None);
        assert_eq!(clean(""), None);
    }
}
