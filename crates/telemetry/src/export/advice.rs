//! Logs a warning if the token counts of a model are only lower bounds, or if its responses cannot be read.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokometer_decode::Engine;
use tokometer_observe::measure::{CountSource, Record};

/// Maximum number of models for which a warning is logged.
const MAX_MODELS: usize = 64;

/// The models without exact token counts, each with whether its responses could not be read. Never locked by the data
/// path.
#[derive(Debug, Default)]
pub(crate) struct Inexact(Mutex<BTreeSet<(Box<str>, bool)>>);

impl Inexact {
    /// Warns once per model and reason if a complete response has no exact token count. Returns true if it warned.
    pub(crate) fn note(&self, record: &Record) -> bool {
        let is_lower_bound = record.tokens.output.is_some_and(|count| count.source == CountSource::Deltas)
            && record.labels.streaming == Some(true);
        let is_unread = record.unread && record.tokens.output.is_none();
        if !(record.outcome.is_ok() && (is_lower_bound || is_unread)) {
            return false;
        }
        let model = record.labels.response_model.as_deref().or(record.labels.request_model.as_deref());
        let model = model.unwrap_or_default();
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if models.len() >= MAX_MODELS || !models.insert((model.into(), is_unread)) {
            return false;
        }
        drop(models);
        if is_unread {
            tracing::warn!(
                model,
                "Responses of this model cannot be read, so their tokens are unknown: see the reasons in tokometer_observer_bodies_unread_total. If the server has an API that tokometer knows, check the path and the `content-type` of its responses."
            );
            return true;
        }
        let engine = record.labels.engine.and_then(Engine::of_name);
        let advice =
            engine.map_or("let clients send `stream_options.include_usage`", |engine| engine.info().advice.usage);
        tracing::warn!(
            model,
            "Streams of this model have no `usage`: their output tokens are lower bounds, and their inter-token latencies and decode rates differ from those of streams with it. For exact counts, {advice}; for estimates, set `observe.tokenizer`."
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use tokometer_observe::measure::{Count, Labels, Outcome};

    #[test]
    fn each_model_is_logged_once_and_only_for_complete_streams_without_a_count() {
        let record = |model: &str, source, outcome, streaming| {
            let labels = Labels { response_model: Some(model.into()), streaming: Some(streaming), ..Labels::default() };
            let count = Some(Count { tokens: 9, source });
            Record::new(labels, Instant::now(), outcome, Duration::ZERO).with(|r| r.tokens.output = count)
        };
        let bounds = Inexact::default();
        let (usage, deltas) = (CountSource::Usage, CountSource::Deltas);
        assert!(!bounds.note(&record("m", usage, Outcome::Ok, true)));
        assert!(!bounds.note(&record("m", deltas, Outcome::ClientAbortMidStream, true)));
        assert!(!bounds.note(&record("m", deltas, Outcome::Ok, false)));
        assert!(bounds.note(&record("m", deltas, Outcome::Ok, true)));
        assert!(!bounds.note(&record("m", deltas, Outcome::Ok, true)));
        let unread = record("m", deltas, Outcome::Ok, true).with(|r| {
            r.unread = true;
            r.tokens.output = None;
        });
        assert!(bounds.note(&unread));
        assert!(!bounds.note(&unread));
        for n in 2..MAX_MODELS {
            assert!(bounds.note(&record(&n.to_string(), deltas, Outcome::Ok, true)));
        }
        assert!(!bounds.note(&record("one more", deltas, Outcome::Ok, true)));
    }
}
