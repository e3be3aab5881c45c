//! Prompt classes: optional attributes of the times to the first token and of the prefill rate.
//!
//! Longer prompts have longer times to first token even if the server is healthy. Prompt classes show whether the
//! prompts have changed or the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::export::PromptClasses;
use crate::export::labels::names::OTHER;
use crate::export::labels::{Extra, Value};
use tokometer_metrics::table::Key;
use tokometer_observe::measure::Record;

/// The values of `cache_hit_class`. `most` means that more than half of the prompt was cached.
const CACHE_HITS: [&str; 4] = ["none", "partial", "most", "unknown"];

/// The class of one prompt, as attributes; empty if prompt classes are disabled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Class([Option<(Key, Value)>; 2]);

impl Class {
    /// The attributes of the class, plus `own`.
    pub(crate) fn and(&self, own: Option<(Key, Value)>) -> Extra {
        let [length, cache_hit] = self.0.clone();
        [own, length, cache_hit]
    }
}

/// The admitted classes of one label set, one bit each.
#[derive(Debug, Default)]
pub(crate) struct Admitted(AtomicU64);

/// The configured classes, and the slots for combinations of label set and class.
#[derive(Debug)]
pub(crate) struct Classes {
    /// Upper bounds of the length classes, in tokens.
    bounds: Vec<u64>,
    /// The names of the length classes: one per bound, one above all bounds, and `unknown`. Empty if length classes are
    /// disabled.
    lengths: Vec<Arc<str>>,
    cache_hit: bool,
    other: Class,
    slots: usize,
    used_slots: AtomicUsize,
}

/// Upper bounds of the prompt length classes, in tokens. `Admitted` has 64 bits, one per combination of classes.
const INPUT_LENGTH_BOUNDS: [u64; 4] = [1024, 8192, 32768, 131_072];

impl Classes {
    /// Creates the classes for these settings. `slots`: maximum number of combinations of label set and class.
    pub(crate) fn new(settings: &PromptClasses, slots: usize) -> Classes {
        let bounds = if settings.input_length { INPUT_LENGTH_BOUNDS.to_vec() } else { Vec::new() };
        let mut lengths: Vec<Arc<str>> = bounds.iter().map(|bound| format!("up_to_{bound}").into()).collect();
        if let Some(last) = bounds.last() {
            lengths.extend([format!("over_{last}").into(), "unknown".into()]);
        }
        let other = Class([
            (!lengths.is_empty()).then(|| (Key::InputLengthClass, Value::Text(OTHER.into()))),
            settings.cache_hit.then_some((Key::CacheHitClass, Value::Word(OTHER))),
        ]);
        Classes { bounds, lengths, cache_hit: settings.cache_hit, other, slots, used_slots: AtomicUsize::new(0) }
    }

    /// The class of this request's prompt in its label set, and whether it was folded into `other`. A request that
    /// is not streamed or has no first token has no class and uses no slot.
    pub(crate) fn of(&self, record: &Record, admitted: &Admitted) -> (Class, bool) {
        let waits = record.labels.streaming == Some(true) && record.times.first_token.is_some();
        let off = self.lengths.is_empty() && !self.cache_hit;
        if off || !waits {
            return (Class::default(), false);
        }
        let length = if self.lengths.is_empty() { 0 } else { self.length(record) };
        let cache_hit = if self.cache_hit { cache_hit(record) } else { 0 };
        if !self.admit(admitted, length * CACHE_HITS.len() + cache_hit) {
            return (self.other.clone(), true);
        }
        let length = self.lengths.get(length).map(|name| (Key::InputLengthClass, Value::Text(Arc::clone(name))));
        let word = CACHE_HITS.get(cache_hit).filter(|_| self.cache_hit);
        (Class([length, word.map(|word| (Key::CacheHitClass, Value::Word(word)))]), false)
    }

    /// Releases the slots of a removed label set.
    pub(crate) fn release(&self, admitted: &Admitted) {
        let slots = admitted.0.swap(0, Ordering::Relaxed).count_ones() as usize;
        self.used_slots.fetch_sub(slots, Ordering::Relaxed);
    }

    /// Index of the input's class in `lengths`.
    fn length(&self, record: &Record) -> usize {
        match input(record) {
            Some(tokens) => self.bounds.partition_point(|bound| *bound < tokens),
            None => self.bounds.len() + 1,
        }
    }

    /// True when this class already has a slot or gets one now.
    fn admit(&self, admitted: &Admitted, class: usize) -> bool {
        let bit = 1 << class;
        if admitted.0.load(Ordering::Relaxed) & bit != 0 {
            return true;
        }
        let more = |used: usize| (used < self.slots).then_some(used + 1);
        if self.used_slots.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            // Another thread may have used the last slot for the same class.
            return admitted.0.load(Ordering::Relaxed) & bit != 0;
        }
        if admitted.0.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            // Another thread admitted the class first, with a slot of its own, so the slot taken here is released.
            self.used_slots.fetch_sub(1, Ordering::Relaxed);
        }
        true
    }
}

/// Prompt tokens; `None` if the count is not exact.
fn input(record: &Record) -> Option<u64> {
    record.tokens.input?.exact()
}

/// Index of the class in [`CACHE_HITS`].
fn cache_hit(record: &Record) -> usize {
    match (record.tokens.cached, input(record)) {
        (Some(0), _) => 0,
        (Some(cached), Some(input)) if cached <= input => 1 + usize::from(cached > input - cached),
        // Cached tokens were not reported, were reported without the prompt tokens, or exceed the prompt tokens.
        _ => 3,
    }
}
