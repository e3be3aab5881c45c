//! Converts client-supplied names to label values: cleans and interns them, and limits their number.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The label value for names and label sets above a limit.
pub(crate) const OTHER: &str = "other";

/// Model names used as labels, up to a maximum number. A full table replaces the least recently used name if that name
/// has been unused for long enough.
#[derive(Debug)]
pub(crate) struct Names {
    most: usize,
    /// How long a name must be unused before another name may replace it.
    idle: Duration,
    known: HashMap<Box<str>, Arc<Label>>,
    other: Arc<str>,
}

/// A name in the table, with the time of its last use in milliseconds since the start of
/// [`LabelSets`](crate::export::labels::sets::LabelSets).
#[derive(Debug)]
pub(crate) struct Label {
    pub(crate) text: Arc<str>,
    used: AtomicU64,
}

impl Label {
    pub(crate) fn touch(&self, now: Duration) {
        self.used.fetch_max(millis(now), Ordering::Relaxed);
    }
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
        Names { most, idle, known: HashMap::new(), other: OTHER.into() }
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
            entry.touch(now);
            return Some(Name { text: Arc::clone(&entry.text), entry: Some(Arc::clone(entry)) });
        }
        if !admitted || self.is_full() && !self.make_room(now, replaced) {
            return Some(self.other());
        }
        let entry = Arc::new(Label { text: clean.as_ref().into(), used: AtomicU64::new(millis(now)) });
        self.known.insert(clean.as_ref().into(), Arc::clone(&entry));
        Some(Name { text: Arc::clone(&entry.text), entry: Some(entry) })
    }

    /// Removes the least recently used name if it is idle; returns whether a name was removed.
    fn make_room(&mut self, now: Duration, replaced: &mut Vec<Arc<str>>) -> bool {
        let used = |entry: &Arc<Label>| entry.used.load(Ordering::Relaxed);
        let oldest = self.known.iter().min_by_key(|(_, entry)| used(entry));
        let Some((name, entry)) = oldest else { return false };
        if millis(now).saturating_sub(used(entry)) < millis(self.idle) {
            return false;
        }
        let name = name.clone();
        replaced.extend(self.known.remove(&name).map(|entry| Arc::clone(&entry.text)));
        true
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

    /// The label of a name interned this many seconds after the start, and whether the name is in the table.
    fn intern(names: &mut Names, name: &str, admitted: bool, at: u64) -> (String, bool) {
        let name = names.intern(name, admitted, Duration::from_secs(at), &mut Vec::new()).unwrap();
        (name.text.to_string(), name.entry.is_some())
    }

    fn own(name: &str) -> (String, bool) {
        (name.to_owned(), true)
    }

    fn other() -> (String, bool) {
        (OTHER.to_owned(), false)
    }

    #[test]
    fn full_table_replaces_a_name_only_after_it_is_idle() {
        let mut names = Names::new(2, Duration::from_secs(600));
        assert_eq!(intern(&mut names, "a", true, 0), own("a"));
        assert_eq!(intern(&mut names, "b", true, 10), own("b"));
        assert_eq!(intern(&mut names, "c", true, 599), other());
        assert_eq!(intern(&mut names, "a", false, 599), own("a"));
        let mut replaced = Vec::new();
        let c = names.intern("c", true, Duration::from_secs(610), &mut replaced).unwrap();
        assert_eq!((&*c.text, &*replaced[0], replaced.len()), ("c", "b", 1));
        assert_eq!(intern(&mut names, "b", true, 610), other());
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
