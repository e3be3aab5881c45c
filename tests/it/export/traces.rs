//! The spans of an exchange, which are kept, and what exemplars point to.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;
use prost::Message;
use tokometer::decode::Route;
use tokometer::export::Endpoint;
use tokometer::export::Exporters;
use tokometer::export::Protocol;
use tokometer::export::Sampler;
use tokometer::export::Semconv;
use tokometer::export::Settings;
use tokometer::export::Traces;
use tokometer::measure::Labels;
use tokometer::measure::Outcome;
use tokometer::measure::Record;
use tokometer::measure::Sink;
use tokometer::measure::TraceParent;

use super::collector::Collector;
use super::otlp::endpoint;
use super::records;
use super::records::ms;
use super::text;
use super::text::Form;

const WAIT: Duration = Duration::from_secs(20);
const TRACE: u128 = 0x0af7651916cd43dd8448eb211c80319c;
const CALLER: u64 = 0xb7ad6b7169203331;

fn http(collector: &Collector) -> Endpoint {
    endpoint(format!("http://127.0.0.1:{}/v1/traces", collector.port), Protocol::HttpProtobuf)
}

fn start(endpoint: Endpoint, change: impl FnOnce(&mut Traces)) -> Arc<Exporters> {
    let mut settings = records::settings();
    settings.traces.endpoint = Some(endpoint);
    change(&mut settings.traces);
    Exporters::start(&settings, Arc::new(records::Still)).unwrap()
}

fn caller(sampled: bool) -> Option<TraceParent> {
    Some(TraceParent { trace_id: TRACE, span_id: CALLER, sampled })
}

/// The spans that a collector gets of these records.
fn spans(change: impl FnOnce(&mut Traces), records: &[Record]) -> Vec<Span> {
    let collector = Collector::http();
    let exporters = start(http(&collector), change);
    for record in records {
        exporters.record(record);
    }
    assert!(exporters.flush(WAIT));
    collector.spans()
}

fn attributes(span: &Span) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(n) => n.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        Value::DoubleValue(n) => n.to_string(),
        Value::ArrayValue(all) => format!("{:?}", all.values.iter().map(|v| v.value.clone()).collect::<Vec<_>>()),
        other => panic!("{other:?}"),
    };
    let value = |kv: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        text(kv.value.as_ref().unwrap().value.as_ref().unwrap())
    };
    span.attributes.iter().map(|kv| (kv.key.clone(), value(kv))).collect()
}

fn child<'a>(spans: &'a [Span], name: &str) -> Option<&'a Span> {
    spans.iter().find(|span| span.name == name)
}

