//! What is known of one exchange when it has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::measure::Blocked;
use crate::measure::EngineSpan;
use crate::measure::Labels;
use crate::measure::Targets;
use tokometer_decode::{EngineTiming, FinishReason, Work};

/// How an exchange ended: exactly one of these, recorded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The answer came whole, and had something in it; or nothing was asked but that a model be loaded, or that the answer
    /// be made in the background.
    Ok,
    /// The client went away before the first token.
    ClientAbortBeforeFirstToken,
    /// The client went away between the first token and the end.
    ClientAbortMidStream,
    /// The server could not be reached, or said on a connection of HTTP/2 that it will not look at the request (GOAWAY).
    UpstreamRefused,
    /// The server reset the connection, or the stream of HTTP/2.
    UpstreamReset,
    /// The server did not accept the connection in the configured time, or nothing moved for the idle timeout.
    UpstreamTimeout,
    /// The server finished the connection before the end of the message, or the stream before its own end mark.
    Truncated,
    /// An error event came after the 200, or a finish reason that says error.
    ErrorInStream,
    /// A status of 400-499 that is not 429.
    Http4xx,
    /// A status of 500-599 that is not 503 or 529.
    Http5xx,
    /// 429, 503 or 529, or a stream of HTTP/2 refused: the server had no room.
    RejectedBusy,
    /// A whole answer of status 200 in which no token was.
    NoOutput,
    /// We closed it: the grace period of a drain was over.
    Drained,
    /// The request was not observed to its end: its connection could no longer be parsed, or a limit was reached.
    Unobserved,
}

impl Outcome {
    /// Every outcome, in the order of the documentation.
    pub const ALL: [Outcome; 14] = [
        Outcome::Ok,
        Outcome::ClientAbortBeforeFirstToken,
        Outcome::ClientAbortMidStream,
        Outcome::UpstreamRefused,
        Outcome::UpstreamReset,
        Outcome::UpstreamTimeout,
        Outcome::Truncated,
        Outcome::ErrorInStream,
        Outcome::Http4xx,
        Outcome::Http5xx,
        Outcome::RejectedBusy,
        Outcome::NoOutput,
        Outcome::Drained,
        Outcome::Unobserved,
    ];

    /// What it means, for the documentation.
    pub fn meaning(self) -> &'static str {
        match self {
            Outcome::Ok => {
                "The answer came whole, and had something in it; or nothing was asked but that a model be loaded, or that the answer be made in the background."
            }
            Outcome::ClientAbortBeforeFirstToken => "The client went away before the first token.",
            Outcome::ClientAbortMidStream => "The client went away between the first token and the end.",
            Outcome::UpstreamRefused => {
                "The server could not be reached, or said on a connection of HTTP/2 that it will not look at the request (GOAWAY)."
            }
            Outcome::UpstreamReset => "The server reset the connection, or the stream of HTTP/2.",
            Outcome::UpstreamTimeout => {
                "The server did not accept the connection in the configured time, or nothing moved for the idle timeout."
            }
            Outcome::Truncated => {
                "The server finished the connection before the end of the message, or the stream before its own end mark."
            }
            Outcome::ErrorInStream => "An error event came after the 200, or a finish reason that says error.",
            Outcome::Http4xx => "A status of 400-499 that is not 429.",
            Outcome::Http5xx => "A status of 500-599 that is not 503 or 529.",
            Outcome::RejectedBusy => "429, 503 or 529, or a stream of HTTP/2 refused: the server had no room.",
            Outcome::NoOutput => "A whole answer of status 200 in which no token was.",
            Outcome::Drained => "We closed it: the grace period of a drain was over.",
            Outcome::Unobserved => {
                "The request was not observed to its end: its connection could no longer be parsed, or a limit was reached. Its bytes were forwarded."
            }
        }
    }

    /// The value of the label `outcome`.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ClientAbortBeforeFirstToken => "client_abort_before_first_token",
            Outcome::ClientAbortMidStream => "client_abort_mid_stream",
            Outcome::UpstreamRefused => "upstream_refused",
            Outcome::UpstreamReset => "upstream_reset",
            Outcome::UpstreamTimeout => "upstream_timeout",
            Outcome::Truncated => "truncated",
            Outcome::ErrorInStream => "error_in_stream",
            Outcome::Http4xx => "http_4xx",
            Outcome::Http5xx => "http_5xx",
            Outcome::RejectedBusy => "rejected_busy",
            Outcome::NoOutput => "no_output",
            Outcome::Drained => "drained",
            Outcome::Unobserved => "unobserved",
        }
    }

    /// True for [`Outcome::Ok`] alone.
    pub fn is_ok(self) -> bool {
        self == Outcome::Ok
    }
}

