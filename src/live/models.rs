//! Names of models as small numbers, so that a place of the table can hold one.

use std::sync::OnceLock;

/// Most names that are told apart: clients choose them.
const MOST: usize = 64;

/// Names in the order in which they came. Never locked: a name that was set stays.
#[derive(Debug)]
pub(super) struct Models(Vec<OnceLock<Box<str>>>);

/// No model was named.
pub(super) const UNNAMED: u16 = 0;
/// A model over the cap.
const OTHER: u16 = 1;
/// The number of the first name.
const FIRST: u16 = 2;

impl Default for Models {
    fn default() -> Models {
        Models((0..MOST).map(|_| OnceLock::new()).collect())
    }
}

impl Models {
    /// The number of a name.
    pub(super) fn number(&self, name: Option<&str>) -> u16 {
        let Some(name) = name else { return UNNAMED };
        let at = self.0.iter().position(|known| **known.get_or_init(|| name.into()) == *name);
        at.map_or(OTHER, |at| FIRST + at as u16)
    }

    /// The name of a number; `other` over the cap.
    pub(super) fn name(&self, number: u16) -> Option<&str> {
        match number {
            UNNAMED => None,
            OTHER => Some("other"),
            number => self.0.get(usize::from(number - FIRST))?.get().map(AsRef::as_ref),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_from_its_number_and_names_over_the_cap_are_other() {
        let models = Models::default();
        let (a, b) = (models.number(Some("a")), models.number(Some("b")));
        assert_ne!(a, b);
        assert_eq!(models.number(Some("a")), a);
        assert_eq!((models.name(a), models.name(b), models.name(UNNAMED)), (Some("a"), Some("b"), None));
        assert_eq!(models.number(None), UNNAMED);
        let numbers: Vec<u16> = (0..MOST).map(|n| models.number(Some(&format!("model-{n}")))).collect();
        assert_eq!(numbers.last().and_then(|number| models.name(*number)), Some("other"));
        assert_eq!(models.name(u16::MAX), None);
    }
}
