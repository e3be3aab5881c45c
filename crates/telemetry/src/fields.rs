//! The values of a request record in one table: names and meanings in JSON, attributes of the request's span, and
//! metrics. The names are a stable interface.

use std::time::Duration;

use serde_json::Value;

use tokometer_metrics::table::Id;
use tokometer_observe::measure::{Interval, PhaseKind, Phases, Record};

/// A value of a record. JSON has times in milliseconds, spans in seconds.
#[derive(Clone, Debug)]
pub enum Reading {
    /// Any value except a time.
    Value(Value),
    /// A measured time.
    Time(Option<Duration>),
    /// A time as the engine reported it.
    Milliseconds(Option<f64>),
}

impl Reading {
    /// Any value except a time.
    pub(crate) fn of(value: impl Into<Value>) -> Reading {
        Reading::Value(value.into())
    }

    /// The seconds of a known time.
    pub(crate) fn seconds(&self) -> Option<f64> {
        match self {
            Reading::Value(_) => None,
            Reading::Time(time) => time.map(|time| time.as_secs_f64()),
            Reading::Milliseconds(time) => time.map(|time| time / 1000.0),
        }
    }

    /// The value in JSON; null if it is absent.
    pub fn json(self) -> Value {
        match self {
            Reading::Value(value) => value,
            Reading::Time(time) => time.map(|time| time.as_secs_f64() * 1e3).into(),
            Reading::Milliseconds(time) => time.into(),
        }
    }
}

/// A row of the table.
pub(crate) struct Field {
    name: &'static str,
    meaning: &'static str,
    pub(crate) value: fn(&Record) -> Reading,
    /// Name as an attribute of the request's span.
    pub(crate) attribute: Option<&'static str>,
    /// Name as an attribute that only spans of streamed responses have.
    pub(crate) stream_attribute: Option<&'static str>,
    /// Metric without labels of its own: a counter, or a histogram of a time.
    pub(crate) metric: Option<Id>,
}

