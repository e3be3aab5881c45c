//! Spans of a request, sampling of traces, and exemplars.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use tokometer_decode::{EngineTiming, Route};
use tokometer_metrics::table::{Kind, Scope, TABLE};
use tokometer_observe::measure::{Blocked, Gap, Labels, Outcome, Record, Sink, Targets, TraceParent};
use tokometer_telemetry::export::protobuf::MetricFamily;
use tokometer_telemetry::export::{Endpoint, Exporters, Prometheus, Protocol, Sampler, Semconv, Settings, Traces};

use super::collector::Collector;
use super::otlp::endpoint;
use super::records::ms;
use super::text::Form;
use super::{records, text};
use crate::WAIT;

const TRACE: u128 = 0x0af7651916cd43dd8448eb211c80319c;
const CALLER: u64 = 0xb7ad6b7169203331;

fn http(collector: &Collector) -> Endpoint {
    endpoint(format!("http://127.0.0.1:{}/v1/traces", collector.port), Protocol::HttpProtobuf)
}

fn start(endpoint: Endpoint, change: impl FnOnce(&mut Traces)) -> Arc<Exporters> {
    let mut settings = records::settings();
    settings.traces.endpoint = Some(endpoint);
    change(&mut settings.traces);
    records::start(&settings).unwrap()
}

fn caller(sampled: bool) -> Option<TraceParent> {
    Some(TraceParent { trace_id: TRACE, span_id: CALLER, sampled })
}