/// Where a token count comes from, the most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CountSource {
    /// The engine's `usage`.
    Usage,
    /// The engine's own span.
    EngineSpan,
    /// The lengths of `token_ids` in the events.
    TokenIds,
    /// A counter of the engine's own dialect (llama.cpp `timings.predicted_n` and `tokens_predicted`, SGLang
    /// `meta_info.completion_tokens`, Ollama `eval_count`, TGI `generated_tokens`).
    NativeCounter,
    /// Entries of `logprobs`.
    Logprobs,
    /// The answer's text, put through the model's tokenizer again: an estimate. It is the count of the text. What was sampled
    /// has the end-of-text token and marks of reasoning beside it, which are no text, and may have been cut up otherwise.
    Tokenizer,
    /// Events that carried something: a lower bound, an event may hold several tokens.
    Deltas,
}

impl CountSource {
    /// Every source, the most trusted first.
    pub const ALL: [CountSource; 7] = [
        CountSource::Usage,
        CountSource::EngineSpan,
        CountSource::TokenIds,
        CountSource::NativeCounter,
        CountSource::Logprobs,
        CountSource::Tokenizer,
        CountSource::Deltas,
    ];

    /// The value of the label `source`.
    pub fn as_str(self) -> &'static str {
        match self {
            CountSource::Usage => "usage",
            CountSource::EngineSpan => "engine_span",
            CountSource::TokenIds => "token_ids",
            CountSource::NativeCounter => "native_counter",
            CountSource::Logprobs => "logprobs",
            CountSource::Tokenizer => "tokenizer",
            CountSource::Deltas => "deltas_lower_bound",
        }
    }

    /// True when the count is exact; false for an estimate and for a lower bound.
    pub fn is_exact(self) -> bool {
        !matches!(self, CountSource::Tokenizer | CountSource::Deltas)
    }
}

/// A number of tokens and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Tokens.
    pub tokens: u64,
    /// Where the number comes from.
    pub source: CountSource,
}

/// Where a queue time comes from. Never mixed in one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueSource {
    /// A field of the answer (vLLM `metrics.queue_time_ms`, SGLang `meta_info.queue_time`).
    InBand,
    /// A field of the response head (TGI `x-queue-time`, whole milliseconds; answers that are not streamed).
    ResponseHeader,
    /// What the engine's total leaves when all that it tells of is taken off (Ollama: total, load, prompt and eval
    /// durations). Waiting for a slot, and some milliseconds of templating and tokenizing with it.
    Remainder,
    /// The time until the response head, where the engine sends it when work begins (llama.cpp).
    HeaderTiming,
    /// The engine's own span.
    EngineSpan,
}

impl QueueSource {
    /// The value of the label `source`.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueSource::InBand => "in_band",
            QueueSource::ResponseHeader => "response_header",
            QueueSource::Remainder => "remainder",
            QueueSource::HeaderTiming => "header_timing",
            QueueSource::EngineSpan => "engine_span",
        }
    }
}

/// Time a request waited in the server before work on it began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueTime {
    /// The wait.
    pub value: Duration,
    /// Where the number comes from.
    pub source: QueueSource,
}

