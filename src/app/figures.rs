//! The values of a request record under their public names: the single definition of the names in `tokometer replay
//! --json` and the access log. They are a stable interface.

use std::time::Duration;

use serde_json::Value;

use tokometer_observe::measure::Interval;
use tokometer_observe::measure::PhaseKind;
use tokometer_observe::measure::Phases;
use tokometer_observe::measure::Record;

/// A name and its value; an absent value is null.
pub(super) type Figure = (&'static str, Value);

/// All values of a request. Times (`_ms`) are milliseconds from the last byte of the request, except `duration_ms`,
/// which starts at its first byte.
pub(super) fn figures(record: &Record) -> Vec<Figure> {
    let labels = &record.labels;
    let since = |then| milliseconds(record.since_requested(then));
    let text = |text: Option<&str>| Value::from(text);
    let timing = record.timing.unwrap_or_default();
    // A response that is not streamed has no chunk count, which differs from zero chunks.
    let streamed = labels.streaming == Some(true) && labels.route.generates();
    let phases = Phases::of(record);
    let mut all = vec![
        ("outcome", Value::from(record.outcome.as_str())),
        ("status", Value::from(record.status)),
        ("operation", Value::from(labels.route.operation())),
        ("engine", Value::from(labels.engine)),
        ("model", text(labels.response_model.as_deref().or(labels.request_model.as_deref()))),
        ("request_model", text(labels.request_model.as_deref())),
        ("streaming", Value::from(labels.streaming)),
        ("pair", Value::from(labels.pair)),
        ("connection", Value::from(record.connection)),
        ("sequence", Value::from(record.sequence)),
        ("request_id", text(record.request_id.as_deref())),
        ("response_id", text(record.response_id.as_deref())),
        ("trace_id", Value::from(record.trace.map(|trace| format!("{:032x}", trace.trace_id)))),
        ("finish_reasons", record.finish_reasons.iter().map(|reason| Value::from(reason.as_str())).collect()),
        ("input_tokens", Value::from(record.input_tokens.map(|count| count.tokens))),
        ("input_tokens_source", Value::from(record.input_tokens.map(|count| count.source.as_str()))),
        ("cached_tokens", Value::from(record.cached_tokens)),
        ("cache_creation_tokens", Value::from(record.cache_creation_tokens)),
        ("input_audio_tokens", Value::from(record.input_audio_tokens)),
        ("input_image_tokens", Value::from(record.input_image_tokens)),
        ("reasoning_tokens", Value::from(record.reasoning_tokens)),
        ("output_audio_tokens", Value::from(record.output_audio_tokens)),
        ("output_tokens", Value::from(record.output_tokens.map(|count| count.tokens))),
        ("output_tokens_source", Value::from(record.output_tokens.map(|count| count.source.as_str()))),
        ("time_to_headers_ms", since(record.headers)),
        ("time_to_first_event_ms", since(record.first_event)),
        ("time_to_first_token_ms", since(record.first_token)),
        ("time_to_first_visible_ms", since(record.first_visible)),
        ("last_token_ms", since(record.last_token)),
        ("ended_ms", since(Some(record.ended))),
        ("duration_ms", milliseconds(Some(record.ended))),
        ("decode_tokens_per_second", Value::from(record.decode_rate)),
        ("decode_tokens_per_second_at_least", Value::from(record.decode_rate_at_least)),
        ("decode_tokens_per_second_estimated", Value::from(record.decode_rate_estimated)),
        ("chunks", Value::from(streamed.then_some(record.chunks))),
        ("events", Value::from(record.events)),
        ("longest_gap_ms", milliseconds(record.longest_gap)),
        ("stalls", Value::from(record.stalls)),
        ("delivery_blocked_ms", milliseconds(Some(record.delivery_blocked))),
        ("queue_time_ms", milliseconds(record.queue.map(|queue| queue.value))),
        ("queue_time_source", Value::from(record.queue.map(|queue| queue.source.as_str()))),
        ("engine_load_ms", Value::from(timing.load_ms)),
        ("engine_prefill_ms", Value::from(timing.prefill_ms.or(timing.prompt_ms))),
        ("max_tokens", Value::from(record.max_tokens)),
        ("choices", Value::from(record.choices)),
        ("request_bytes", Value::from(record.request_bytes)),
        ("response_bytes", Value::from(record.response_bytes)),
    ];
    all.extend(PHASES.map(|(kind, name)| (name, milliseconds(length(&phases, kind)))));
    all
}

/// The phases of a request: they add up to `duration_ms`.
const PHASES: [(PhaseKind, &str); 10] = [
    (PhaseKind::Request, "phase_request_ms"),
    (PhaseKind::Load, "phase_load_ms"),
    (PhaseKind::Preprocessing, "phase_preprocessing_ms"),
    (PhaseKind::Queue, "phase_queue_ms"),
    (PhaseKind::Prefill, "phase_prefill_ms"),
    (PhaseKind::Waiting, "phase_waiting_ms"),
    (PhaseKind::Processing, "phase_processing_ms"),
    (PhaseKind::Decode, "phase_decode_ms"),
    (PhaseKind::Finish, "phase_finish_ms"),
    (PhaseKind::DeliveryBlocked, "phase_delivery_blocked_ms"),
];

fn length(phases: &Phases, kind: PhaseKind) -> Option<Duration> {
    match kind {
        PhaseKind::DeliveryBlocked => Some(phases.blocked()).filter(|blocked| !blocked.is_zero()),
        kind => phases.iter().find(|interval| interval.kind == kind).map(Interval::active),
    }
}

fn milliseconds(duration: Option<Duration>) -> Value {
    Value::from(duration.map(|duration| duration.as_secs_f64() * 1e3))
}

/// A JSON object with the members in this order.
pub(super) fn object(figures: impl IntoIterator<Item = Figure>) -> String {
    let members: Vec<String> = figures.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}