#[test]
fn an_exchange_is_a_server_span_with_its_phases_at_their_true_times() {
    let mut record = records::good("llama");
    record.trace = caller(true);
    record.delivery_blocked = ms(5);
    let before = SystemTime::now();
    let spans = spans(|_| {}, &[record]);
    assert_eq!(spans.len(), 5);
    let server = &spans[0];
    assert_eq!(server.name, "chat llama");
    assert_eq!(server.kind, SpanKind::Server as i32);
    assert_eq!(server.trace_id, TRACE.to_be_bytes());
    assert_eq!(server.parent_span_id, CALLER.to_be_bytes());
    assert_eq!(server.end_time_unix_nano - server.start_time_unix_nano, 1_220_000_000);
    let wall = before.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(server.start_time_unix_nano.abs_diff(wall) < 1_000_000_000, "the times are wall-clock times");
    let phases = [("queue", 10, 50), ("prefill", 50, 210), ("decode", 210, 1210), ("delivery", 1210, 1220)];
    for (name, from, to) in phases {
        let span = child(&spans, name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(span.parent_span_id, server.span_id, "{name}");
        assert_eq!(span.trace_id, server.trace_id, "{name}");
        assert_eq!(span.kind, SpanKind::Internal as i32, "{name}");
        assert_eq!(span.start_time_unix_nano - server.start_time_unix_nano, from * 1_000_000, "{name}");
        assert_eq!(span.end_time_unix_nano - server.start_time_unix_nano, to * 1_000_000, "{name}");
    }
    let ids: BTreeSet<_> = spans.iter().map(|span| span.span_id.clone()).collect();
    assert_eq!(ids.len(), 5);
}

#[test]
fn the_server_span_says_what_the_conventions_ask_for() {
    let spans = spans(|_| {}, &[records::good("llama")]);
    assert_eq!(spans[0].parent_span_id, Vec::<u8>::new(), "a root");
    let said = attributes(&spans[0]);
    let expected = [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "vllm"),
        ("gen_ai.request.model", "llama"),
        ("gen_ai.request.stream", "true"),
        ("gen_ai.request.max_tokens", "256"),
        ("gen_ai.response.id", "chatcmpl-1"),
        ("gen_ai.response.time_to_first_chunk", "0.1"),
        ("gen_ai.usage.input_tokens", "1000"),
        ("gen_ai.usage.output_tokens", "101"),
        ("gen_ai.usage.cache_read.input_tokens", "600"),
        ("gen_ai.usage.reasoning.output_tokens", "20"),
        ("gen_ai.latency.time_in_queue", "0.04"),
        ("gen_ai.latency.time_to_first_token", "0.2"),
        ("gen_ai.latency.e2e", "1.21"),
        ("gen_ai.latency.time_in_model_prefill", "0.15"),
        ("gen_ai.latency.time_in_model_decode", "1"),
        ("gen_ai.latency.time_in_model_inference", "1.15"),
        ("server.address", "127.0.0.1"),
        ("server.port", "8001"),
        ("http.response.status_code", "200"),
        ("tokometer.outcome", "ok"),
    ];
    for (key, value) in expected {
        assert_eq!(said.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(said["gen_ai.response.finish_reasons"].contains("stop"));
    assert!(!said.contains_key("error.type") && !said.contains_key("gen_ai.request.choice.count"));
    assert_eq!(spans[0].status.as_ref().map_or(0, |status| status.code), StatusCode::Unset as i32);
}

/// The kinds of tokens that an engine may tell, with the names of each generation of the conventions.
#[test]
fn the_server_span_tells_kinds_of_tokens_where_the_engine_did() {
    let told = |semconv, record: Record| {
        let collector = Collector::http();
        let mut settings = Settings { semconv, ..records::settings() };
        settings.traces.endpoint = Some(http(&collector));
        let exporters = Exporters::start(&settings, Arc::new(records::Still)).unwrap();
        exporters.record(&record);
        assert!(exporters.flush(WAIT));
        let mut said = attributes(&collector.spans()[0]);
        said.retain(|key, _| key.contains("cache_") || key.contains("audio") || key.contains("image"));
        said.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
    };
    let mixed = Record {
        cache_creation_tokens: Some(300),
        input_audio_tokens: Some(150),
        input_image_tokens: Some(0),
        output_audio_tokens: Some(31),
        ..records::good("m")
    };
    let own = [
        "gen_ai.usage.audio.input_tokens=150",
        "gen_ai.usage.audio.output_tokens=31",
        "gen_ai.usage.cache_creation.input_tokens=300",
        "gen_ai.usage.cache_read.input_tokens=600",
        "gen_ai.usage.cache_write.input_tokens=300",
        "gen_ai.usage.image.input_tokens=0",
    ];
    let without = |name| own.into_iter().filter(|said| !said.contains(name)).collect::<Vec<_>>();
    assert_eq!(told(Semconv::Both, mixed.clone()), own);
    assert_eq!(told(Semconv::V1_41, mixed.clone()), without("cache_write"));
    assert_eq!(told(Semconv::Latest, mixed), without("cache_creation"));
    assert_eq!(told(Semconv::Both, records::good("m")), ["gen_ai.usage.cache_read.input_tokens=600"]);
}

#[test]
fn a_cut_stream_is_an_error_and_its_missing_finish_reasons_are_too() {
    let mut record = records::cut("llama");
    record.choices = 2;
    let spans = spans(|_| {}, &[record]);
    let status = spans[0].status.as_ref().unwrap();
    assert_eq!(status.code, StatusCode::Error as i32);
    assert_eq!(status.message, "the answer ended before its end mark");
    let said = attributes(&spans[0]);
    assert_eq!(said["error.type"], "truncated");
    assert_eq!(said["gen_ai.response.finish_reasons"].matches("error").count(), 2);
    assert_eq!(said["tokometer.output_tokens"], "5");
    assert_eq!(said["tokometer.output_tokens.source"], "deltas_lower_bound");
    assert!(!said.contains_key("gen_ai.usage.output_tokens"), "a lower bound is no usage");
}

#[test]
fn who_gave_up_before_the_first_token_shows_how_long_the_prefill_was() {
    let spans = spans(|_| {}, &[records::gave_up("llama")]);
    let prefill = child(&spans, "prefill").unwrap();
    assert_eq!(prefill.end_time_unix_nano, spans[0].end_time_unix_nano);
    assert_eq!(prefill.end_time_unix_nano - prefill.start_time_unix_nano, 5_000_000_000);
    assert!(child(&spans, "decode").is_none());
}

#[test]
fn the_callers_decision_is_followed_unless_the_exchange_failed_or_was_slow() {
    let good = |trace| Record { trace, ..records::good("m") };
    let failed = Record { trace: caller(false), ..records::cut("m") };
    let slow = Record { first_token: Some(ms(11_000)), ended: ms(12_000), ..good(caller(false)) };
    let long = Record { ended: ms(60_000), ..good(caller(false)) };
    let silent = Record { trace: caller(false), outcome: Outcome::Ok, ended: ms(11_000), ..records::gave_up("m") };
    let kept = |change: fn(&mut Traces), record: &Record| !spans(change, std::slice::from_ref(record)).is_empty();
    let off: fn(&mut Traces) = |traces| traces.sampler = Sampler::AlwaysOff;
    let bare: fn(&mut Traces) = |traces| {
        traces.sampler = Sampler::AlwaysOff;
        traces.keep_failed = false;
        traces.keep_first_token_over = None;
    };
    let own: fn(&mut Traces) = |traces| traces.parent_based = false;
    assert!(kept(off, &good(caller(true))));
    assert!(!kept(off, &good(caller(false))));
    assert!(!kept(off, &good(None)));
    assert!(kept(|_| {}, &good(None)));
    assert!(!kept(|_| {}, &good(caller(false))));
    assert!(kept(own, &good(caller(false))));
    assert!(kept(off, &failed) && !kept(bare, &failed));
    assert!(kept(off, &slow) && !kept(bare, &slow));
    assert!(!kept(off, &long), "a long answer is not a slow first token");
    assert!(kept(off, &silent) && !kept(bare, &silent), "none came for as long");
}

#[test]
fn a_share_is_kept_by_trace_id() {
    let with = |trace_id| Record {
        trace: Some(TraceParent { trace_id, span_id: CALLER, sampled: false }),
        ..records::good("m")
    };
    let quarter = |traces: &mut Traces| {
        traces.sampler = Sampler::Ratio(0.25);
        traces.parent_based = false;
    };
    // The lower 64 bits, less their lowest, are compared with 2^63 times the share.
    let kept = spans(quarter, &[with(1), with(u128::from(u64::MAX / 4)), with(u128::from(u64::MAX / 4) + 2)]);
    let ids: BTreeSet<_> = kept.iter().map(|span| span.trace_id.clone()).collect();
    assert_eq!(ids.len(), 2);
    assert!(spans(|traces| traces.sampler = Sampler::Ratio(0.0), &[records::good("m")]).is_empty());
    assert!(!spans(|traces| traces.sampler = Sampler::Ratio(1.0), &[records::good("m")]).is_empty());
}

#[test]
fn a_path_that_is_not_read_has_a_span_only_in_a_callers_trace() {
    let probe = records::other();
    assert!(spans(|_| {}, std::slice::from_ref(&probe)).is_empty());
    let kept = spans(|_| {}, &[Record { trace: caller(true), outcome: Outcome::Ok, ..probe }]);
    assert_eq!(kept[0].name, "other");
}

#[test]
fn exemplars_point_to_kept_spans_alone() {
    let collector = Collector::http();
    let exporters = start(http(&collector), |traces| traces.sampler = Sampler::Ratio(0.5));
    for n in 0..200 {
        let trace = (n % 2 == 0).then(|| TraceParent { trace_id: n + 1, span_id: 7, sampled: n % 4 == 0 });
        exporters.record(&Record { trace, ended: ms(300 + n as u64 * 40), ..records::good("m") });
    }
    let page = String::from_utf8(exporters.scrape(Some("application/openmetrics-text")).body).unwrap();
    assert!(exporters.flush(WAIT));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let spans = collector.spans();
    let kept: BTreeSet<_> = spans.iter().map(|span| (hex(&span.trace_id), hex(&span.span_id))).collect();
    let exemplars = text::parse(&page, Form::OpenMetrics).exemplars;
    assert!(exemplars.len() > 10);
    for exemplar in &exemplars {
        let ids = (exemplar.labels["trace_id"].clone(), exemplar.labels["span_id"].clone());
        assert!(kept.contains(&ids), "{exemplar:?}");
    }
    assert!(exemplars.iter().any(|e| e.sample == "gen_ai_server_request_duration_seconds_bucket"));
    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let body = exporters.scrape(Some(protobuf)).body;
    let (mut rest, mut classic, mut native) = (body.as_slice(), 0, 0);
    while !rest.is_empty() {
        let family = MetricFamily::decode_length_delimited(&mut rest).unwrap();
        for histogram in family.metric.iter().filter_map(|metric| metric.histogram.as_ref()) {
            classic += histogram.bucket.iter().filter(|bucket| bucket.exemplar.is_some()).count();
            native += histogram.exemplars.len();
        }
    }
    assert_eq!((classic, native), (exemplars.len(), exemplars.len()), "the protobuf form has them twice");
    assert!(!text::parse(&String::from_utf8(exporters.scrape(None).body).unwrap(), Form::Plain).samples.is_empty());
}

#[test]
fn without_an_exporter_exemplars_point_to_the_callers_kept_span() {
    let exporters = Exporters::start(&records::settings(), Arc::new(records::Still)).unwrap();
    exporters.record(&records::good("m"));
    exporters.record(&Record { trace: caller(false), ..records::good("m") });
    let page = |accept| String::from_utf8(exporters.scrape(Some(accept)).body).unwrap();
    assert!(text::parse(&page("application/openmetrics-text"), Form::OpenMetrics).exemplars.is_empty());
    exporters.record(&Record { trace: caller(true), ..records::good("m") });
    let exemplars = text::parse(&page("application/openmetrics-text"), Form::OpenMetrics).exemplars;
    assert!(!exemplars.is_empty());
    assert!(exemplars.iter().all(|e| e.labels["trace_id"] == format!("{TRACE:032x}")));
    assert!(exemplars.iter().all(|e| e.labels["span_id"] == format!("{CALLER:016x}")));
    let settings = Settings { exemplars: false, ..records::settings() };
    let without = Exporters::start(&settings, Arc::new(records::Still)).unwrap();
    without.record(&Record { trace: caller(true), ..records::good("m") });
    let page = String::from_utf8(without.scrape(Some("application/openmetrics-text")).body).unwrap();
    assert!(text::parse(&page, Form::OpenMetrics).exemplars.is_empty());
}

#[test]
fn a_whole_answer_has_no_phases_of_tokens() {
    let labels = Labels { streaming: Some(false), route: Route::Completions, ..records::labels("m") };
    let spans = spans(|_| {}, &[Record { labels: Arc::new(labels), queue: None, ..records::good("m") }]);
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].name, "text_completion m");
    assert!(!attributes(&spans[0]).contains_key("gen_ai.response.time_to_first_chunk"));
}

