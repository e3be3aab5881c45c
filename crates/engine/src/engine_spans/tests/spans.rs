//! Compares the span parser with prost on random messages.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::Event;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use proptest::prelude::*;
use prost::Message;

use crate::engine_spans::interpret::Interpreter;
use crate::engine_spans::spans;

use super::*;

/// The parsed parts of a span, in owned form.
type Seen = (u128, u64, Option<u64>, String, u64, u64, Vec<(String, String)>);

fn ours(message: &[u8]) -> Option<(u64, Vec<Seen>)> {
    let mut seen = Vec::new();
    let count = spans::read(message, |span| {
        let mut attributes = Vec::new();
        span.attributes(|key, value| attributes.push((key.to_owned(), format!("{value:?}"))));
        seen.push((span.trace_id, span.span_id, span.parent, span.name.clone(), span.start, span.end, attributes));
    });
    count.ok().map(|count| (count, seen))
}

fn theirs(message: &[u8]) -> Option<(u64, Vec<Seen>)> {
    let request = ExportTraceServiceRequest::decode(message).ok()?;
    let spans: Vec<Span> =
        request.resource_spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|scope| scope.spans).collect();
    let seen = |span: &Span| -> Option<Seen> {
        let id = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes).filter(|id| *id != 0);
        let trace_id = span.trace_id.as_slice().try_into().ok().map(u128::from_be_bytes).filter(|id| *id != 0)?;
        let attributes = span.attributes.iter().filter_map(|pair| {
            let value = match pair.value.as_ref()?.value.as_ref()? {
                Value::StringValue(text) => format!("Text({:?})", text.as_bytes()),
                Value::IntValue(whole) => format!("Int({whole})"),
                Value::DoubleValue(real) => format!("Double({real:?})"),
                _ => return None,
            };
            Some((pair.key.clone(), value))
        });
        let (start, end) = (span.start_time_unix_nano, span.end_time_unix_nano);
        let attributes = attributes.collect();
        Some((trace_id, id(&span.span_id)?, id(&span.parent_span_id), span.name.clone(), start, end, attributes))
    };
    Some((spans.len() as u64, spans.iter().filter_map(seen).collect()))
}

fn value() -> impl Strategy<Value = Option<Value>> {
    prop_oneof![
        Just(None),
        "[ -~é]{0,12}".prop_map(|text| Some(Value::StringValue(text))),
        any::<i64>().prop_map(|whole| Some(Value::IntValue(whole))),
        any::<f64>().prop_map(|real| Some(Value::DoubleValue(real))),
        any::<bool>().prop_map(|flag| Some(Value::BoolValue(flag))),
        Just(Some(Value::ArrayValue(ArrayValue { values: vec![AnyValue { value: Some(Value::IntValue(1)) }] }))),
    ]
}

fn a_span() -> impl Strategy<Value = Span> {
    let bytes = |length| prop::collection::vec(any::<u8>(), length);
    let id = |length: usize| prop_oneof![9 => bytes(length..length + 1), 1 => bytes(0..20)];
    let key = prop_oneof![
        Just("gen_ai.request.id".to_owned()),
        Just("gen_ai.latency.time_in_queue".to_owned()),
        Just("rid".to_owned()),
        "[a-z.]{0,8}"
    ];
    let pair = (key, value()).prop_map(|(key, value)| KeyValue {
        key,
        value: value.map(|value| AnyValue { value: Some(value) }),
        ..KeyValue::default()
    });
    let name = prop_oneof![Just("llm_request".to_owned()), Just(" Req 1".to_owned()), "[a-z]{0,5}"];
    (id(16), id(8), id(8), name, any::<[u64; 2]>(), prop::collection::vec(pair, 0..6)).prop_map(
        |(trace_id, span_id, parent_span_id, name, [start, end], attributes)| Span {
            trace_id,
            span_id,
            parent_span_id,
            name,
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes,
            trace_state: "a=b".to_owned(),
            events: vec![Event { name: "e".to_owned(), ..Event::default() }],
            ..Span::default()
        },
    )
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let scope = prop::collection::vec(a_span(), 0..4).prop_map(|spans| ScopeSpans { spans, ..ScopeSpans::default() });
    let resource = prop::collection::vec(scope, 0..3)
        .prop_map(|scope_spans| ResourceSpans { scope_spans, ..ResourceSpans::default() });
    prop::collection::vec(resource, 0..3)
        .prop_map(|resource_spans| ExportTraceServiceRequest { resource_spans }.encode_to_vec())
}

