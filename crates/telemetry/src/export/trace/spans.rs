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

use crate::export::Semconv;
use crate::export::labels::failure;
use crate::export::labels::names::clean;
use crate::export::trace::{Anchor, Ids};
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
    let whole = |n: u64| i64::try_from(n).ok().map(Value::from);
    let tokens =
        |count: Option<Count>| count.filter(|count| count.source.is_exact()).and_then(|count| whole(count.tokens));
    let details = match kind {
        PhaseKind::Request => vec![("tokometer.request.bytes", whole(record.request.bytes))],
        PhaseKind::Queue => {
            vec![("tokometer.queue.source", record.engine.queue.map(|queue| Value::from(queue.source.as_str())))]
        }
        PhaseKind::Prefill => vec![
            ("gen_ai.usage.input_tokens", tokens(record.tokens.input)),
            ("gen_ai.usage.cache_read.input_tokens", record.tokens.cached.and_then(whole)),
        ],
        PhaseKind::Decode => vec![
            ("gen_ai.usage.output_tokens", tokens(record.tokens.output)),
            ("tokometer.decode_tokens_per_second", record.rate.exact.map(Value::from)),
            (
                "tokometer.stalls",
                record.gaps.stalls.filter(|stalls| *stalls > 0).and_then(|stalls| whole(stalls.into())),
            ),
            ("tokometer.longest_gap", record.gaps.longest.map(|gap| Value::from(gap.as_secs_f64()))),
        ],
        _ => Vec::new(),
    };
    details.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?))).collect()
}

