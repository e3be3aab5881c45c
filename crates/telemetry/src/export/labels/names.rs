//! Converts client-supplied names to label values: cleans and interns them, and limits their number.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokometer_observe::measure::{Candidates, Usage};

/// The label value for names and label sets above a limit.
pub(crate) const OTHER: &str = "other";

/// Model names used as labels, up to a maximum number. In a full table, a new name replaces a name with less traffic, or
/// one that has been unused for long enough.
#[derive(Debug)]
pub(crate) struct Names {
    most: usize,
    known: HashMap<Box<str>, Arc<Label>>,
    candidates: Candidates<Box<str>>,
    other: Arc<str>,
}

/// A name in the table, with its use. Times are in milliseconds since the start of
/// [`LabelSets`](crate::export::labels::sets::LabelSets).
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) text: Arc<str>,
    pub(crate) usage: Usage,
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The label for a name.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) text: Arc<str>,
    /// The entry in the table. `None` for the label `other`: the table is full, or no response has proved that the
    /// model exists.
    pub(crate) entry: Option<Arc<Label>>,
}

impl Names {
    pub(crate) fn new(most: usize, idle: Duration) -> Names {
        Names { most, known: HashMap::new(), candidates: Candidates::new(most, idle), other: OTHER.into() }
    }

    /// True if a new name can only be added by replacing another name.
    pub(crate) fn is_full(&self) -> bool {
        self.known.len() >= self.most
    }

    /// The label `other`.
    pub(crate) fn other(&self) -> Name {
        Name { text: Arc::clone(&self.other), entry: None }
    }

    /// The label for this name; `None` if nothing is left after cleaning. A new name is added only if `admitted`, so
    /// that made-up names cannot fill the table. If another name is removed to make room, it is added to `replaced`.
    pub(crate) fn intern(
        &mut self,
        raw: &str,
        admitted: bool,
        now: Duration,
        replaced: &mut Vec<Arc<str>>,
    ) -> Option<Name> {
        let clean = clean(raw)?;
        if let Some(entry) = self.known.get(clean.as_ref()) {
            return Some(Name { text: Arc::clone(&entry.text), entry: Some(Arc::clone(entry)) });
        }
        let now = millis(now);
        // The caller counts the request.
        let mut usage = Usage::unused(now);
        if !admitted {
            return Some(self.other());
        }
        if self.is_full() {
            let table = self.known.iter().map(|(name, entry)| (name, &entry.usage));
            let Some((gone, waited)) = self.candidates.replace(&clean.as_ref().into(), table, now) else {
                return Some(self.other());
            };
            replaced.extend(self.known.remove(&gone).map(|entry| Arc::clone(&entry.text)));
            usage = waited;
        }
        let entry = Arc::new(Label { text: clean.as_ref().into(), usage });
        self.known.insert(clean.as_ref().into(), Arc::clone(&entry));
        Some(Name { text: Arc::clone(&entry.text), entry: Some(entry) })
    }
}

/// The text with unreadable characters replaced; `None` when nothing is left.
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

    /// The label of a name used this many seconds after the start, and whether the name is in the table.
    fn intern(names: &mut Names, name: &str, admitted: bool, at: u64) -> (String, bool) {
        let now = Duration::from_secs(at);
        let name = names.intern(name, admitted, now, &mut Vec::new()).unwrap();
        name.entry.iter().for_each(|entry| entry.usage.touch(millis(now)));
        (name.text.to_string(), name.entry.is_some())
    }

    fn own(name: &str) -> (String, bool) {
        (name.to_owned(), true)
    }

    fn other() -> (String, bool) {
        (OTHER.to_owned(), false)
    }

    #[test]
    fn full_table_replaces_an_idle_name_or_one_with_less_traffic() {
        let mut names = Names::new(2, Duration::from_secs(600));
        for at in [0, 1, 2] {
            assert_eq!(intern(&mut names, "a", true, at), own("a"));
        }
        assert_eq!(intern(&mut names, "b", true, 10), own("b"));
        assert_eq!(intern(&mut names, "b", true, 11), own("b"));
        (0..15).for_each(|_| assert_eq!(intern(&mut names, "c", true, 20), other()));
        let mut replaced = Vec::new();
        let c = names.intern("c", true, Duration::from_secs(21), &mut replaced).unwrap();
        assert_eq!((&*c.text, &*replaced[0], replaced.len()), ("c", "b", 1), "more traffic than `b`");
        c.entry.unwrap().usage.touch(21_000);
        assert_eq!(intern(&mut names, "a", false, 30), own("a"));
        assert_eq!(intern(&mut names, "d", true, 621), own("d"), "`c` is idle");
    }

    #[test]
    fn unproved_name_takes_no_place() {
        let mut names = Names::new(1, Duration::ZERO);
        assert_eq!(intern(&mut names, "made-up", false, 0), other());
        assert_eq!(intern(&mut names, "real", true, 0), own("real"));
        assert_eq!(intern(&mut names, "made-up", false, 9), other());
        assert_eq!(intern(&mut names, "real", false, 9), own("real"));
    }

    #[test]
    fn unreadable_characters_are_replaced() {
        assert_eq!(clean(" meta-llama/Llama-3.1 "), Some("meta-llama/Llama-3.1".into()));
        assert_eq!(clean("a\u{0}b\nc\u{202e}d"), Some("a_b_c_d".into()));
        assert_eq!(clean("模型"), Some("模型".into()));
        assert_eq!(clean("\t \n"), None);
        assert_eq!(clean(""), None);
    }
}