/// The spans that a collector receives for these records.
fn spans(change: impl FnOnce(&mut Traces), records: &[Record]) -> Vec<Span> {
    let collector = Collector::http();
    let exporters = start(http(&collector), change);
    for record in records {
        exporters.record(&Arc::new(record.clone()));
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
fn request_is_a_server_span_with_timed_phases() {
    let mut record = records::good("llama");
    record.request.trace = caller(true);
    record.blocked = Blocked { finishing: ms(5), intervals: vec![(ms(1212), ms(1217))], ..Blocked::default() };
    let before = SystemTime::now();
    let spans = spans(|_| {}, &[record]);
    assert_eq!(spans.len(), 8);
    let server = &spans[0];
    assert_eq!(server.name, "chat llama");
    assert_eq!(server.kind, SpanKind::Server as i32);
    assert_eq!(server.trace_id, TRACE.to_be_bytes());
    assert_eq!(server.parent_span_id, CALLER.to_be_bytes());
    assert_eq!(server.end_time_unix_nano - server.start_time_unix_nano, 1_220_000_000);
    let wall = before.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(server.start_time_unix_nano.abs_diff(wall) < 1_000_000_000, "times must be wall-clock times");
    let phases = [
        ("request", 0, 10),
        ("preprocessing", 10, 20),
        ("queue", 20, 60),
        ("prefill", 60, 210),
        ("decode", 210, 1210),
        ("finish", 1210, 1220),
        ("delivery_blocked", 1212, 1217),
    ];
    for (name, from, to) in phases {
        let span = child(&spans, name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(span.parent_span_id, server.span_id, "{name}");
        assert_eq!(span.trace_id, server.trace_id, "{name}");
        assert_eq!(span.kind, SpanKind::Internal as i32, "{name}");
        assert_eq!(span.start_time_unix_nano - server.start_time_unix_nano, from * 1_000_000, "{name}");
        assert_eq!(span.end_time_unix_nano - server.start_time_unix_nano, to * 1_000_000, "{name}");
    }
    let ids: BTreeSet<_> = spans.iter().map(|span| span.span_id.clone()).collect();
    assert_eq!(ids.len(), 8);
    assert_eq!(attributes(child(&spans, "queue").unwrap())["tokometer.queue.source"], "in_band");
    assert_eq!(attributes(child(&spans, "decode").unwrap())["gen_ai.usage.output_tokens"], "101");
}

#[test]
fn server_span_has_the_conventions_attributes() {
    let spans = spans(|_| {}, &[records::good("llama")]);
    assert_eq!(spans[0].parent_span_id, Vec::<u8>::new(), "a root");
    let sent = attributes(&spans[0]);
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
        assert_eq!(sent.get(key).map(String::as_str), Some(value), "{key}");
    }
    assert!(sent["gen_ai.response.finish_reasons"].contains("stop"));
    assert!(!sent.contains_key("error.type") && !sent.contains_key("gen_ai.request.choice.count"));
    assert_eq!(spans[0].status.as_ref().map_or(0, |status| status.code), StatusCode::Unset as i32);
}

#[test]
fn span_has_the_rank_that_a_router_selected() {
    let targets = Some(Box::new(Targets { data_parallel_rank: Some(3), ..Targets::default() }));
    let spans = spans(|_| {}, &[records::good("llama").with(|r| r.request.targets = targets)]);
    assert_eq!(attributes(&spans[0]).get("tokometer.data_parallel_rank").map(String::as_str), Some("3"));
}

/// Checks the kinds of tokens that an engine may report, under the attribute names of each version of the conventions.
#[test]
fn server_span_has_reported_token_kinds() {
    let reported = |semconv, record: Record| {
        let collector = Collector::http();
        let mut settings = Settings { semconv, ..records::settings() };
        settings.traces.endpoint = Some(http(&collector));
        let exporters = records::start(&settings).unwrap();
        exporters.record(&Arc::new(record));
        assert!(exporters.flush(WAIT));
        let mut sent = attributes(&collector.spans()[0]);
        sent.retain(|key, _| key.contains("cache_") || key.contains("audio") || key.contains("image"));
        sent.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
    };
    let mixed = records::good("m").with(|r| {
        r.tokens.parts.cache_creation = Some(300);
        r.tokens.parts.input_audio = Some(150);
        r.tokens.parts.input_image = Some(0);
        r.tokens.parts.output_audio = Some(31);
    });
    let own = [
        "gen_ai.usage.audio.input_tokens=150",
        "gen_ai.usage.audio.output_tokens=31",
        "gen_ai.usage.cache_creation.input_tokens=300",
        "gen_ai.usage.cache_read.input_tokens=600",
        "gen_ai.usage.cache_write.input_tokens=300",
        "gen_ai.usage.image.input_tokens=0",
    ];
    let without = |name| own.into_iter().filter(|sent| !sent.contains(name)).collect::<Vec<_>>();
    assert_eq!(reported(Semconv::Both, mixed.clone()), own);
    assert_eq!(reported(Semconv::V1_41, mixed.clone()), without("cache_write"));
    assert_eq!(reported(Semconv::Latest, mixed), without("cache_creation"));
    assert_eq!(reported(Semconv::Both, records::good("m")), ["gen_ai.usage.cache_read.input_tokens=600"]);
}

#[test]
fn truncated_stream_is_an_error_with_finish_reasons() {
    let mut record = records::cut("llama");
    record.request.choices = 2;
    let spans = spans(|_| {}, &[record]);
    let status = spans[0].status.as_ref().unwrap();
    assert_eq!(status.code, StatusCode::Error as i32);
    assert!(status.message.ends_with("or ended the stream without its end marker."), "{}", status.message);
    let sent = attributes(&spans[0]);
    assert_eq!(sent["error.type"], "truncated");
    assert_eq!(sent["gen_ai.response.finish_reasons"].matches("error").count(), 2);
    assert_eq!(sent["tokometer.output_tokens"], "5");
    assert_eq!(sent["tokometer.output_tokens.source"], "deltas_lower_bound");
    assert!(!sent.contains_key("gen_ai.usage.output_tokens"), "a lower bound must not be reported as usage");
}

#[test]
fn request_aborted_before_first_token_shows_its_wait() {
    let spans = spans(|_| {}, &[records::gave_up("llama")]);
    let waiting = child(&spans, "waiting").unwrap();
    assert_eq!(waiting.end_time_unix_nano, spans[0].end_time_unix_nano);
    assert_eq!(waiting.end_time_unix_nano - waiting.start_time_unix_nano, 5_000_000_000);
    assert!(["queue", "prefill", "decode", "finish"].iter().all(|name| child(&spans, name).is_none()));
}

#[test]
fn caller_decision_applies_unless_failed_or_slow() {
    let good = |trace| records::good("m").with(|r| r.request.trace = trace);
    let failed = records::cut("m").with(|r| r.request.trace = caller(false));
    let slow = good(caller(false)).with(|r| {
        r.times.first_token = Some(ms(11_000));
        r.times.ended = ms(12_000);
    });
    let long = good(caller(false)).with(|r| r.times.ended = ms(60_000));
    let silent = records::gave_up("m").with(|r| {
        r.request.trace = caller(false);
        r.outcome = Outcome::Ok;
        r.times.ended = ms(11_000);
    });
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
    assert!(!kept(off, &long), "a long response is not a slow first token");
    assert!(kept(off, &silent) && !kept(bare, &silent), "without a token, the whole wait counts");
}

#[test]
fn ratio_sampler_keeps_by_trace_id() {
    let with = |trace_id| {
        records::good("m").with(|r| r.request.trace = Some(TraceParent { trace_id, span_id: CALLER, sampled: false }))
    };
    let quarter = |traces: &mut Traces| {
        traces.sampler = Sampler::Ratio(0.25);
        traces.parent_based = false;
    };
    // The sampler compares the lower 64 bits of the trace id, shifted right by one, with 2^63 times the ratio.
    let kept = spans(quarter, &[with(1), with(u128::from(u64::MAX / 4)), with(u128::from(u64::MAX / 4) + 2)]);
    let ids: BTreeSet<_> = kept.iter().map(|span| span.trace_id.clone()).collect();
    assert_eq!(ids.len(), 2);
    assert!(spans(|traces| traces.sampler = Sampler::Ratio(0.0), &[records::good("m")]).is_empty());
    assert!(!spans(|traces| traces.sampler = Sampler::Ratio(1.0), &[records::good("m")]).is_empty());
}

#[test]
fn unparsed_path_has_a_span_only_in_a_caller_trace() {
    let probe = records::other();
    assert!(spans(|_| {}, std::slice::from_ref(&probe)).is_empty());
    let kept = spans(
        |_| {},
        &[probe.with(|r| {
            r.request.trace = caller(true);
            r.outcome = Outcome::Ok;
        })],
    );
    assert_eq!(kept[0].name, "other");
}

#[test]
fn exemplars_point_only_to_kept_spans() {
    let collector = Collector::http();
    let exporters = start(http(&collector), |traces| traces.sampler = Sampler::Ratio(0.5));
    for n in 0..200 {
        let trace = (n % 2 == 0).then(|| TraceParent { trace_id: n + 1, span_id: 7, sampled: n % 4 == 0 });
        exporters.record(&Arc::new(records::good("m").with(|r| {
            r.request.trace = trace;
            r.times.ended = ms(300 + n as u64 * 40);
        })));
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
    assert_eq!((classic, native), (exemplars.len(), exemplars.len()), "the protobuf format has each exemplar twice");
    assert!(!text::parse(&String::from_utf8(exporters.scrape(None).body).unwrap(), Form::Plain).samples.is_empty());
}

#[test]
fn without_exporter_exemplars_point_to_the_caller_span() {
    let exporters = records::start(&records::settings()).unwrap();
    exporters.record(&Arc::new(records::good("m")));
    exporters.record(&Arc::new(records::good("m").with(|r| r.request.trace = caller(false))));
    let page = |accept| String::from_utf8(exporters.scrape(Some(accept)).body).unwrap();
    assert!(text::parse(&page("application/openmetrics-text"), Form::OpenMetrics).exemplars.is_empty());
    exporters.record(&Arc::new(records::good("m").with(|r| r.request.trace = caller(true))));
    let exemplars = text::parse(&page("application/openmetrics-text"), Form::OpenMetrics).exemplars;
    assert!(!exemplars.is_empty());
    assert!(exemplars.iter().all(|e| e.labels["trace_id"] == format!("{TRACE:032x}")));
    assert!(exemplars.iter().all(|e| e.labels["span_id"] == format!("{CALLER:016x}")));
    let settings =
        Settings { prometheus: Prometheus { exemplars: false, ..Prometheus::default() }, ..records::settings() };
    let without = records::start(&settings).unwrap();
    without.record(&Arc::new(records::good("m").with(|r| r.request.trace = caller(true))));
    let page = String::from_utf8(without.scrape(Some("application/openmetrics-text")).body).unwrap();
    assert!(text::parse(&page, Form::OpenMetrics).exemplars.is_empty());
}

#[test]
fn unstreamed_response_has_engine_reported_phases() {
    let labels = Labels { streaming: Some(false), route: Route::Completions, ..records::labels("m") };
    let record = records::good("m").with(|r| {
        r.labels = Arc::new(labels);
        r.engine.queue = None;
    });
    let names = |record: &Record| -> Vec<String> {
        spans(|_| {}, std::slice::from_ref(record)).into_iter().map(|span| span.name).collect()
    };
    assert_eq!(names(&record), ["text_completion m", "request", "processing", "prefill", "decode"]);
    let silent = record.clone().with(|r| r.engine.timing = EngineTiming::default());
    assert_eq!(names(&silent), ["text_completion m", "request", "processing"]);
    let at_once = silent.with(|r| r.times.requested = Some(Duration::ZERO));
    assert_eq!(names(&at_once), ["text_completion m"], "a single phase that is the whole request is omitted");
    let sent = attributes(&spans(|_| {}, &[record])[0]);
    assert!(!sent.contains_key("gen_ai.response.time_to_first_chunk"));
    assert_eq!(sent["gen_ai.request.stream"], "true", "the client requested a stream, regardless of the response");
}

#[test]
fn failed_or_stalled_request_is_kept_with_reason() {
    let stalled = records::good("m").with(|r| {
        r.gaps.stalls = Some(1);
        r.request.trace = caller(false);
    });
    let failed = records::cut("m").with(|r| r.request.trace = caller(false));
    let kept = |change: fn(&mut Traces), record: &Record| {
        let spans = spans(change, std::slice::from_ref(record));
        spans.first().map(|span| attributes(span).get("tokometer.trace.kept").cloned())
    };
    let why = |word: &str| Some(Some(word.to_owned()));
    assert_eq!(kept(|_| {}, &stalled), why("stalled"));
    assert_eq!(kept(|_| {}, &failed), why("failed"));
    assert_eq!(kept(|traces| traces.keep_stalled = false, &stalled), None);
    assert_eq!(kept(|traces| traces.keep_unsampled = false, &failed), None, "the caller's decision applies");
    let own = failed.clone().with(|r| r.request.trace = None);
    let quiet: fn(&mut Traces) = |traces| (traces.keep_unsampled, traces.sampler) = (false, Sampler::AlwaysOff);
    assert_eq!(kept(quiet, &own), why("failed"), "no caller decided");
    assert_eq!(kept(|_| {}, &own), Some(None), "the sampler keeps it anyway");
}

#[test]
fn request_that_broke_an_objective_is_kept() {
    let collector = Collector::http();
    let exporters = start(http(&collector), |traces| traces.sampler = Sampler::AlwaysOff);
    exporters.record(&Arc::new(records::good("slow")));
    exporters.keep_when(|record| record.labels.request_model.as_deref() == Some("slow"));
    for model in ["quick", "slow"] {
        exporters.record(&Arc::new(records::good(model)));
    }
    assert!(exporters.flush(WAIT));
    let servers: Vec<_> = collector.spans().into_iter().filter(|span| span.kind == SpanKind::Server as i32).collect();
    assert_eq!(servers.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["chat slow"]);
    assert_eq!(attributes(&servers[0])["tokometer.trace.kept"], "objective");
}

#[test]
fn traces_over_the_cap_are_dropped_and_counted() {
    let collector = Collector::http();
    let exporters = start(http(&collector), |traces| {
        traces.sampler = Sampler::AlwaysOff;
        traces.keep_per_second = Some(3);
    });
    let started = std::time::Instant::now();
    for n in 0..50 {
        exporters.record(&Arc::new(records::cut("m").with(|r| {
            r.started = started;
            r.times.ended = ms(260 + n * 4);
        })));
    }
    assert!(exporters.flush(WAIT));
    let kept: BTreeSet<_> = collector.spans().into_iter().map(|span| span.trace_id).collect();
    assert_eq!(kept.len(), 3);
    let page = String::from_utf8(exporters.scrape(Some("application/openmetrics-text")).body).unwrap();
    let page = text::parse(&page, Form::OpenMetrics);
    let count = |name: &str, reason: Option<&str>| -> f64 {
        let is = |labels: &BTreeMap<String, String>| labels.get("reason").map(String::as_str) == reason;
        page.samples.iter().filter(|((have, labels), _)| have == name && is(labels)).map(|(_, n)| *n).sum()
    };
    assert_eq!(count("tokometer_telemetry_traces_kept_total", Some("failed")), 3.0);
    assert_eq!(count("tokometer_telemetry_traces_kept_total", Some("stalled")), 0.0);
    assert_eq!(count("tokometer_telemetry_traces_capped_total", None), 47.0);
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let kept: BTreeSet<String> = kept.iter().map(hex).collect();
    assert!(!page.exemplars.is_empty());
    assert!(page.exemplars.iter().all(|exemplar| kept.contains(&exemplar.labels["trace_id"])));
}

/// Every request histogram in seconds has an exemplar. Histograms by tenant are not checked: they repeat the others.
#[test]
fn every_latency_histogram_has_an_exemplar() {
    let exporters = records::start(&records::settings()).unwrap();
    let reported = Gap { gap: ms(12), tokens: Some(1) };
    exporters.live(&records::labels("m")).unwrap().progress(&[reported], 2);
    let blocked = Blocked { decoding: ms(3), ..Blocked::default() };
    let trace = caller(true);
    exporters.record(&Arc::new(records::good("m").with(|r| {
        r.request.trace = trace;
        r.blocked = blocked;
    })));
    exporters.record(&Arc::new(records::gave_up("m").with(|r| r.request.trace = trace)));
    let page = String::from_utf8(exporters.scrape(Some("application/openmetrics-text")).body).unwrap();
    let parsed = text::parse(&page, Form::OpenMetrics);
    let have: BTreeSet<&str> = parsed.exemplars.iter().map(|exemplar| exemplar.sample.as_str()).collect();
    let of_requests = TABLE.iter().filter(|metric| matches!(metric.scope, Scope::GenAi | Scope::Request));
    for metric in of_requests.filter(|metric| metric.kind == Kind::Histogram && metric.unit == "s") {
        let name = format!("{}_bucket", metric.prometheus().full());
        assert!(metric.exemplar && have.contains(name.as_str()), "no exemplar on {name}");
    }
    let gap = parsed.exemplars.iter().find(|e| e.sample == "tokometer_inter_token_latency_seconds_bucket").unwrap();
    assert_eq!(gap.value, 0.012);
    // A gap becomes an exemplar only if its bucket has counted it. The longest gap of this record was never counted.
    let unreported = records::start(&records::settings()).unwrap();
    unreported.live(&records::labels("m")).unwrap().progress(&[Gap { gap: ms(900), tokens: Some(1) }], 2);
    unreported.record(&Arc::new(records::good("m").with(|r| r.request.trace = trace)));
    let page = String::from_utf8(unreported.scrape(Some("application/openmetrics-text")).body).unwrap();
    let parsed = text::parse(&page, Form::OpenMetrics);
    assert!(
        parsed
            .exemplars
            .iter()
            .all(|e| !e.sample.starts_with("tokometer_inter_token") && !e.sample.starts_with("tokometer_chunk_gap"))
    );
}

#[test]
fn full_batch_over_grpc_does_not_wait_for_the_delay() {
    let collector = Collector::grpc_traces();
    let url = format!("http://127.0.0.1:{}", collector.port);
    let exporters = start(endpoint(url, Protocol::Grpc), |traces| {
        traces.batch_size = 8;
        traces.schedule_delay = Duration::from_secs(3600);
    });
    for _ in 0..4 {
        exporters.record(&Arc::new(records::good("m")));
    }
    let started = std::time::Instant::now();
    while collector.spans().is_empty() {
        assert!(started.elapsed() < WAIT);
        std::thread::yield_now();
    }
    assert!(exporters.flush(WAIT));
    assert_eq!(collector.spans().len(), 28);
    assert!(collector.got.lock().unwrap().heads[0].contains("gzip Bearer of-tokens"));
}

#[test]
fn batches_never_exceed_their_size() {
    let collector = Collector::http();
    let exporters = start(http(&collector), |traces| traces.batch_size = 3);
    for _ in 0..5 {
        exporters.record(&Arc::new(records::good("m")));
    }
    assert!(exporters.flush(WAIT));
    let got = collector.got.lock().unwrap();
    let scopes = |request: &ExportTraceServiceRequest| -> Vec<usize> {
        request.resource_spans.iter().flat_map(|r| &r.scope_spans).map(|scope| scope.spans.len()).collect()
    };
    let sizes: Vec<usize> = got.traces.iter().map(|request| scopes(request).iter().sum()).collect();
    assert!(sizes.iter().all(|size| (1..=3).contains(size)), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 35);
}

/// Counts the gRPC calls on this listener, and responds with `INTERNAL` and details that are not valid base64.
async fn respond_with_invalid_details(listener: std::net::TcpListener, calls: Arc<AtomicUsize>) {
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((_, mut respond))) = connection.accept().await {
            calls.fetch_add(1, Ordering::Relaxed);
            let response = http::Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", "13")
                .header("grpc-status-details-bin", "%%%");
            respond.send_response(response.body(()).unwrap(), true).unwrap();
        }
    }
}

#[test]
fn invalid_status_details_do_not_stop_the_exporter() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let calls = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&calls);
    std::thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(respond_with_invalid_details(listener, counted));
    });
    let exporters = start(endpoint(url, Protocol::Grpc), |_| {});
    for call in 1..=2 {
        exporters.record(&Arc::new(records::good("m")));
        assert!(!exporters.flush(WAIT));
        assert_eq!(calls.load(Ordering::Relaxed), call);
    }
}