fn attributes(record: &Record, server: &[(Key, tokometer_metrics::Value)], semconv: Semconv) -> Vec<KeyValue> {
    let mut all = Vec::with_capacity(50);
    let mut put = |key: &'static str, value: Option<Value>| {
        if let Some(value) = value {
            all.push(KeyValue::new(key, value));
        }
    };
    let text = |text: Option<&str>| text.and_then(clean).map(|text| Value::from(text.into_owned()));
    let word = |word: Option<&'static str>| word.map(Value::from);
    let whole = |n: Option<u64>| n.and_then(|n| i64::try_from(n).ok()).map(Value::from);
    let seconds = |span: Option<Duration>| span.map(|span| Value::from(span.as_secs_f64()));
    let milliseconds = |ms: Option<f64>| ms.map(|ms| Value::from(ms / 1000.0));
    let exact = |count: Option<Count>| count.filter(|count| count.source.is_exact()).map(|count| count.tokens);
    let request = &record.labels;
    let streaming = request.streaming == Some(true);

    put("gen_ai.operation.name", word(Some(request.route.operation())));
    put("gen_ai.provider.name", word(request.engine));
    put("gen_ai.request.model", text(request.request_model.as_deref()));
    put("gen_ai.request.stream", (record.request.stream == Some(true)).then(|| Value::from(true)));
    put("gen_ai.request.max_tokens", whole(record.request.max_tokens));
    put(
        "gen_ai.request.choice.count",
        (record.request.choices != 1).then(|| Value::from(i64::from(record.request.choices))),
    );
    put("gen_ai.response.model", text(request.response_model.as_deref()));
    put("gen_ai.response.id", text(record.response.id.as_deref()));
    put("gen_ai.response.finish_reasons", finish_reasons(record));
    let first = |moment| seconds(record.since_requested(moment).filter(|_| streaming));
    put("gen_ai.response.time_to_first_chunk", first(record.times.first_event));
    put("gen_ai.usage.input_tokens", whole(exact(record.tokens.input)));
    put("gen_ai.usage.output_tokens", whole(exact(record.tokens.output)));
    put("gen_ai.usage.cache_read.input_tokens", whole(record.tokens.cached));
    if semconv != Semconv::Latest {
        put("gen_ai.usage.cache_creation.input_tokens", whole(record.tokens.parts.cache_creation));
    }
    if semconv != Semconv::V1_41 {
        put("gen_ai.usage.cache_write.input_tokens", whole(record.tokens.parts.cache_creation));
    }
    put("gen_ai.usage.reasoning.output_tokens", whole(record.tokens.reasoning));
    // Names from the newest conventions: v1.41 has none for modalities.
    put("gen_ai.usage.audio.input_tokens", whole(record.tokens.parts.input_audio));
    put("gen_ai.usage.image.input_tokens", whole(record.tokens.parts.input_image));
    put("gen_ai.usage.audio.output_tokens", whole(record.tokens.parts.output_audio));
    server.iter().for_each(|(key, value)| put(key.as_str(), Some(attribute(value))));
    put("http.response.status_code", record.response.status.map(|status| Value::from(i64::from(status))));
    put("error.type", word(failure::error_type(record)));

    // Keys shared with vLLM and SGLang. Tokometer measures `e2e` and `time_to_first_token` on the wire; the engine
    // reports the `time_in_model_*` times.
    put("gen_ai.latency.e2e", seconds(record.since_requested(Some(record.times.ended))));
    put("gen_ai.latency.time_to_first_token", first(record.times.first_token));
    put("gen_ai.latency.time_in_queue", seconds(record.engine.queue.map(|queue| queue.value)));
    let timing = record.engine.timing.unwrap_or_default();
    let prefill = timing.prefill_ms.or(timing.prompt_ms);
    put("gen_ai.latency.time_in_model_prefill", milliseconds(prefill));
    put("gen_ai.latency.time_in_model_decode", milliseconds(timing.decode_ms));
    let inference = prefill.zip(timing.decode_ms).map(|(prefill, decode)| prefill + decode);
    put("gen_ai.latency.time_in_model_inference", milliseconds(inference));

    put("tokometer.engine.load", milliseconds(timing.load_ms));
    // Speculative decoding.
    put("tokometer.speculative.draft_tokens", whole(timing.draft_tokens));
    put("tokometer.speculative.accepted_tokens", whole(timing.accepted_tokens));
    if let Some(span) = &record.engine.span {
        put("tokometer.engine.time_to_first_token", seconds(span.first_token));
        put("tokometer.engine.e2e", seconds(span.e2e));
    }

    put("tokometer.outcome", word(Some(record.outcome.as_str())));
    put("tokometer.request_id", text(record.request.id.as_deref()));
    let rank = record.request.targets.as_ref().and_then(|targets| targets.data_parallel_rank);
    put("tokometer.data_parallel_rank", whole(rank.map(u64::from)));
    put("tokometer.connection", whole(Some(record.connection)));
    put("tokometer.sequence", whole(Some(record.sequence)));
    put("tokometer.queue.source", word(record.engine.queue.map(|queue| queue.source.as_str())));
    put("tokometer.input_tokens.source", word(record.tokens.input.map(|count| count.source.as_str())));
    put("tokometer.output_tokens", whole(record.tokens.output.map(|count| count.tokens)));
    put("tokometer.output_tokens.source", word(record.tokens.output.map(|count| count.source.as_str())));
    put("tokometer.decode_tokens_per_second", record.rate.exact.map(Value::from));
    put("tokometer.decode_tokens_per_second_estimated", record.rate.estimated.map(Value::from));
    put("tokometer.time_to_first_visible", first(record.times.first_visible));
    // A non-streamed response is one event, in which nothing can stall.
    put("tokometer.chunks", whole(Some(record.tokens.chunks).filter(|_| streaming)));
    put("tokometer.events", whole(Some(record.response.events).filter(|_| streaming)));
    put("tokometer.stalls", whole(record.gaps.stalls.map(u64::from).filter(|_| streaming)));
    put("tokometer.longest_gap", seconds(record.gaps.longest));
    let blocked = Some(record.blocked.total()).filter(|blocked| streaming || !blocked.is_zero());
    put("tokometer.delivery_blocked", seconds(blocked));
    if let Some(network) = &record.network {
        put("tokometer.network.rtt", seconds(network.rtt));
        put("tokometer.network.retransmits", whole(network.retransmits));
        put("tokometer.network.zero_window", seconds(network.zero_window));
        put("tokometer.network.ttft_share", record.network_share_of_first_token().map(Value::from));
    }
    put("tokometer.capture_loss", record.capture_loss.then(|| Value::from(true)));
    put("tokometer.request.bytes", whole(Some(record.request.bytes)));
    put("tokometer.response.bytes", whole(Some(record.response.bytes)));
    all
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
