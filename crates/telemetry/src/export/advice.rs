//! Logs a warning if the token counts of a model are only lower bounds.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokometer_decode::Engine;
use tokometer_observe::measure::{CountSource, Record};

/// Maximum number of models for which a warning is logged.
const MAX_MODELS: usize = 64;

/// The models whose streams were counted as lower bounds. Never locked by the data path.
#[derive(Debug, Default)]
pub(crate) struct LowerBounds(Mutex<BTreeSet<Box<str>>>);

impl LowerBounds {
    /// Warns once per model if a complete stream had no token count. Returns true if it warned.
    pub(crate) fn note(&self, record: &Record) -> bool {
        let is_lower_bound = record.output_tokens.is_some_and(|count| count.source == CountSource::Deltas);
        if !(is_lower_bound && record.outcome.is_ok() && record.labels.streaming == Some(true)) {
            return false;
        }
        let model = record.labels.response_model.as_deref().or(record.labels.request_model.as_deref());
        let model = model.unwrap_or_default();
        let mut models = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if models.contains(model) || models.len() >= MAX_MODELS {
            return false;
        }
        models.insert(model.into());
        drop(models);
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
            Record { output_tokens: count, ..Record::new(labels, Instant::now(), outcome, Duration::ZERO) }
        };
        let bounds = LowerBounds::default();
        let (usage, deltas) = (CountSource::Usage, CountSource::Deltas);
        assert!(!bounds.note(&record("m", usage, Outcome::Ok, true)));
        assert!(!bounds.note(&record("m", deltas, Outcome::ClientAbortMidStream, true)));
        assert!(!bounds.note(&record("m", deltas, Outcome::Ok, false)));
        assert!(bounds.note(&record("m", deltas, Outcome::Ok, true)));
        assert!(!bounds.note(&record("m", deltas, Outcome::Ok, true)));
        for n in 1..MAX_MODELS {
            assert!(bounds.note(&record(&n.to_string(), deltas, Outcome::Ok, true)));
        }
        assert!(!bounds.note(&record("one more", deltas, Outcome::Ok, true)));
    }
}