/// An incoming W3C `traceparent` (<https://www.w3.org/TR/trace-context/>, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id, never all zero.
    pub trace_id: u128,
    /// The caller's span id, never zero.
    pub span_id: u64,
    /// The caller's `sampled` flag.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads a header value; `None` when it is not a valid traceparent of a version that can be read (any but `ff`).
    pub fn parse(value: &[u8]) -> Option<TraceParent> {
        let text = std::str::from_utf8(value).ok()?.trim();
        let hex = |range: std::ops::Range<usize>| {
            text.get(range).filter(|s| s.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
        };
        let version = hex(0..2).filter(|v| *v != "ff")?;
        let long_enough =
            if version == "00" { text.len() == 55 } else { text.len() == 55 || text.as_bytes().get(55) == Some(&b'-') };
        let dashes = [2, 35, 52].iter().all(|&i| text.as_bytes().get(i) == Some(&b'-'));
        if !long_enough || !dashes {
            return None;
        }
        let trace_id = u128::from_str_radix(hex(3..35)?, 16).ok().filter(|id| *id != 0)?;
        let span_id = u64::from_str_radix(hex(36..52)?, 16).ok().filter(|id| *id != 0)?;
        let flags = u8::from_str_radix(hex(53..55)?, 16).ok()?;
        Some(TraceParent { trace_id, span_id, sampled: flags & 1 == 1 })
    }
}

/// One exchange, ended. Times are durations since `started` unless said otherwise; absent is `None`, never 0.
#[derive(Clone, Debug)]
pub struct Record {
    /// What the series of this exchange are told apart by.
    pub labels: Arc<Labels>,
    /// Number of the connection in this process.
    pub connection: u64,
    /// Number of the exchange on its connection, from 0.
    pub sequence: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Status of the final response head.
    pub status: Option<u16>,
    /// One entry per choice that gave one, in the order in which they came; at most 8.
    pub finish_reasons: Vec<FinishReason>,
    /// `id` of the answer (`chatcmpl-…`), at most 128 bytes.
    pub response_id: Option<Box<str>>,
    /// What an error in the answer named as its kind (`NotFoundError`), at most 48 bytes.
    pub error_type: Option<Box<str>>,
    /// `x-request-id` of the request, else of the response, at most 128 bytes.
    pub request_id: Option<Box<str>>,
    /// The caller's trace, if it sent a valid one.
    pub trace: Option<TraceParent>,
    /// What the request said of how fast its answer should be. Boxed: few say so.
    pub targets: Option<Box<Targets>>,
    /// The request asked for a stream; `None` where it did not say. What came is `labels.streaming`.
    pub asked_stream: Option<bool>,

    /// When the first byte of the request was read.
    pub started: Instant,
    /// Last byte of the request.
    pub requested: Option<Duration>,
    /// Final response head complete.
    pub headers: Option<Duration>,
    /// First event of the body (comments are not events; a whole JSON answer is one, at its end).
    pub first_event: Option<Duration>,
    /// First event that carried a token, whatever its channel, held-back text included.
    pub first_token: Option<Duration>,
    /// First event with text of the answer itself (content, refusal, audio): neither reasoning nor a tool call.
    pub first_visible: Option<Duration>,
    /// Last event that carried a token.
    pub last_token: Option<Duration>,
    /// The end of the exchange.
    pub ended: Duration,

    /// Prompt tokens, cached ones included.
    pub input_tokens: Option<Count>,
    /// Prompt tokens that came from the engine's cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens that were written to the engine's cache.
    pub cache_creation_tokens: Option<u64>,
    /// Prompt tokens that were audio.
    pub input_audio_tokens: Option<u64>,
    /// Prompt tokens that were images.
    pub input_image_tokens: Option<u64>,
    /// Output tokens, reasoning included.
    pub output_tokens: Option<Count>,
    /// Output tokens that were reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Output tokens that were audio.
    pub output_audio_tokens: Option<u64>,
    /// Tokens in the first event that carried any, where that is known.
    pub first_tokens: Option<u64>,
    /// Tokens per second between the first and the last token-bearing event: (n - n_first) / (t_last - t_first).
    pub decode_rate: Option<f64>,
    /// The same from a count that is a lower bound: the true rate is at least this. `None` where `decode_rate` is told.
    pub decode_rate_at_least: Option<f64>,
    /// The same from a count that is an estimate, beside `decode_rate_at_least`. `None` where `decode_rate` is told.
    pub decode_rate_estimated: Option<f64>,
    /// Events that carried a token.
    pub chunks: u64,
    /// Events of any kind (`[DONE]` included, comments not).
    pub events: u64,
    /// Longest gap between two token-bearing events.
    pub longest_gap: Option<Duration>,
    /// Tokens in the event that ended the longest gap, where that is known.
    pub longest_gap_tokens: Option<u32>,
    /// Gaps over the stall threshold that the client did not cause.
    pub stalls: u32,
    /// Time during which the client did not take bytes of this answer.
    pub delivery_blocked: Duration,
    /// The same, by what the server did meanwhile.
    pub blocked: Blocked,

