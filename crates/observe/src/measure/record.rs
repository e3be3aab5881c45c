//! The record of one request, created when the request has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::input::Network;
use crate::measure::{Blocked, EngineSpan, Labels, Targets};
use tokometer_decode::{EngineTiming, FinishReason, Work};
use tokometer_metrics::closed_enum;

closed_enum! {
    /// How a request ended. Each request has exactly one outcome, recorded once.
    pub enum Outcome {
        /// The response is complete and not empty. An empty response counts as `ok` if it is a redirect (300-399), or
        /// if the request only loads a model or asks for a background response.
        Ok = "ok",
        /// The client disconnected before the first token, or aborted the request with a call such as `/abort_request`.
        ClientAbortBeforeFirstToken = "client_abort_before_first_token",
        /// The client disconnected between the first token and the end of the response, or aborted the request with a
        /// call such as `/abort_request`.
        ClientAbortMidStream = "client_abort_mid_stream",
        /// The server could not be reached, or closed an HTTP/2 connection (GOAWAY) before it processed the request.
        UpstreamRefused = "upstream_refused",
        /// The server reset the connection or the HTTP/2 stream.
        UpstreamReset = "upstream_reset",
        /// The server did not accept the connection within the configured timeout, or no data arrived within the idle
        /// timeout.
        UpstreamTimeout = "upstream_timeout",
        /// The server closed the connection before the end of the message, or ended the stream without its end marker.
        Truncated = "truncated",
        /// After status 200, the stream contains an error event, or a finish reason that reports an error.
        ErrorInStream = "error_in_stream",
        /// A status from 400 to 499, except 429.
        Http4xx = "http_4xx",
        /// A status from 500 to 599, except 503 and 529.
        Http5xx = "http_5xx",
        /// The server is overloaded: status 429, 503 or 529, or a refused HTTP/2 stream.
        RejectedBusy = "rejected_busy",
        /// The response is complete, with status 200, but has no tokens.
        NoOutput = "no_output",
        /// The proxy closed the connection because the grace period of a drain had ended.
        Drained = "drained",
        /// The request was not observed to its end, because its connection could not be parsed further or a limit was
        /// reached. Its bytes were forwarded.
        Unobserved = "unobserved",
    }
}

impl Outcome {
    /// True for [`Outcome::Ok`] only.
    pub fn is_ok(self) -> bool {
        self == Outcome::Ok
    }

    /// True if the client cancelled the request.
    pub fn is_client_abort(self) -> bool {
        matches!(self, Outcome::ClientAbortBeforeFirstToken | Outcome::ClientAbortMidStream)
    }
}

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

/// Maximum bytes of a `traceparent` value. Version 00 has 55; later versions may append fields.
const TRACE_PARENT_BYTES: usize = 512;

