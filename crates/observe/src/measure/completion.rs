//! Values added to a record after the request has ended: the engine's own span, and the token count of a text.

use std::time::Duration;

use crate::measure::tokens::plausible;
use crate::measure::{Count, CountSource, QueueSource, QueueTime, Record, Thresholds};
use tokometer_decode::{ResponseText, TextLost};
use tokometer_metrics::closed_enum;

/// Values of one request from the engine's trace, measured by the engine's clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineSpan {
    /// Trace id of the engine's span: the caller's, if the caller sent one.
    pub trace_id: u128,
    /// Id of the engine's span.
    pub span_id: u64,
    /// Time in the scheduler's queue.
    pub queue: Option<Duration>,
    /// Time from scheduling to the first token, excluding queue time.
    pub prefill: Option<Duration>,
    /// Time from the first token to the last.
    pub decode: Option<Duration>,
    /// Time from the request's arrival to the first token, including queue time. (In vLLM's responses, the field of
    /// this name excludes the queue time.)
    pub first_token: Option<Duration>,
    /// Time from the request's arrival to its end.
    pub e2e: Option<Duration>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens served from the engine's cache.
    pub cached_tokens: Option<u64>,
    /// Output tokens.
    pub completion_tokens: Option<u64>,
}

closed_enum! {
    /// Why a response text was not tokenized, or its count was rejected.
    pub enum Uncounted {
        /// The text exceeds the size limit.
        TextTooLong = "text_too_long",
        /// All texts together reached the memory limit.
        Memory = "memory",
        /// The text does not represent the output tokens: audio, several responses, an echoed prompt, invalid Unicode,
        /// or a response that could not be fully parsed.
        NotPlain = "not_plain",
        /// No vocabulary is configured for the model.
        NoVocabulary = "no_vocabulary",
        /// Too many responses are waiting to be counted, or this response waited too long.
        QueueFull = "queue_full",
        /// The tokenizer rejected the text or failed.
        Failed = "failed",
        /// The count is lower than the number of events with text, so the vocabulary is probably another model's.
        BelowLowerBound = "below_lower_bound",
    }
}

impl From<TextLost> for Uncounted {
    fn from(lost: TextLost) -> Uncounted {
        match lost {
            TextLost::TooLong => Uncounted::TextTooLong,
            TextLost::Memory => Uncounted::Memory,
            TextLost::NotPlain => Uncounted::NotPlain,
        }
    }
}

/// Text of a response without an exact token count.
#[derive(Debug)]
pub struct UncountedText {
    /// The text, or why there is none.
    pub text: Box<ResponseText>,
    /// Thresholds for the decode rate computed from the count.
    pub thresholds: Thresholds,
}

impl UncountedText {
    /// The response text of this record. `echo`: the text includes the prompt.
    pub(super) fn of(
        mut text: Box<ResponseText>,
        record: &Record,
        echo: bool,
        thresholds: &Thresholds,
    ) -> UncountedText {
        // The text includes the prompt, combines several responses, or is incomplete.
        if echo || record.request.choices > 1 || record.unread {
            text.lose(TextLost::NotPlain);
        }
        UncountedText { text, thresholds: *thresholds }
    }
}

/// Token counts of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextTokens {
    /// Tokens in the whole text.
    pub all: u64,
    /// Tokens in the text of the first event with text.
    pub first: u64,
    /// Events with text: a lower bound of `all`.
    pub least: u64,
}

impl Record {
    /// Sets the output count to the token count of the text, as an estimate, and sets the estimated decode rate. The
    /// lower bound of the rate is kept.
    ///
    /// Some sampled tokens are not in the text: the end-of-text token, reasoning markers, the syntax of tool calls. If
    /// the record has a higher count, that count is kept as the better estimate.
    ///
    /// # Errors
    /// [`Uncounted::BelowLowerBound`]: the record is unchanged.
    pub fn count_text(&mut self, tokens: TextTokens, thresholds: &Thresholds) -> Result<(), Uncounted> {
        let seen = self.tokens.output.map_or(0, |count| count.tokens);
        if tokens.all < tokens.least || tokens.all == 0 {
            return Err(Uncounted::BelowLowerBound);
        }
        let all = tokens.all.max(seen);
        self.tokens.output = Some(Count { tokens: all, source: CountSource::Tokenizer });
        let first = self.tokens.first.unwrap_or(tokens.first.max(1));
        self.rate.estimated = thresholds.rate(all, first, self.times.first_token, self.times.last_token);
        Ok(())
    }

    /// Fills in values that are missing in the record or have a less trusted source. Never overwrites in-band values.
    pub fn complete(&mut self, span: EngineSpan) {
        if self.engine.queue.is_none() {
            self.engine.queue = span.queue.map(|value| QueueTime { value, source: QueueSource::EngineSpan });
        }
        let milliseconds = |span: Option<Duration>| span.map(|span| span.as_secs_f64() * 1e3);
        let timing = &mut self.engine.timing;
        // Do not mix the timing fields of two sources.
        if timing.prefill_ms.or(timing.prompt_ms).or(timing.decode_ms).is_none() {
            (timing.prefill_ms, timing.decode_ms) = (milliseconds(span.prefill), milliseconds(span.decode));
        }
        let counted =
            |tokens: Option<u64>| plausible(tokens).map(|tokens| Count { tokens, source: CountSource::EngineSpan });
        let better = |known: Option<Count>| known.is_none_or(|known| known.source > CountSource::EngineSpan);
        if better(self.tokens.input) {
            self.tokens.input = counted(span.prompt_tokens).or(self.tokens.input);
        }
        self.tokens.cached = self.tokens.cached.or(plausible(span.cached_tokens));
        if better(self.tokens.output)
            && let Some(output) = counted(span.completion_tokens)
        {
            self.tokens.output = Some(output);
            self.rate_by_exact_count(output.tokens);
        }
        self.engine.span = Some(Box::new(span));
    }

    /// Removes the estimated decode rate, and replaces the lower bound with the exact rate if the token count of the
    /// first event is known. Without a lower bound (the stream was too short), no rate is set.
    fn rate_by_exact_count(&mut self, tokens: u64) {
        let spanned = self.times.first_token.zip(self.times.last_token).map(|(first, last)| last.saturating_sub(first));
        self.rate.estimated = None;
        let Some(first) = self.tokens.in_first_event(tokens) else { return };
        let after = tokens.checked_sub(first).filter(|after| *after > 0);
        if self.rate.at_least.take().is_some() {
            self.rate.exact = after.zip(spanned).map(|(after, spanned)| after as f64 / spanned.as_secs_f64());
        }
    }
}