/// Declares the rows; the doc comment of each row is its meaning. `attribute`, `stream_attribute` and `metric` are
/// optional.
macro_rules! fields {
    (|$record:ident| $(
        $(#[doc = $meaning:literal])+ $name:ident $(: $kind:ident)? = $value:expr
        $(, attribute $attribute:literal)? $(, stream_attribute $stream:literal)? $(, metric $metric:ident)?;
    )+) => {
        &[$(Field {
            name: stringify!($name),
            meaning: concat!($($meaning),+),
            value: |$record| fields!(@ $($kind)? $value),
            attribute: fields!(? $($attribute)?),
            stream_attribute: fields!(? $($stream)?),
            metric: fields!(? $(Id::$metric)?),
        }),+]
    };
    (? $option:expr) => { Some($option) };
    (?) => { None };
    (@ Time $value:expr) => { Reading::Time($value) };
    (@ Milliseconds $value:expr) => { Reading::Milliseconds($value) };
    (@ $value:expr) => { Reading::of($value) };
}

/// All values except the phases, in order. Points in time (`_ms`) are milliseconds after the last byte of the request;
/// only `duration_ms` starts at the request's first byte.
pub(crate) static FIELDS: &[Field] = fields! { |r|
    /// Outcome of the request ([Outcomes](metrics.md#outcomes)).
    outcome = r.outcome.as_str(), attribute "tokometer.outcome";
    /// HTTP status; null if there was no response.
    status = r.response.status, attribute "http.response.status_code";
    /// Operation, by its OpenTelemetry name: `chat`, `text_completion`, `embeddings`, ...
    operation = r.labels.route.operation(), attribute "gen_ai.operation.name";
    /// Engine that sent the response; null if it was not recognized.
    engine = r.labels.engine, attribute "gen_ai.provider.name";
    /// Model name in the response or, if the response has none, in the request.
    model = r.labels.response_model.as_deref().or(r.labels.request_model.as_deref());
    /// Model name in the request.
    request_model = r.labels.request_model.as_deref(), attribute "gen_ai.request.model";
    /// Whether the response is a stream of events. If there is no response: whether the request asked for a stream.
    streaming = r.labels.streaming;
    /// Index of the listener in the configuration, from 0.
    listener = r.labels.listener;
    /// Number of the connection in this process, from 1.
    connection = r.connection, attribute "tokometer.connection";
    /// Number of the request on its connection, from 0.
    sequence = r.sequence, attribute "tokometer.sequence";
    /// `X-Request-Id` header of the request or, if absent, of the response.
    request_id = r.request.id.as_deref(), attribute "tokometer.request_id";
    /// `id` of the response.
    response_id = r.response.id.as_deref(), attribute "gen_ai.response.id";
    /// Trace id from `traceparent`.
    trace_id = r.server_trace().map(|trace| format!("{:032x}", trace.trace_id));
    /// Finish reasons of the choices that reported one; an empty list if none did.
    finish_reasons = r.response.finish_reasons.iter().map(|reason| Value::from(reason.as_str())).collect::<Value>();
    /// Prompt tokens.
    input_tokens = r.tokens.input.map(|count| count.tokens);
    /// Source of the prompt token count.
    input_tokens_source = r.tokens.input.map(|count| count.source.as_str()), attribute "tokometer.input_tokens.source";
    /// Input tokens read from a cache.
    cached_tokens = r.tokens.cached, attribute "gen_ai.usage.cache_read.input_tokens", metric CachedTokens;
    /// Input tokens written to a cache.
    cache_creation_tokens = r.tokens.parts.cache_creation, metric CacheCreationTokens;
    /// Audio input tokens.
    input_audio_tokens = r.tokens.parts.input_audio,
        attribute "gen_ai.usage.audio.input_tokens", metric InputAudioTokens;
    /// Image input tokens.
    input_image_tokens = r.tokens.parts.input_image,
        attribute "gen_ai.usage.image.input_tokens", metric InputImageTokens;
    /// Video input tokens.
    input_video_tokens = r.tokens.parts.input_video,
        attribute "tokometer.input_tokens.video", metric InputVideoTokens;
    /// Reasoning output tokens.
    reasoning_tokens = r.tokens.reasoning, attribute "gen_ai.usage.reasoning.output_tokens", metric ReasoningTokens;
    /// Audio output tokens.
    output_audio_tokens = r.tokens.parts.output_audio,
        attribute "gen_ai.usage.audio.output_tokens", metric OutputAudioTokens;
    /// Output tokens; for an aborted response, those up to the abort.
    output_tokens = r.tokens.output.map(|count| count.tokens), attribute "tokometer.output_tokens";
    /// Source of the output token count. `deltas_lower_bound` is a lower bound, `tokenizer` an estimate; all other
    /// sources are exact.
    output_tokens_source = r.tokens.output.map(|count| count.source.as_str()),
        attribute "tokometer.output_tokens.source";
    /// Time to the end of the response headers.
    time_to_headers_ms: Time = r.since_requested(r.times.headers);
    /// Time to the first event of a stream.
    time_to_first_event_ms: Time = r.since_requested(r.times.first_event),
        stream_attribute "gen_ai.response.time_to_first_chunk";
    /// Time to the first token of any kind in a stream.
    time_to_first_token_ms: Time = r.since_requested(r.times.first_token),
        stream_attribute "gen_ai.latency.time_to_first_token";
    /// Time to the first visible content of a stream.
    time_to_first_visible_ms: Time = r.since_requested(r.times.first_visible),
        stream_attribute "tokometer.time_to_first_visible";
    /// Time to the last token of a stream.
    last_token_ms: Time = r.since_requested(r.times.last_token);
    /// Time to the end of the request. A canceled request ends when the client closes its side of the connection.
    ended_ms: Time = r.since_requested(Some(r.times.ended)), attribute "gen_ai.latency.e2e";
    /// Time from the first byte of the request to its end.
    duration_ms: Time = Some(r.times.ended);
    /// Decode rate: output tokens after the first event, divided by the time from the first token to the last. Null if
    /// the token count is not exact.
    decode_tokens_per_second = r.rate.exact, attribute "tokometer.decode_tokens_per_second";
    /// Lower bound of the decode rate, if only a lower bound of the token count is known.
    decode_tokens_per_second_at_least = r.rate.at_least;
    /// Decode rate estimated from the tokenizer's count.
    decode_tokens_per_second_estimated = r.rate.estimated, attribute "tokometer.decode_tokens_per_second_estimated";
    /// Number of stream events that contained a token.
    chunks = is_streamed(r).then_some(r.tokens.chunks);
    /// Number of all stream events.
    events = r.response.events, stream_attribute "tokometer.events";
    /// Longest time between two tokens of one choice, excluding delays caused by tokometer itself.
    longest_gap_ms: Time = r.gaps.longest, attribute "tokometer.longest_gap";
    /// Longest pause: the longest gap that the stream's own cadence does not explain ([Stalls](../concepts/stalls.md));
    /// null if there is none.
    longest_pause_ms: Time = r.gaps.longest_pause;
    /// Number of pauses above the stall threshold; null if tokometer's own delays may hide one.
    stalls = r.gaps.stalls, stream_attribute "tokometer.stalls";
    /// Total time for which tokometer's thread was not scheduled, during the request or before its first bytes were
    /// read. Each delay is underreported by up to 100 ms, because the timer that measures it is due every 100 ms.
    late_ms: Time = Some(r.gaps.late);
    /// Time blocked on a slow client (backpressure).
    delivery_blocked_ms: Time = Some(r.blocked.total());
    /// Minimum round-trip time between the server's host and the client in the 5 minutes (sysctl `tcp_min_rtt_wlen`)
    /// before the request ended; null if unknown.
    rtt_ms: Time = r.network.rtt, attribute "tokometer.network.rtt", metric NetworkRtt;
    /// TCP segments sent to the client more than once during the request; null if unknown.
    retransmits = r.network.retransmits, attribute "tokometer.network.retransmits", metric NetworkRetransmits;
    /// Time for which the client's TCP receive window was full because the client did not read; null if unknown.
    zero_window_ms: Time = r.network.zero_window, attribute "tokometer.network.zero_window";
    /// Share of the client's time to first token that was spent in the network (transfer of the request plus one round
    /// trip), from 0 to 1; null if unknown.
    ttft_network_share = r.network_share_of_first_token(), attribute "tokometer.network.ttft_share";
    /// Whether packets were lost while the request was captured. If true, the request's times may be inexact.
    capture_loss = r.capture_loss, attribute "tokometer.capture_loss";
    /// Time in the server's queue.
    queue_time_ms: Time = r.engine.queue.map(|queue| queue.value), attribute "gen_ai.latency.time_in_queue";
    /// Source of the queue time ([Queue time](../concepts/queue-time.md)).
    queue_time_source = r.engine.queue.map(|queue| queue.source.as_str()), attribute "tokometer.queue.source";
    /// Model load time, as reported by the engine.
    engine_load_ms: Milliseconds = r.engine.timing.load_ms, attribute "tokometer.engine.load";
    /// Prefill time, as reported by the engine.
    engine_prefill_ms: Milliseconds = r.engine.timing.prefill_ms.or(r.engine.timing.prompt_ms),
        attribute "gen_ai.latency.time_in_model_prefill";
    /// Maximum output tokens set by the request.
    max_tokens = r.request.max_tokens, attribute "gen_ai.request.max_tokens";
    /// Data-parallel rank from the request's `X-Data-Parallel-Rank` header.
    data_parallel_rank = r.request.targets.as_ref().and_then(|targets| targets.data_parallel_rank),
        attribute "tokometer.data_parallel_rank";
    /// `n` of the request; 1 if absent.
    choices = r.request.choices;
    /// Bytes of the request body.
    request_bytes = r.request.bytes, attribute "tokometer.request.bytes";
    /// Bytes of the response body.
    response_bytes = r.response.bytes, attribute "tokometer.response.bytes";
};

/// The phases of a request, each with the name and the meaning of its duration. The durations add up to `duration_ms`.
const PHASES: [(PhaseKind, &str, &str); 10] = [
    (PhaseKind::Request, "phase_request_ms", "Time spent receiving the request."),
    (PhaseKind::Load, "phase_load_ms", "Time spent loading the model."),
    (PhaseKind::Preprocessing, "phase_preprocessing_ms", "Time spent preprocessing the prompt."),
    (PhaseKind::Queue, "phase_queue_ms", "Time spent waiting in the server's queue."),
    (PhaseKind::Prefill, "phase_prefill_ms", "Time spent prefilling the prompt."),
    (PhaseKind::Waiting, "phase_waiting_ms", "Time spent waiting for the first token, if the queue time is unknown."),
    (PhaseKind::Processing, "phase_processing_ms", "Time spent processing a request whose response is not streamed."),
    (PhaseKind::Decode, "phase_decode_ms", "Time from the first token to the last."),
    (PhaseKind::Finish, "phase_finish_ms", "Time from the last token to the end of the request."),
    (
        PhaseKind::DeliveryBlocked,
        "phase_delivery_blocked_ms",
        "Time blocked on a slow client (backpressure), which the other phases exclude.",
    ),
];

/// Name and value of every field, in order.
pub fn values(record: &Record) -> impl Iterator<Item = (&'static str, Reading)> {
    let phases = Phases::of(record);
    let fields = FIELDS.iter().map(|field| (field.name, (field.value)(record)));
    fields.chain(PHASES.map(|(kind, name, _)| (name, Reading::Time(length(&phases, kind)))))
}

/// Name and meaning of every field, in order.
pub fn meanings() -> impl Iterator<Item = (&'static str, &'static str)> {
    let fields = FIELDS.iter().map(|field| (field.name, field.meaning.trim_start()));
    fields.chain(PHASES.iter().map(|(_, name, meaning)| (*name, *meaning)))
}

fn length(phases: &Phases, kind: PhaseKind) -> Option<Duration> {
    match kind {
        PhaseKind::DeliveryBlocked => Some(phases.blocked()).filter(|blocked| !blocked.is_zero()),
        kind => phases.iter().find(|interval| interval.kind == kind).map(Interval::active),
    }
}

/// True for a token stream. For other responses, the chunk count is null, not zero.
fn is_streamed(record: &Record) -> bool {
    record.labels.streaming == Some(true) && record.labels.route.generates()
}