#[test]
fn spans_go_over_grpc_and_a_full_batch_does_not_wait_for_the_delay() {
    let collector = Collector::grpc_traces();
    let url = format!("http://127.0.0.1:{}", collector.port);
    let exporters = start(endpoint(url, Protocol::Grpc), |traces| {
        traces.batch_size = 8;
        traces.schedule_delay = Duration::from_secs(3600);
    });
    for _ in 0..4 {
        exporters.record(&records::good("m"));
    }
    let started = std::time::Instant::now();
    while collector.spans().is_empty() {
        assert!(started.elapsed() < WAIT);
        std::thread::yield_now();
    }
    assert!(exporters.flush(WAIT));
    assert_eq!(collector.spans().len(), 16);
    assert!(collector.got.lock().unwrap().heads[0].contains("gzip Bearer of-tokens"));
}

#[test]
fn no_batch_is_over_its_size_and_what_an_exchange_gives_over_it_comes_with_the_next() {
    let collector = Collector::http();
    let exporters = start(http(&collector), |traces| traces.batch_size = 3);
    for _ in 0..5 {
        exporters.record(&records::good("m"));
    }
    assert!(exporters.flush(WAIT));
    let got = collector.got.lock().unwrap();
    let scopes = |request: &ExportTraceServiceRequest| -> Vec<usize> {
        request.resource_spans.iter().flat_map(|r| &r.scope_spans).map(|scope| scope.spans.len()).collect()
    };
    let sizes: Vec<usize> = got.traces.iter().map(|request| scopes(request).iter().sum()).collect();
    assert!(sizes.iter().all(|size| (1..=3).contains(size)), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 20);
}