impl TraceParent {
    /// Parses a header value. `None` if it is invalid; all versions except `ff` are accepted.
    pub fn parse(value: &[u8]) -> Option<TraceParent> {
        if value.len() > TRACE_PARENT_BYTES {
            return None;
        }
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

/// Maximum share of time blocked on the client. Above this share, a measured time mainly describes the client.
const CLIENT_SHARE: f64 = 0.1;

/// A request that has ended. Times are durations since `started` unless noted otherwise. Missing values are `None`,
/// never 0.
#[derive(Clone, Debug)]
pub struct Record {
    /// Labels of this request's series.
    pub labels: Arc<Labels>,
    /// Number of the connection in this process.
    pub connection: u64,
    /// Sequence number of the request on its connection, from 0.
    pub sequence: u64,
    /// How the request ended.
    pub outcome: Outcome,
    /// Status of the final response.
    pub status: Option<u16>,
    /// One entry per choice that reported a finish reason, in order of arrival; at most 8.
    pub finish_reasons: Vec<FinishReason>,
    /// `id` of the response (`chatcmpl-…`), at most 128 bytes.
    pub response_id: Option<Box<str>>,
    /// Type of the error in the response (`NotFoundError`), at most 48 bytes.
    pub error_type: Option<Box<str>>,
    /// `x-request-id` of the request, otherwise of the response, at most 128 bytes.
    pub request_id: Option<Box<str>>,
    /// The caller's trace context, if the caller sent a valid `traceparent`.
    pub trace: Option<TraceParent>,
    /// The trace context that the proxy sent to the server in rewrite mode. The request's span uses these ids.
    pub sent_trace: Option<TraceParent>,
    /// Latency targets and tenant from the request headers. Boxed: few requests have any.
    pub targets: Option<Box<Targets>>,
    /// Whether the request set `stream`; `None` if unspecified. `labels.streaming` is the actual form of the response.
    pub asked_stream: Option<bool>,

    /// Moment at which the first byte of the request was read.
    pub started: Instant,
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

    /// Prompt tokens, including cached tokens.
    pub input_tokens: Option<Count>,
    /// Prompt tokens served from the engine's cache.
    pub cached_tokens: Option<u64>,
    /// Prompt tokens written to the engine's cache.
    pub cache_creation_tokens: Option<u64>,
    /// Prompt tokens that were audio.
    pub input_audio_tokens: Option<u64>,
    /// Prompt tokens that were images.
    pub input_image_tokens: Option<u64>,
    /// Output tokens, including reasoning tokens.
    pub output_tokens: Option<Count>,
    /// Output tokens that were reasoning.
    pub reasoning_tokens: Option<u64>,
    /// Output tokens that were audio.
    pub output_audio_tokens: Option<u64>,
    /// Tokens in the first token-bearing event, if known.
    pub first_tokens: Option<u64>,
    /// The server may have generated any number of tokens before it sent the first token-bearing event. This event is a
    /// tool call, which engines parse first, or it follows reasoning that was not sent.
    pub first_held: bool,
    /// Tokens per second between the first and the last token-bearing event: (n - n_first) / (t_last - t_first).
    pub decode_rate: Option<f64>,
    /// Decode rate from a lower-bound count. The true rate is at least this high. `None` if `decode_rate` is known.
    pub decode_rate_at_least: Option<f64>,
    /// Decode rate from an estimated count, in addition to `decode_rate_at_least`. `None` if `decode_rate` is known.
    pub decode_rate_estimated: Option<f64>,
    /// Output tokens added to the live counters until the end of the request; `None` if the request had no live
    /// counters.
    pub live_tokens: Option<u64>,
    /// Token-bearing events.
    pub chunks: u64,
    /// All events, including `[DONE]`, excluding comments.
    pub events: u64,
    /// Longest gap between two token-bearing events, without delays of tokometer itself.
    pub longest_gap: Option<Duration>,
    /// Tokens in the event that ended the longest gap, if known.
    pub longest_gap_tokens: Option<u32>,
    /// Longest gap that the stream's cadence does not explain; gaps of up to 100 ms are always included
    /// ([`cadence`](crate::measure::cadence)).
    pub longest_pause: Option<Duration>,
    /// Usual gap between token-bearing events: the median of the last eight gaps. `None` below three gaps.
    pub usual_gap: Option<Duration>,
    /// Pauses ([`Record::longest_pause`]) above the stall threshold.
    pub stalls: Option<u32>,
    /// Total delay of tokometer itself, before it read the request and while the request ran (a lower bound).
    pub late: Duration,
    /// Time during which delivery of this response was blocked on the client.
    pub delivery_blocked: Duration,
    /// `delivery_blocked` by phase of the response, and the first blocked intervals.
    pub blocked: Blocked,

    /// Network between server and client during the request; `None` if the traffic source does not provide it.
    pub network: Option<Box<Network>>,
    /// Packets were lost while the request was captured, so times and network values may be inexact. If bytes of the
    /// request are missing, the outcome is `unobserved`.
    pub capture_loss: bool,

    /// The response was not parsed up to its end marker, so values that it contained may be missing here.
    pub unread: bool,

    /// Time in the server's queue.
    pub queue: Option<QueueTime>,
    /// Times reported by the engine.
    pub timing: Option<EngineTiming>,
    /// Fields of the engine's own span, if a span was joined.
    pub engine_span: Option<Box<EngineSpan>>,

    /// `max_tokens` or `max_completion_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// `n` of the request; 1 if not set.
    pub choices: u32,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the response body.
    pub response_bytes: u64,
}

impl Record {
    /// The trace context that the server received: the proxy's, otherwise the caller's.
    pub fn server_trace(&self) -> Option<TraceParent> {
        self.sent_trace.or(self.trace)
    }

    /// Tokens by which the final count exceeds [`Record::live_tokens`]: those that only the engine's span or the
    /// tokenizer counted. 0 if the request had no live counters.
    pub fn late_tokens(&self) -> u64 {
        let count = self.output_tokens.map_or(0, |count| count.tokens);
        self.live_tokens.map_or(0, |live| count.saturating_sub(live))
    }

    /// Creates a minimal record: the first request of connection 0, with one choice and no observed values.
    ///
    /// [`Request`](crate::measure::Request) fills in the observed values.
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
            sent_trace: None,
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
            closed: ended,
            input_tokens: None,
            cached_tokens: None,
            cache_creation_tokens: None,
            input_audio_tokens: None,
            input_image_tokens: None,
            output_tokens: None,
            reasoning_tokens: None,
            output_audio_tokens: None,
            first_tokens: None,
            first_held: false,
            decode_rate: None,
            decode_rate_at_least: None,
            decode_rate_estimated: None,
            live_tokens: None,
            chunks: 0,
            events: 0,
            longest_gap: None,
            longest_gap_tokens: None,
            longest_pause: None,
            usual_gap: None,
            stalls: Some(0),
            late: Duration::ZERO,
            delivery_blocked: Duration::ZERO,
            blocked: Blocked::default(),
            network: None,
            capture_loss: false,
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

    /// True if the response confirms that its model exists, so that the model name may become a label. Requires status
    /// 101 or 200-299, and either tokens or success on a route that uses the model. Names in rejected requests and in
    /// errors confirm nothing.
    pub fn proves_model(&self) -> bool {
        let tokens = [self.input_tokens, self.output_tokens].into_iter().flatten().any(|count| count.tokens > 0);
        let worked = self.outcome.is_ok() && !self.unread && self.labels.route.work() != Work::Neither;
        matches!(self.status, Some(101 | 200..=299)) && (tokens || self.first_token.is_some() || worked)
    }

    /// Ends the request at `left`, the time of the client's cancellation. Later times of headers and first events are
    /// dropped.
    pub(in crate::measure) fn end_with_client(&mut self, left: Duration) {
        self.ended = left;
        for time in [&mut self.headers, &mut self.first_event, &mut self.first_token, &mut self.first_visible] {
            *time = time.filter(|time| *time <= left);
        }
        if self.first_token.is_none() {
            // Tokens that arrived later were not delivered.
            self.output_tokens = None;
            self.last_token = None;
            (self.decode_rate, self.decode_rate_at_least) = (None, None);
        }
    }

    /// Time from the last request byte to `then`; `None` if either is unknown. 0 if the response begins before the
    /// request is complete.
    pub fn since_requested(&self, then: Option<Duration>) -> Option<Duration> {
        Some(then?.saturating_sub(self.requested?))
    }

    /// Network share of the time to first token as seen by the client, measured from the first byte that the client
    /// sends. The network time is the request transfer plus one round trip; the rest is the server's time. `None` if
    /// the round-trip time or the first token is unknown.
    pub fn network_share_of_first_token(&self) -> Option<f64> {
        let server = self.since_requested(self.first_token)?.as_secs_f64();
        let network = (self.requested? + self.network.as_ref()?.rtt?).as_secs_f64();
        (network > 0.0).then(|| network / (network + server))
    }

    /// Time from the last request byte to the first token. `None` if either is unknown. Also `None` if delivery was
    /// blocked on the client for more than 10 % of this time, because the result would mainly describe the client.
    pub fn time_to_first_token(&self) -> Option<Duration> {
        let wait = self.since_requested(self.first_token)?;
        (self.blocked.waiting <= wait.mul_f64(CLIENT_SHARE)).then_some(wait)
    }

    /// True if delivery was blocked on the client for more than 10 % of the time from the first to the last token. The
    /// decode rate then mainly describes the client.
    pub fn is_client_limited(&self) -> bool {
        let decode = self.first_token.zip(self.last_token).map(|(first, last)| last.saturating_sub(first));
        decode.is_some_and(|decode| self.delivery_blocked > decode.mul_f64(CLIENT_SHARE))
    }

    /// Tokens in the first token-bearing event, given `output` tokens in total; one if unreported. `None` if the server
    /// may have held back tokens ([`Record::first_held`]), unless there are as many events as tokens (an end-of-text
    /// token may have no event).
    pub(in crate::measure) fn first_event_tokens(&self, output: u64) -> Option<u64> {
        self.first_tokens.or_else(|| (!self.first_held || output <= self.chunks + 1).then_some(1))
    }

    /// Time per output token as defined by `gen_ai.server.time_per_output_token`. The seconds from the first token to
    /// the end of the request are divided by the tokens after the first event. `None` if the count is not exact, the
    /// tokens in the first event are unknown, there are several choices, or the client limited the rate.
    pub fn time_per_output_token(&self) -> Option<f64> {
        let output = self.output_tokens.filter(|n| n.source.is_exact())?.tokens;
        if self.choices != 1 || self.is_client_limited() {
            return None;
        }
        let after = output.checked_sub(self.first_event_tokens(output)?).filter(|n| *n > 0)?;
        // The count includes tokens generated after a cancellation.
        let end = self.ended.max(self.last_token.unwrap_or_default());
        let span = end.checked_sub(self.first_token?)?;
        (!span.is_zero()).then(|| span.as_secs_f64() / after as f64)
    }
}
