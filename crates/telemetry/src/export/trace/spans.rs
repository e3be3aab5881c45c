//! The spans of one request, built from the measured times after the request has ended.
//!
//! One SERVER span covers the request from its first byte to its end. Its children are the contiguous phases of the
//! request ([`Phases`]), and the intervals in which delivery was blocked on the client.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use serde_json::Value as Json;

use crate::export::Semconv;
use crate::export::labels::failure;
use crate::export::labels::names::clean;
use crate::export::trace::{Anchor, Ids};
use crate::fields::{FIELDS, Reading};
use tokometer_metrics::table::Key;
use tokometer_observe::measure::{Count, PhaseKind, Phases, Record};

/// Value that the semantic conventions define for a missing finish reason.
const MISSING_FINISH: &str = "error";

/// Instrumentation scope of all spans.
static SCOPE: LazyLock<InstrumentationScope> =
    LazyLock::new(|| InstrumentationScope::builder("tokometer").with_version(env!("CARGO_PKG_VERSION")).build());

/// Kind, start and end of a child span, relative to the first byte of the request.
type Child = (PhaseKind, Duration, Duration);

/// Number of spans of the request.
pub(crate) fn count(record: &Record) -> usize {
    1 + children(record).len()
}

/// All spans of the request, the SERVER span first.
pub(crate) fn spans(
    record: &Record,
    ids: Ids,
    anchor: Anchor,
    server: &[(Key, tokometer_metrics::Value)],
    semconv: Semconv,
) -> Vec<SpanData> {
    let span = |span_id, parent: Option<u64>, kind, name, from: Duration, to: Duration| SpanData {
        span_context: SpanContext::new(
            TraceId::from(ids.trace_id),
            SpanId::from(span_id),
            TraceFlags::SAMPLED,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: false,
        span_kind: kind,
        name,
        start_time: anchor.at(record.started + from),
        end_time: anchor.at(record.started + to.max(from)),
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: SCOPE.clone(),
    };
    let mut request = span(ids.span_id, ids.parent, SpanKind::Server, name(record), Duration::ZERO, record.times.ended);
    request.parent_span_is_remote = ids.parent.is_some();
    request.attributes = attributes(record, server, semconv);
    request.attributes.extend(ids.kept.map(|why| KeyValue::new("tokometer.trace.kept", why.as_str())));
    request.links = links(record);
    if !record.outcome.is_ok() {
        request.status = Status::error(record.outcome.meaning());
    }
    let mut all = vec![request];
    for (kind, from, to) in children(record) {
        let name = Cow::Borrowed(kind.as_str());
        let mut child = span(fastrand::u64(1..), Some(ids.span_id), SpanKind::Internal, name, from, to);
        child.attributes = of_phase(kind, record);
        all.push(child);
    }
    all
}

/// Link to the engine's own span of the request, which is in a separate trace unless the caller sent a `traceparent`.
fn links(record: &Record) -> SpanLinks {
    let mut links = SpanLinks::default();
    if let Some(span) = &record.engine.span {
        let (trace_id, span_id) = (TraceId::from(span.trace_id), SpanId::from(span.span_id));
        let context = SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, true, TraceState::default());
        links.links.push(Link::with_context(context));
    }
    links
}

/// Span name `{operation} {model}`, as the semantic conventions define it.
fn name(record: &Record) -> Cow<'static, str> {
    let operation = record.labels.route.operation();
    match record.labels.request_model.as_deref().and_then(clean) {
        Some(model) => Cow::Owned(format!("{operation} {model}")),
        None => Cow::Borrowed(operation),
    }
}

/// The children of the request's span. Phases of zero length are omitted, and so is a single phase that covers the
/// whole request.
fn children(record: &Record) -> Vec<Child> {
    let phases = Phases::of(record);
    let phases = phases.iter().filter(|part| part.from < part.to).map(|part| (part.kind, part.from, part.to));
    let mut children: Vec<Child> = phases.collect();
    if !record.labels.route.is_read() || children.len() == 1 {
        children.clear();
    }
    let blocked = record.blocked.intervals.iter().filter(|(from, to)| from < to);
    children.extend(blocked.map(|(from, to)| (PhaseKind::DeliveryBlocked, *from, *to)));
    children
}

/// Details of a phase in addition to its duration.
fn of_phase(kind: PhaseKind, record: &Record) -> Vec<KeyValue> {
    let exact = |count: Option<Count>| Reading::of(count.and_then(Count::exact));
    let details = match kind {
        PhaseKind::Request => vec![("tokometer.request.bytes", Reading::of(record.request.bytes))],
        PhaseKind::Queue => {
            vec![("tokometer.queue.source", Reading::of(record.engine.queue.map(|queue| queue.source.as_str())))]
        }
        PhaseKind::Prefill => vec![
            ("gen_ai.usage.input_tokens", exact(record.tokens.input)),
            ("gen_ai.usage.cache_read.input_tokens", Reading::of(record.tokens.cached)),
        ],
        PhaseKind::Decode => vec![
            ("gen_ai.usage.output_tokens", exact(record.tokens.output)),
            ("tokometer.decode_tokens_per_second", Reading::of(record.rate.exact)),
            ("tokometer.stalls", Reading::of(record.gaps.stalls.filter(|stalls| *stalls > 0))),
            ("tokometer.longest_gap", Reading::Time(record.gaps.longest)),
        ],
        _ => Vec::new(),
    };
    details.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, of_reading(value)?))).collect()
}