    /// The answer could not be read, or not to its end mark: what the record lacks may have been there.
    pub unread: bool,

    /// Time in the server's queue.
    pub queue: Option<QueueTime>,
    /// What the engine said of its own times.
    pub timing: Option<EngineTiming>,
    /// What the engine's own span told, where one was joined.
    pub engine_span: Option<Box<EngineSpan>>,

    /// `max_tokens` or `max_completion_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// `n` of the request, 1 if it gave none.
    pub choices: u32,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
}

impl Record {
    /// An exchange of which no more is known than what it was, when it began and how it ended: the first of connection 0. No
    /// figure is told, nothing was seen, and one choice was asked for.
    ///
    /// For whoever scripts exchanges. An [`Exchange`](crate::measure::Exchange) fills every field itself, so that a new one
    /// cannot be forgotten.
    pub fn new(labels: Labels, started: Instant, outcome: Outcome, ended: Duration) -> Record {
        Record {
            labels: Arc::new(labels),
            connection: 0,
            sequence: 0,
            outcome,
            status: None,
            finish_reasons: Vec::new(),
            response_id: None,
            error_type: None,
            request_id: None,
            trace: None,
            targets: None,
            asked_stream: None,
            started,
            requested: None,
            headers: None,
            first_event: None,
            first_token: None,
            first_visible: None,
            last_token: None,
            ended,
            input_tokens: None,
            cached_tokens: None,
            cache_creation_tokens: None,
            input_audio_tokens: None,
            input_image_tokens: None,
            output_tokens: None,
            reasoning_tokens: None,
            output_audio_tokens: None,
            first_tokens: None,
            decode_rate: None,
            decode_rate_at_least: None,
            decode_rate_estimated: None,
            chunks: 0,
            events: 0,
            longest_gap: None,
            longest_gap_tokens: None,
            stalls: 0,
            delivery_blocked: Duration::ZERO,
            blocked: Blocked::default(),
            unread: false,
            queue: None,
            timing: None,
            engine_span: None,
            max_tokens: None,
            choices: 1,
            request_bytes: 0,
            response_bytes: 0,
        }
    }

    /// True when the response proves that its model exists, so that the model's name may become a label: a status of 200-299 (or
    /// a session's), and tokens, or a whole response to a request that makes the model work. Names in refused requests and
    /// in errors prove nothing, whoever wrote them.
    pub fn proves_model(&self) -> bool {
        let tokens = [self.input_tokens, self.output_tokens].into_iter().flatten().any(|count| count.tokens > 0);
        let worked = self.outcome.is_ok() && self.labels.route.work() != Work::Neither;
        matches!(self.status, Some(101 | 200..=299)) && (tokens || self.first_token.is_some() || worked)
    }

    /// `then` counted from the last byte of the request; `None` when either is unknown. An answer that begins before
    /// the request has ended counts as 0.
    pub fn since_requested(&self, then: Option<Duration>) -> Option<Duration> {
        Some(then?.saturating_sub(self.requested?))
    }

    /// Time per output token by the definition of `gen_ai.server.time_per_output_token`: seconds from the first token
    /// to the end of the exchange, by the tokens after the first event. `None` when the count is not exact.
    pub fn time_per_output_token(&self) -> Option<f64> {
        let output = self.output_tokens.filter(|n| n.source.is_exact())?.tokens;
        let after = output.checked_sub(self.first_tokens.unwrap_or(1)).filter(|n| *n > 0)?;
        let span = self.ended.checked_sub(self.first_token?)?;
        (!span.is_zero()).then(|| span.as_secs_f64() / after as f64)
    }
}
