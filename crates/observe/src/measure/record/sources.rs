//! Values of a record that name their source.

use std::time::Duration;

use tokometer_metrics::closed_enum;

closed_enum! {
    /// Source of a token count. Listed from most to least trusted, which comparisons rely on.
    pub enum CountSource {
        /// The engine's `usage`.
        Usage = "usage",
        /// The engine's own span.
        EngineSpan = "engine_span",
        /// The lengths of `token_ids` in the events.
        TokenIds = "token_ids",
        /// An engine-specific counter (llama.cpp `timings.predicted_n` and `tokens_predicted`, SGLang
        /// `meta_info.completion_tokens`, Ollama `eval_count`, TGI `generated_tokens`).
        NativeCounter = "native_counter",
        /// The tokenized response text: an estimate. The sampled tokens may have been split differently, and some are
        /// not in the text (the end-of-text token, reasoning markers, the syntax of tool calls).
        Tokenizer = "tokenizer",
        /// The number of token-bearing events: a lower bound, because an event may contain several tokens.
        Deltas = "deltas_lower_bound",
    }
}

impl CountSource {
    /// True for exact counts; false for estimates and lower bounds.
    pub fn is_exact(self) -> bool {
        !matches!(self, CountSource::Tokenizer | CountSource::Deltas)
    }
}

/// A number of tokens and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Tokens.
    pub tokens: u64,
    /// Source of the number.
    pub source: CountSource,
}

impl Count {
    /// The tokens, if the count is exact.
    pub fn exact(self) -> Option<u64> {
        self.source.is_exact().then_some(self.tokens)
    }
}

closed_enum! {
    /// Source of a queue time. A series never mixes sources.
    pub enum QueueSource {
        /// A field of the response body (vLLM `metrics.queue_time_ms`, SGLang `meta_info.queue_time`).
        InBand = "in_band",
        /// A response header (TGI `x-queue-time`, whole milliseconds; non-streamed responses).
        ResponseHeader = "response_header",
        /// The engine's total time minus its parts (Ollama: load, prompt and eval durations). The remainder is the wait
        /// for a slot, plus some milliseconds of templating and tokenizing.
        Remainder = "remainder",
        /// Time until the response headers, for engines that send headers when work begins (llama.cpp).
        HeaderTiming = "header_timing",
        /// The engine's own span.
        EngineSpan = "engine_span",
    }
}

/// Time that a request waited in the server before the server began to process it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueTime {
    /// The wait.
    pub value: Duration,
    /// Source of the value.
    pub source: QueueSource,
}