/// The attributes of the request's span: those of the table, and those that are not in JSON or differ from it.
fn attributes(record: &Record, server: &[(Key, tokometer_metrics::Value)], semconv: Semconv) -> Vec<KeyValue> {
    let mut all = Vec::with_capacity(50);
    all.extend(finish_reasons(record).map(|reasons| KeyValue::new("gen_ai.response.finish_reasons", reasons)));
    all.extend(server.iter().map(|(key, value)| KeyValue::new(key.as_str(), attribute(value))));
    let mut put = |key, value| all.extend(of_reading(value).map(|value| KeyValue::new(key, value)));
    let streaming = record.labels.streaming == Some(true);
    for field in FIELDS {
        if let Some(key) = field.attribute.or(field.stream_attribute.filter(|_| streaming)) {
            put(key, (field.value)(record));
        }
    }
    put("gen_ai.request.stream", Reading::of(record.request.stream));
    put("gen_ai.request.choice.count", Reading::of(Some(record.request.choices).filter(|choices| *choices != 1)));
    put("gen_ai.response.model", Reading::of(record.labels.response_model.as_deref()));
    put("gen_ai.usage.input_tokens", Reading::of(record.tokens.input.and_then(Count::exact)));
    put("gen_ai.usage.output_tokens", Reading::of(record.tokens.output.and_then(Count::exact)));
    if semconv != Semconv::Latest {
        put("gen_ai.usage.cache_creation.input_tokens", Reading::of(record.tokens.parts.cache_creation));
    }
    if semconv != Semconv::V1_41 {
        put("gen_ai.usage.cache_write.input_tokens", Reading::of(record.tokens.parts.cache_creation));
    }
    put("error.type", Reading::of(failure::error_type(record)));

    let timing = record.engine.timing;
    let inference =
        timing.prefill_ms.or(timing.prompt_ms).zip(timing.decode_ms).map(|(prefill, decode)| prefill + decode);
    put("gen_ai.latency.time_in_model_decode", Reading::Milliseconds(timing.decode_ms));
    put("gen_ai.latency.time_in_model_inference", Reading::Milliseconds(inference));
    // Speculative decoding.
    put("tokometer.speculative.draft_tokens", Reading::of(timing.draft_tokens));
    put("tokometer.speculative.accepted_tokens", Reading::of(timing.accepted_tokens));
    if let Some(span) = &record.engine.span {
        put("tokometer.engine.time_to_first_token", Reading::Time(span.first_token));
        put("tokometer.engine.e2e", Reading::Time(span.e2e));
    }

    // A non-streamed response is one event, in which nothing can stall.
    put("tokometer.chunks", Reading::of(Some(record.tokens.chunks).filter(|_| streaming)));
    let blocked = Some(record.blocked.total()).filter(|blocked| streaming || !blocked.is_zero());
    put("tokometer.delivery_blocked", Reading::Time(blocked));
    all
}

/// A value of the record as a span attribute. False values are omitted.
fn of_reading(reading: Reading) -> Option<Value> {
    match reading {
        Reading::Value(Json::String(text)) => Some(clean(&text)?.into_owned().into()),
        Reading::Value(Json::Number(number)) if number.is_f64() => number.as_f64().map(Value::from),
        Reading::Value(Json::Number(number)) => number.as_i64().map(Value::from),
        Reading::Value(value) => value.as_bool().filter(|flag| *flag).map(Value::from),
        time => time.seconds().map(Value::from),
    }
}

/// The received finish reasons, plus `error` for each choice of a response that was interrupted before its finish
/// reason.
fn finish_reasons(record: &Record) -> Option<Value> {
    let mut reasons: Vec<StringValue> =
        record.response.finish_reasons.iter().map(|reason| reason.as_str().into()).collect();
    let begun = record.response.status.is_some_and(|status| (200..300).contains(&status));
    if begun && !record.outcome.is_ok() {
        // A record has at most 8 finish reasons.
        let expected = record.request.choices.clamp(1, 8) as usize;
        reasons.resize(reasons.len().max(expected), MISSING_FINISH.into());
    }
    if reasons.is_empty() { None } else { Some(Value::Array(Array::String(reasons))) }
}

/// The value of a series' attribute as a span attribute.
fn attribute(value: &tokometer_metrics::Value) -> Value {
    match value {
        tokometer_metrics::Value::Text(text) => std::sync::Arc::clone(text).into(),
        tokometer_metrics::Value::Word(word) => (*word).into(),
        tokometer_metrics::Value::Number(number) => (*number).into(),
        tokometer_metrics::Value::Flag(flag) => (*flag).into(),
        tokometer_metrics::Value::Unknown => "".into(),
    }
}
