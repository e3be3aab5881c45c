//! The values of a record in groups. Missing values are `None`, never 0.

use std::time::Duration;

use crate::measure::{Count, EngineSpan, QueueTime, Targets, TraceParent};
use tokometer_decode::{EngineTiming, FinishReason, TokenParts};

/// Values of a request as the client sent it.
#[derive(Clone, Debug, Default)]
pub struct RequestValues {
    /// `x-request-id` of the request, otherwise of the response, at most 128 bytes.
    pub id: Option<Box<str>>,
    /// The caller's trace context, if the caller sent a valid `traceparent`.
    pub trace: Option<TraceParent>,
    /// The trace context that the proxy sent to the server in rewrite mode. The request's span uses these ids.
    pub sent_trace: Option<TraceParent>,
    /// Latency targets and tenant from the request headers. Boxed: few requests have any.
    pub targets: Option<Box<Targets>>,
    /// Whether the request set `stream`; `None` if unspecified. `labels.streaming` is the actual form of the response.
    pub stream: Option<bool>,
    /// `max_tokens` or `max_completion_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// `n` of the request; 1 if not set.
    pub choices: u32,
    /// Bytes of the request body.
    pub bytes: u64,
}

/// Values of a response, except its tokens.
#[derive(Clone, Debug, Default)]
pub struct ResponseValues {
    /// Status of the final response.
    pub status: Option<u16>,
    /// One entry per choice that reported a finish reason, in order of arrival; at most 8.
    pub finish_reasons: Vec<FinishReason>,
    /// `id` of the response (`chatcmpl-…`), at most 128 bytes.
    pub id: Option<Box<str>>,
    /// Type of the error in the response (`NotFoundError`), at most 48 bytes.
    pub error_type: Option<Box<str>>,
    /// All events, including `[DONE]`, excluding comments.
    pub events: u64,
    /// Bytes of the response body.
    pub bytes: u64,
}

/// Moments of a request, as durations since its first byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTimes {
    /// When the last byte of the request was read.
    pub requested: Option<Duration>,
    /// When the final response headers were complete.
    pub headers: Option<Duration>,
    /// First event of the body. Comments are not events. A non-streamed JSON response is one event, at its end.
    pub first_event: Option<Duration>,
    /// First token-bearing event in any channel, including tokens whose text is held back.
    pub first_token: Option<Duration>,
    /// First event with visible text (content, refusal, audio; not reasoning or tool calls).
    pub first_visible: Option<Duration>,
    /// Last token-bearing event. In a cancelled request, it may be later than `ended`.
    pub last_token: Option<Duration>,
    /// End of the request. A cancelled request ends when the client closes its side of the connection.
    pub ended: Duration,
    /// End of the response on the server's side. Later than `ended` if the server continued after a cancellation.
    pub closed: Duration,
}

/// Tokens of a request and of its response.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenCounts {
    /// Prompt tokens, including cached tokens.
    pub input: Option<Count>,
    /// Prompt tokens served from the engine's cache.
    pub cached: Option<u64>,
    /// Output tokens, including reasoning tokens.
    pub output: Option<Count>,
    /// Output tokens that were reasoning.
    pub reasoning: Option<u64>,
    /// Parts of these counts that few engines report.
    pub parts: TokenParts,
    /// Token-bearing events.
    pub chunks: u64,
    /// Tokens in the first token-bearing event, if known.
    pub first: Option<u64>,
    /// The server may have generated any number of tokens before it sent the first token-bearing event. This event is a
    /// tool call, which engines parse first, or it follows reasoning that was not sent.
    pub first_held: bool,
    /// Output tokens added to the live counters until the end of the request; `None` if the request had no live
    /// counters.
    pub live: Option<u64>,
}

impl TokenCounts {
    /// Tokens in the first token-bearing event, given `output` tokens in total; one if unreported. `None` if the server
    /// may have held back tokens ([`TokenCounts::first_held`]), unless there are as many events as tokens (an
    /// end-of-text token may have no event).
    pub(in crate::measure) fn in_first_event(&self, output: u64) -> Option<u64> {
        self.first.or_else(|| (!self.first_held || output <= self.chunks + 1).then_some(1))
    }
}

/// Tokens per second between the first and the last token-bearing event: (n - n_first) / (t_last - t_first).
#[derive(Clone, Copy, Debug, Default)]
pub struct DecodeRate {
    /// Rate from an exact count.
    pub exact: Option<f64>,
    /// Rate from a lower-bound count. The true rate is at least this high. `None` if `exact` is known.
    pub at_least: Option<f64>,
    /// Rate from an estimated count, in addition to `at_least`. `None` if `exact` is known.
    pub estimated: Option<f64>,
}

/// Gaps between the token-bearing events of a response.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenGaps {
    /// Longest gap between two token-bearing events, without delays of tokometer itself.
    pub longest: Option<Duration>,
    /// Tokens in the event that ended the longest gap, if known.
    pub longest_tokens: Option<u32>,
    /// Longest gap that the stream's cadence does not explain; gaps of up to 100 ms are always included
    /// ([`cadence`](crate::measure::cadence)).
    pub longest_pause: Option<Duration>,
    /// Usual gap between token-bearing events: the median of the last eight gaps. `None` below three gaps.
    pub usual: Option<Duration>,
    /// Pauses ([`TokenGaps::longest_pause`]) above the stall threshold.
    pub stalls: Option<u32>,
    /// Total delay of tokometer itself, before it read the request and while the request ran (a lower bound).
    pub late: Duration,
}

/// What the engine reported about its own work.
#[derive(Clone, Debug, Default)]
pub struct EngineValues {
    /// Time in the server's queue.
    pub queue: Option<QueueTime>,
    /// Times reported by the engine.
    pub timing: EngineTiming,
    /// Fields of the engine's own span, if a span was joined.
    pub span: Option<Box<EngineSpan>>,
}