proptest! {
    #[test]
    fn message_is_parsed_like_prost_parses_it(message in message()) {
        prop_assert_eq!(ours(&message), theirs(&message));
    }

    /// The parser accepts every message that prost can parse, because a collector would accept it too.
    #[test]
    fn no_valid_message_is_refused(mut message in message(), cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
        for (at, byte) in cuts {
            if !message.is_empty() {
                let at = at.index(message.len());
                message[at] = byte;
            }
        }
        if let Some(theirs) = theirs(&message) {
            let ours = ours(&message);
            prop_assert!(ours.is_some());
            prop_assert_eq!(ours.map(|(count, _)| count), Some(theirs.0));
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut interpreter = Interpreter::new(4);
        spans::read(&bytes, |span| drop(interpreter.take(&span))).ok();
    }
}

/// An empty span or attribute takes two bytes, so a small message can contain very many of them.
#[test]
fn memory_for_a_message_does_not_grow_with_its_spans() {
    let attributes = Span { attributes: vec![KeyValue::default(); 100_000], ..named("llm_request", &[]) };
    for (message, count) in [(encoded(vec![Span::default(); 100_000]), 100_000), (encoded(vec![attributes]), 1)] {
        let used = allocation_counter::measure(|| {
            let mut interpreter = Interpreter::new(4);
            assert_eq!(spans::read(&message, |span| drop(interpreter.take(&span))), Ok(count));
        });
        assert!(used.bytes_max < 4096, "{used:?}");
    }
}

#[test]
fn message_is_refused_at_the_item_after_the_maximum() {
    let message = encoded(vec![named("x", &[]); spans::MAX_ITEMS]);
    let mut seen = 0;
    assert_eq!(spans::read(&message, |_| seen += 1), Err(spans::Error::TooManyItems));
    // The resource and the scope are items too.
    assert_eq!(seen, spans::MAX_ITEMS - 2);
    let attributes = Span { attributes: vec![KeyValue::default(); spans::MAX_ITEMS], ..named("llm_request", &[]) };
    let resources = ExportTraceServiceRequest { resource_spans: vec![ResourceSpans::default(); spans::MAX_ITEMS + 1] };
    for message in [encoded(vec![attributes]), resources.encode_to_vec()] {
        assert_eq!(spans::read(&message, |_| {}), Err(spans::Error::TooManyItems));
    }
}

fn encoded(spans: Vec<Span>) -> Vec<u8> {
    let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
    ExportTraceServiceRequest { resource_spans: vec![ResourceSpans { scope_spans, ..ResourceSpans::default() }] }
        .encode_to_vec()
}

fn named(name: &str, attributes: &[(&str, Value)]) -> Span {
    let pair = |(key, value): &(&str, Value)| KeyValue {
        key: (*key).to_owned(),
        value: Some(AnyValue { value: Some(value.clone()) }),
        ..KeyValue::default()
    };
    Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        parent_span_id: vec![3; 8],
        name: name.to_owned(),
        start_time_unix_nano: 1_000_000_000,
        end_time_unix_nano: 1_750_000_000,
        attributes: attributes.iter().map(pair).collect(),
        ..Span::default()
    }
}

fn take(interpreter: &mut Interpreter, span: Span) -> Option<Box<RequestSpan>> {
    let mut request = None;
    spans::read(&encoded(vec![span]), |span| request = interpreter.take(&span)).unwrap();
    request
}

fn text(text: &str) -> Value {
    Value::StringValue(text.to_owned())
}

#[test]
fn recorded_vllm_span_is_understood() {
    let span = named(
        "llm_request",
        &[
            ("gen_ai.latency.time_to_first_token", Value::DoubleValue(0.495)),
            ("gen_ai.latency.e2e", Value::DoubleValue(0.75)),
            ("gen_ai.latency.time_in_queue", Value::DoubleValue(0.464)),
            ("gen_ai.usage.prompt_tokens", Value::IntValue(16)),
            ("gen_ai.usage.completion_tokens", Value::IntValue(20)),
            ("gen_ai.latency.time_in_model_prefill", Value::DoubleValue(0.03)),
            ("gen_ai.latency.time_in_model_decode", Value::DoubleValue(0.25)),
            ("gen_ai.latency.time_in_model_inference", Value::DoubleValue(0.28)),
            ("gen_ai.request.id", text("cmpl-b103d9c3ac970ccc-0")),
        ],
    );
    let request = take(&mut Interpreter::new(1), span).unwrap();
    assert_eq!(request.id.as_deref(), Some("cmpl-b103d9c3ac970ccc"));
    assert_eq!(request.parent, Some(0x0303_0303_0303_0303));
    assert_eq!((request.reported.queue, request.reported.prefill), (Some(ms(464)), Some(ms(30))));
    assert_eq!(
        (request.reported.first_token, request.reported.e2e, request.length),
        (Some(ms(495)), Some(ms(750)), ms(750))
    );
    assert_eq!((request.reported.prompt_tokens, request.reported.completion_tokens), (Some(16), Some(20)));
}

#[test]
fn sglang_prefill_with_queue_is_ignored() {
    let rid = "2f0d8d4b1c9e4c51b1f0f5a3a0d1e2f3";
    let prefill = ("gen_ai.latency.time_in_model_prefill", Value::DoubleValue(0.5));
    let decode = ("gen_ai.latency.time_in_model_decode", Value::DoubleValue(0.2));
    let attributes = [("rid", text(rid)), prefill.clone(), decode, ("gen_ai.usage.cached_tokens", Value::IntValue(4))];
    let below = |parent: u8, mut span: Span| {
        (span.span_id, span.parent_span_id) = (vec![parent + 1; 8], vec![parent; 8]);
        span
    };
    let mut interpreter = Interpreter::new(10);
    assert_eq!(take(&mut interpreter, below(3, named("prefill_waiting", &[]))), None);
    assert_eq!(take(&mut interpreter, below(2, named("Scheduler", &[]))), None);
    assert_eq!(take(&mut interpreter, named(" Req 2f0d8d4b", &[prefill])), None, "another program's span");
    assert_eq!(take(&mut interpreter, named("decode_loop", &[])), None);
    let request = take(&mut interpreter, named(" Req 2f0d8d4b", &attributes)).unwrap();
    assert_eq!((request.id.as_deref(), request.reported.queue), (Some(rid), Some(ms(750))));
    assert_eq!((request.reported.prefill, request.reported.decode), (None, Some(ms(200))));
    assert_eq!(request.reported.cached_tokens, Some(4));
}
