//! Fields of an engine's own span, and how they are merged into a request record.

use std::time::Duration;

use crate::measure::Count;
use crate::measure::CountSource;
use crate::measure::QueueSource;
use crate::measure::QueueTime;
use crate::measure::Record;
use crate::measure::tokens::believed;
use tokometer_decode::EngineTiming;

/// Values of one request from the engine's trace, by the engine's clock; absent values are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineSpan {
    /// Trace id of the engine's span: the caller's if the caller sent one.
    pub trace_id: u128,
    /// Id of the engine's span.
    pub span_id: u64,
    /// Time in the scheduler's queue.
    pub queue: Option<Duration>,
    /// From scheduling to the first token, without the queue.
    pub prefill: Option<Duration>,
    /// From the first token to the last.
    pub decode: Option<Duration>,
    /// From the request's arrival to the first token, queue time included (vLLM's responses use the same name without
    /// it).
    pub first_token: Option<Duration>,
    /// From the request's arrival to its end.
    pub e2e: Option<Duration>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens served from the engine's cache.
    pub cached_tokens: Option<u64>,
    /// Output tokens.
    pub completion_tokens: Option<u64>,
}

impl Record {
    /// Fills in values that are missing in the record or come from a less trusted source. In-band values are never
    /// overwritten.
    pub fn complete(&mut self, span: EngineSpan) {
        if self.queue.is_none() {
            self.queue = span.queue.map(|value| QueueTime { value, source: QueueSource::EngineSpan });
        }
        let milliseconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64() * 1e3);
        let (prefill_ms, decode_ms) = (milliseconds(span.prefill), milliseconds(span.decode));
        match &mut self.timing {
            // Do not mix the timing fields of two sources.
            Some(told) if told.prefill_ms.or(told.prompt_ms).or(told.decode_ms).is_some() => {}
            timing if prefill_ms.or(decode_ms).is_some() => {
                *timing = Some(EngineTiming { prefill_ms, decode_ms, ..timing.unwrap_or_default() });
            }
            _ => {}
        }
        let counted =
            |tokens: Option<u64>| believed(tokens).map(|tokens| Count { tokens, source: CountSource::EngineSpan });
        let better = |known: Option<Count>| known.is_none_or(|known| known.source > CountSource::EngineSpan);
        if better(self.input_tokens) {
            self.input_tokens = counted(span.prompt_tokens).or(self.input_tokens);
        }
        self.cached_tokens = self.cached_tokens.or(believed(span.cached_tokens));
        if better(self.output_tokens)
            && let Some(output) = counted(span.completion_tokens)
        {
            self.output_tokens = Some(output);
            self.rate_by_exact_count(output.tokens);
        }
        self.engine_span = Some(Box::new(span));
    }

    /// Replaces a lower bound or an estimate of the decode rate by the exact rate. A rate that was omitted because the
    /// stream was too short stays omitted.
    fn rate_by_exact_count(&mut self, tokens: u64) {
        let spanned = self.first_token.zip(self.last_token).map(|(first, last)| last.saturating_sub(first));
        let after = tokens.checked_sub(self.first_tokens.unwrap_or(1)).filter(|after| *after > 0);
        self.decode_rate_estimated = None;
        if self.decode_rate_at_least.take().is_some() {
            self.decode_rate = after.zip(spanned).map(|(after, spanned)| after as f64 / spanned.as_secs_f64());
        }
    }
}
