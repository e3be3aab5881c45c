//! The public names of the values of a request record, defined only here, for `tokometer replay --json` and the access
//! log. The names are a stable interface.

use std::time::Duration;

use serde_json::Value;

use tokometer_decode::EngineTiming;
use tokometer_observe::input::Network;
use tokometer_observe::measure::{Interval, PhaseKind, Phases, Record};

/// A name and its value; an absent value is null.
pub(super) type Member = (&'static str, Value);

/// One value: its name, its meaning, and the function that reads it from a record.
struct Field {
    name: &'static str,
    meaning: &'static str,
    value: fn(&Record) -> Value,
}

/// Declares fields; the doc comment of each field is its meaning.
macro_rules! fields {
    (|$record:ident| $( $(#[doc = $meaning:literal])+ $name:ident = $value:expr, )+) => {
        [$(Field {
            name: stringify!($name),
            meaning: concat!($($meaning),+),
            value: |$record| Value::from($value),
        }),+]
    };
}

/// All values except the phases, in order. Points in time (`_ms`) are milliseconds after the last byte of the request;
/// only `duration_ms` starts at the request's first byte.
static FIELDS: [Field; 55] = fields! { |r|
    /// Outcome of the request ([Outcomes](metrics.md#outcomes)).
    outcome = r.outcome.as_str(),
    /// HTTP status; null if there was no response.
    status = r.response.status,
    /// Operation, by its OpenTelemetry name: `chat`, `text_completion`, `embeddings`, ...
    operation = r.labels.route.operation(),
    /// Engine that sent the response; null if it was not recognized.
    engine = r.labels.engine,
    /// Model name in the response or, if the response has none, in the request.
    model = r.labels.response_model.as_deref().or(r.labels.request_model.as_deref()),
    /// Model name in the request.
    request_model = r.labels.request_model.as_deref(),
    /// Whether the response is a stream of events. If there is no response: whether the request asked for a stream.
    streaming = r.labels.streaming,
    /// Index of the listener in the configuration, from 0.
    listener = r.labels.listener,
    /// Number of the connection in this process, from 1.
    connection = r.connection,
    /// Number of the request on its connection, from 0.
    sequence = r.sequence,
    /// `X-Request-Id` header of the request or, if absent, of the response.
    request_id = r.request.id.as_deref(),
    /// `id` of the response.
    response_id = r.response.id.as_deref(),
    /// Trace id from `traceparent`.
    trace_id = r.server_trace().map(|trace| format!("{:032x}", trace.trace_id)),
    /// Finish reasons of the choices that reported one; an empty list if none did.
    finish_reasons = r.response.finish_reasons.iter().map(|reason| Value::from(reason.as_str())).collect::<Value>(),
    /// Prompt tokens.
    input_tokens = r.tokens.input.map(|count| count.tokens),
    /// Source of the prompt token count.
    input_tokens_source = r.tokens.input.map(|count| count.source.as_str()),
    /// Input tokens read from a cache.
    cached_tokens = r.tokens.cached,
    /// Input tokens written to a cache.
    cache_creation_tokens = r.tokens.parts.cache_creation,
    /// Audio input tokens.
    input_audio_tokens = r.tokens.parts.input_audio,
    /// Image input tokens.
    input_image_tokens = r.tokens.parts.input_image,
    /// Reasoning output tokens.
    reasoning_tokens = r.tokens.reasoning,
    /// Audio output tokens.
    output_audio_tokens = r.tokens.parts.output_audio,
    /// Output tokens; for an aborted response, those up to the abort.
    output_tokens = r.tokens.output.map(|count| count.tokens),
    /// Source of the output token count. `deltas_lower_bound` is a lower bound, `tokenizer` an estimate; all other
    /// sources are exact.
    output_tokens_source = r.tokens.output.map(|count| count.source.as_str()),
    /// Time to the end of the response headers.
    time_to_headers_ms = since(r, r.times.headers),
    /// Time to the first event of a stream.
    time_to_first_event_ms = since(r, r.times.first_event),
    /// Time to the first token of any kind in a stream.
    time_to_first_token_ms = since(r, r.times.first_token),
    /// Time to the first visible content of a stream.
    time_to_first_visible_ms = since(r, r.times.first_visible),
    /// Time to the last token of a stream.
    last_token_ms = since(r, r.times.last_token),
    /// Time to the end of the request. A canceled request ends when the client closes its side of the connection.
    ended_ms = since(r, Some(r.times.ended)),
    /// Time from the first byte of the request to its end.
    duration_ms = milliseconds(Some(r.times.ended)),
    /// Decode rate: output tokens after the first event, divided by the time from the first token to the last. Null if
    /// the token count is not exact.
    decode_tokens_per_second = r.rate.exact,
    /// Lower bound of the decode rate, if only a lower bound of the token count is known.
    decode_tokens_per_second_at_least = r.rate.at_least,
    /// Decode rate estimated from the tokenizer's count.
    decode_tokens_per_second_estimated = r.rate.estimated,
    /// Number of stream events that contained a token.
    chunks = is_streamed(r).then_some(r.tokens.chunks),
    /// Number of all stream events.
    events = r.response.events,
    /// Longest time between two tokens of one choice, excluding delays caused by tokometer itself.
    longest_gap_ms = milliseconds(r.gaps.longest),
    /// Longest pause: the longest gap that the stream's own cadence does not explain ([Stalls](../concepts/stalls.md));
    /// null if there is none.
    longest_pause_ms = milliseconds(r.gaps.longest_pause),
    /// Number of pauses above the stall threshold; null if tokometer's own delays may hide one.
    stalls = r.gaps.stalls,
    /// Total time for which tokometer's thread was not scheduled, during the request or before its first bytes were
    /// read. Each delay is underreported by up to 100 ms, because the timer that measures it is due every 100 ms.
    late_ms = milliseconds(Some(r.gaps.late)),
    /// Time blocked on a slow client (backpressure).
    delivery_blocked_ms = milliseconds(Some(r.blocked.total())),
    /// Minimum round-trip time between the server's host and the client in the 5 minutes (sysctl `tcp_min_rtt_wlen`)
    /// before the request ended; null if unknown.
    rtt_ms = milliseconds(network(r).rtt),
    /// TCP segments sent to the client more than once during the request; null if unknown.
    retransmits = network(r).retransmits,
    /// Time for which the client's TCP receive window was full because the client did not read; null if unknown.
    zero_window_ms = milliseconds(network(r).zero_window),
    /// Share of the client's time to first token that was spent in the network (transfer of the request plus one round
    /// trip), from 0 to 1; null if unknown.
    ttft_network_share = r.network_share_of_first_token(),
    /// Whether packets were lost while the request was captured. If true, the request's times may be inexact.
    capture_loss = r.capture_loss,
    /// Time in the server's queue.
    queue_time_ms = milliseconds(r.engine.queue.map(|queue| queue.value)),
    /// Source of the queue time ([Queue time](../concepts/queue-time.md)).
    queue_time_source = r.engine.queue.map(|queue| queue.source.as_str()),
    /// Model load time, as reported by the engine.
    engine_load_ms = timing(r).load_ms,
    /// Prefill time, as reported by the engine.
    engine_prefill_ms = timing(r).prefill_ms.or(timing(r).prompt_ms),
    /// Maximum output tokens set by the request.
    max_tokens = r.request.max_tokens,
    /// Data-parallel rank from the request's `X-Data-Parallel-Rank` header.
    data_parallel_rank = r.request.targets.as_ref().and_then(|targets| targets.data_parallel_rank),
    /// `n` of the request; 1 if absent.
    choices = r.request.choices,
    /// Bytes of the request body.
    request_bytes = r.request.bytes,
    /// Bytes of the response body.
    response_bytes = r.response.bytes,
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

/// All values of a request.
pub(super) fn members(record: &Record) -> Vec<Member> {
    let phases = Phases::of(record);
    let fields = FIELDS.iter().map(|field| (field.name, (field.value)(record)));
    let phases = PHASES.map(|(kind, name, _)| (name, milliseconds(length(&phases, kind)).into()));
    fields.chain(phases).collect()
}

/// Name and meaning of every value, in order.
pub fn meanings() -> impl Iterator<Item = (&'static str, &'static str)> {
    let fields = FIELDS.iter().map(|field| (field.name, field.meaning.trim_start()));
    fields.chain(PHASES.iter().map(|(_, name, meaning)| (*name, *meaning)))
}

/// A JSON object with the members in this order.
pub(super) fn object(members: impl IntoIterator<Item = Member>) -> String {
    let members: Vec<String> = members.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    escaped(&format!("{{{}}}", members.join(",")))
}

/// Escapes characters that JSON leaves unescaped but terminals or other programs interpret: DEL, the control
/// characters U+0080 to U+009F (U+009B begins an escape sequence, U+0085 is a line break) and the line breaks U+2028
/// and U+2029.
pub(super) fn escaped(json: &str) -> String {
    let mut line = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => line.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => line.push(c),
        }
    }
    line
}

/// Text for a terminal: control characters and line breaks are escaped.
pub(crate) fn printable(text: &str) -> String {
    let is_safe = |c: &char| !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}');
    text.chars().map(|c| if is_safe(&c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

fn length(phases: &Phases, kind: PhaseKind) -> Option<Duration> {
    match kind {
        PhaseKind::DeliveryBlocked => Some(phases.blocked()).filter(|blocked| !blocked.is_zero()),
        kind => phases.iter().find(|interval| interval.kind == kind).map(Interval::active),
    }
}

/// Milliseconds from the last byte of the request.
fn since(record: &Record, then: Option<Duration>) -> Option<f64> {
    milliseconds(record.since_requested(then))
}

fn milliseconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64() * 1e3)
}

fn network(record: &Record) -> Network {
    record.network.as_deref().copied().unwrap_or_default()
}

fn timing(record: &Record) -> EngineTiming {
    record.engine.timing.unwrap_or_default()
}

/// True for a token stream. For other responses, the chunk count is null, not zero.
fn is_streamed(record: &Record) -> bool {
    record.labels.streaming == Some(true) && record.labels.route.generates()
}
