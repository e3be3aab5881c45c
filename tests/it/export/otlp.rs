//! OTLP export: a collector receives the same data as a scraper.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::{ExportTracePartialSuccess, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric, number_data_point};
use prost::Message;
use tokometer_observe::measure::Sink;
use tokometer_telemetry::export::{Endpoint, Exporters, Metrics, Protocol, Semconv, Settings, Temporality};

use super::collector::Collector;
use super::text::{Form, Samples};
use super::{classes, records, text};
use crate::WAIT;
use crate::pod_end::until;

pub(crate) fn endpoint(url: String, protocol: Protocol) -> Endpoint {
    Endpoint {
        url,
        protocol,
        headers: vec![("authorization".to_owned(), "Bearer of-tokens".to_owned())],
        gzip: true,
        timeout: WAIT,
        ca: None,
        identity: None,
    }
}

fn settings(endpoint: Endpoint) -> Settings {
    Settings {
        semconv: Semconv::Both,
        metrics: Metrics { endpoint: Some(endpoint), ..Settings::default().metrics },
        ..records::settings()
    }
}

/// The name that Prometheus gives to a metric received over OTLP. This code is independent of the exporter.
fn translated(metric: &Metric, counter: bool) -> String {
    let unit = match metric.unit.as_str() {
        "s" => "_seconds",
        "By" => "_bytes",
        "{token}/s" => "_per_second",
        "1" if !counter => "_ratio",
        _ => "",
    };
    format!("{}{unit}{}", metric.name.replace('.', "_"), if counter { "_total" } else { "" })
}

fn word(value: &Option<AnyValue>) -> String {
    match value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(n) => n.to_string(),
        Value::BoolValue(flag) => flag.to_string(),
        other => panic!("{other:?} in an attribute of a metric"),
    }
}

fn labels(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    attributes.iter().map(|kv| (kv.key.replace('.', "_"), word(&kv.value))).collect()
}

/// The values that a backend stores after these exports: sums of deltas, or the latest cumulative values.
fn backend_values(collector: &Collector, exponential: bool) -> Samples {
    let mut held = Samples::new();
    let got = collector.got.lock().unwrap();
    for request in &got.metrics {
        for resource in &request.resource_metrics {
            let attributes = labels(&resource.resource.as_ref().unwrap().attributes);
            assert_eq!(attributes["k8s_pod_name"], "vllm-0");
            for metric in resource.scope_metrics.iter().flat_map(|scope| &scope.metrics) {
                take(metric, exponential, &mut held);
            }
        }
    }
    held
}

fn take(metric: &Metric, exponential: bool, held: &mut Samples) {
    let mut put = |name: String, labels: BTreeMap<String, String>, value: f64, delta: bool| {
        let place = held.entry((name, labels)).or_insert(0.0);
        *place = if delta { *place + value } else { value };
    };
    let delta = |temporality: i32| temporality == AggregationTemporality::Delta as i32;
    let number = |value: &Option<number_data_point::Value>| match value.unwrap() {
        number_data_point::Value::AsDouble(n) => n,
        number_data_point::Value::AsInt(n) => n as f64,
    };
    match metric.data.as_ref().unwrap() {
        Data::Gauge(gauge) => {
            for point in &gauge.data_points {
                put(translated(metric, false), labels(&point.attributes), number(&point.value), false);
            }
        }
        Data::Sum(sum) => {
            for point in &sum.data_points {
                let name = translated(metric, sum.is_monotonic);
                put(name, labels(&point.attributes), number(&point.value), delta(sum.aggregation_temporality));
            }
        }
        Data::Histogram(histogram) => {
            assert!(!exponential, "{}", metric.name);
            let name = translated(metric, false);
            let delta = delta(histogram.aggregation_temporality);
            for point in &histogram.data_points {
                let labels = labels(&point.attributes);
                put(format!("{name}_count"), labels.clone(), point.count as f64, delta);
                put(format!("{name}_sum"), labels.clone(), point.sum.unwrap(), delta);
                let mut below = 0;
                for (at, count) in point.bucket_counts.iter().enumerate() {
                    below += count;
                    let mut labels = labels.clone();
                    let bound = point.explicit_bounds.get(at).map_or("+Inf".to_owned(), |bound| format!("{bound:?}"));
                    labels.insert("le".to_owned(), bound);
                    put(format!("{name}_bucket"), labels, below as f64, delta);
                }
            }
        }
        Data::ExponentialHistogram(histogram) => {
            assert!(exponential, "{}", metric.name);
            let name = translated(metric, false);
            let delta = delta(histogram.aggregation_temporality);
            for point in &histogram.data_points {
                let labels = labels(&point.attributes);
                let buckets: u64 = point.positive.iter().flat_map(|buckets| &buckets.bucket_counts).sum();
                assert_eq!(buckets + point.zero_count, point.count, "{}", metric.name);
                put(format!("{name}_count"), labels.clone(), point.count as f64, delta);
                put(format!("{name}_sum"), labels, point.sum.unwrap(), delta);
            }
        }
        Data::Summary(_) => panic!("a summary"),
    }
}

/// Asserts that both sides have the same series and values. Not compared: metrics that the export itself changes;
/// `target_info`, which a backend generates from the resource; and the buckets of exponential histograms.
fn assert_agreement(exporters: &Exporters, collector: &Collector, exponential: bool) {
    let page = exporters.scrape(Some("application/openmetrics-text")).body;
    let scraped = text::parse(&String::from_utf8(page).unwrap(), Form::OpenMetrics).samples;
    let held = backend_values(collector, exponential);
    let compared = |(name, _): &&(String, BTreeMap<String, String>)| {
        !name.starts_with("tokometer_telemetry_")
            && name != "target_info"
            && !(exponential && name.ends_with("_bucket"))
    };
    let (ours, theirs): (Vec<_>, Vec<_>) =
        (scraped.keys().filter(compared).collect(), held.keys().filter(compared).collect());
    let only_ours = ours.iter().find(|key| !held.contains_key(**key));
    assert!(only_ours.is_none(), "only scraped: {only_ours:?}");
    let only_theirs = theirs.iter().find(|key| !scraped.contains_key(**key));
    assert!(only_theirs.is_none(), "only pushed: {only_theirs:?}");
    assert!(ours.len() > 100);
    for key in ours {
        let (ours, theirs) = (scraped[key], held[key]);
        assert!((ours - theirs).abs() <= 1e-9 * ours.abs(), "{key:?}: {ours} scraped, {theirs} pushed");
    }
}

fn http(collector: &Collector) -> Endpoint {
    endpoint(format!("http://127.0.0.1:{}/v1/metrics", collector.port), Protocol::HttpProtobuf)
}

/// Plays the script twice with an export after each, and compares both sides.
fn compare(collector: &Collector, settings: &Settings) {
    let exporters = records::start(settings).unwrap();
    records::play(&exporters);
    assert!(exporters.flush(WAIT));
    records::play(&exporters);
    // Uses `flush`, because the limit of 1.5 s of a shutdown is too short on a busy machine.
    assert!(exporters.flush(WAIT));
    assert_agreement(&exporters, collector, settings.metrics.exponential);
}

#[test]
fn http_protobuf_with_gzip_matches_the_page() {
    let collector = Collector::http();
    compare(&collector, &settings(http(&collector)));
    let got = collector.got.lock().unwrap();
    assert_eq!(got.heads, ["/v1/metrics gzip Bearer of-tokens", "/v1/metrics gzip Bearer of-tokens"]);
}

#[test]
fn grpc_with_gzip_matches_the_page() {
    let collector = Collector::grpc_metrics();
    let url = format!("http://127.0.0.1:{}", collector.port);
    compare(&collector, &settings(endpoint(url, Protocol::Grpc)));
    assert_eq!(collector.got.lock().unwrap().heads[0], "metrics gzip Bearer of-tokens");
}

/// The OTLP client libraries also read the standard variable; its headers must not replace tokometer's own.
#[test]
fn own_variable_overrides_the_headers_of_the_standard_one() {
    for (protocol, collector) in [("http/protobuf", Collector::http()), ("grpc", Collector::grpc_metrics())] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
        command.args(["run", "--upstream=127.0.0.1:9", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]);
        command.arg(format!("--set=otlp.endpoint=http://127.0.0.1:{}", collector.port));
        command.args(["--set=otlp.metrics.interval=1s", &format!("--set=otlp.protocol={protocol}")]);
        command.env("TOKOMETER_OTLP_HEADERS", "authorization=own").stderr(Stdio::null());
        command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=standard");
        let mut sidecar = command.spawn().unwrap();
        until("an export", || !collector.got.lock().unwrap().heads.is_empty());
        sidecar.kill().unwrap();
        sidecar.wait().unwrap();
        let head = collector.got.lock().unwrap().heads[0].clone();
        assert!(head.ends_with("metrics - own"), "{protocol}: {head}");
    }
}

#[test]
fn sums_of_deltas_match_the_page() {
    for temporality in [Temporality::Delta, Temporality::LowMemory] {
        let collector = Collector::http();
        let mut settings = settings(Endpoint { gzip: false, ..http(&collector) });
        settings.metrics.temporality = temporality;
        compare(&collector, &settings);
        assert_eq!(collector.got.lock().unwrap().heads[0], "/v1/metrics - Bearer of-tokens");
    }
}

#[test]
fn exponential_histograms_match_the_page() {
    for temporality in [Temporality::Cumulative, Temporality::Delta] {
        let collector = Collector::http();
        let mut settings = settings(http(&collector));
        settings.metrics.exponential = true;
        settings.metrics.temporality = temporality;
        compare(&collector, &settings);
    }
}

/// Tests low limits, and then limits so high that the SDK's default of 2,000 series per metric would fold some series.
#[test]
fn caps_fold_alike_on_both_sides() {
    for (max_models, max_label_sets) in [(2, 4), (100, 150)] {
        let collector = Collector::http();
        let settings = Settings { max_models, max_label_sets, ..settings(http(&collector)) };
        let exporters = records::start(&settings).unwrap();
        for n in 0..60 {
            let model = format!("model-{n}");
            let all = [records::good(&model), records::cut(&model), records::busy(&model), records::gave_up(&model)];
            for record in all {
                exporters.record(&Arc::new(record));
            }
        }
        assert!(exporters.flush(WAIT));
        assert_agreement(&exporters, &collector, false);
    }
}

/// Tests a low limit, which folds most classes, and then a limit for which the SDK's own limit must be raised.
#[test]
fn prompt_classes_are_equal_on_both_sides() {
    for max_label_sets in [5, 100] {
        let collector = Collector::http();
        let settings =
            Settings { prompt_classes: classes::both(), max_models: 100, max_label_sets, ..settings(http(&collector)) };
        let exporters = records::start(&settings).unwrap();
        for n in 0..90 {
            let model = format!("model-{n}");
            for input in [Some(1), Some(2000), Some(20_000), Some(200_000), None] {
                exporters.record(&Arc::new(classes::prompt(&model, input, Some(n))));
            }
        }
        assert!(exporters.flush(WAIT));
        assert_agreement(&exporters, &collector, false);
        let held = backend_values(&collector, false);
        let classed =
            |class: &str| held.keys().any(|(_, labels)| labels.get("input_length_class").is_some_and(|c| c == class));
        assert!(classed("up_to_1024") && classed("unknown") && classed("other"));
    }
}

#[test]
fn shutdown_exports_a_last_time() {
    let collector = Collector::http();
    let exporters = records::start(&settings(http(&collector))).unwrap();
    records::play(&exporters);
    let closing = Instant::now();
    let pushed = exporters.shutdown(WAIT);
    // On a busy machine the export may exceed the time limit of a shutdown; no other failure is accepted.
    assert!(pushed || closing.elapsed() >= Duration::from_millis(1400));
    if pushed {
        assert_agreement(&exporters, &collector, false);
    }
}

#[test]
fn metrics_are_exported_at_each_interval() {
    let collector = Collector::http();
    let mut settings = settings(http(&collector));
    settings.metrics.interval = Duration::from_millis(20);
    let exporters = records::start(&settings).unwrap();
    let started = Instant::now();
    while collector.got.lock().unwrap().metrics.len() < 3 {
        assert!(started.elapsed() < WAIT);
        std::thread::yield_now();
    }
    assert!(exporters.flush(WAIT));
}

#[test]
fn unresponsive_collector_blocks_nothing_and_is_counted() {
    // Accepts connections (in the kernel) and never responds.
    let hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hole.local_addr().unwrap().port();
    for (protocol, path) in [(Protocol::HttpProtobuf, "/v1/metrics"), (Protocol::Grpc, "")] {
        let url = format!("http://127.0.0.1:{port}{path}");
        let mut settings = settings(Endpoint { timeout: Duration::from_millis(50), ..endpoint(url, protocol) });
        settings.traces.endpoint = settings.metrics.endpoint.clone();
        settings.traces.queue_size = 8;
        settings.traces.batch_size = 4;
        let exporters = records::start(&settings).unwrap();
        let started = Instant::now();
        for _ in 0..50 {
            records::play(&exporters);
        }
        assert!(started.elapsed() < Duration::from_secs(2), "recording must not wait for the collector");
        assert!(!exporters.flush(WAIT));
        let page = String::from_utf8(exporters.scrape(None).body).unwrap();
        let samples = text::parse(&page, Form::Plain).samples;
        let of = |name: &str, signal: &str| {
            let labels = BTreeMap::from([("signal".to_owned(), signal.to_owned())]);
            samples[&(name.to_owned(), labels)]
        };
        assert!(of("tokometer_telemetry_exports_failed_total", "metrics") >= 1.0);
        assert!(of("tokometer_telemetry_exports_failed_total", "traces") >= 1.0);
        assert!(samples[&("tokometer_telemetry_spans_dropped_total".to_owned(), BTreeMap::new())] > 100.0);
        let closing = Instant::now();
        assert!(!exporters.shutdown(WAIT));
        assert!(closing.elapsed() <= Duration::from_millis(1600), "{:?}", closing.elapsed());
    }
}

#[test]
fn rejected_spans_count_as_lost() {
    let collector = Collector::http();
    let mut settings = settings(http(&collector));
    let url = format!("http://127.0.0.1:{}/v1/traces", collector.port);
    settings.traces.endpoint = Some(endpoint(url, Protocol::HttpProtobuf));
    let exporters = records::start(&settings).unwrap();
    let lost_and_sent = || {
        let page = String::from_utf8(exporters.scrape(None).body).unwrap();
        let samples = text::parse(&page, Form::Plain).samples;
        let of = |name: &str| samples[&(format!("tokometer_telemetry_{name}_total"), BTreeMap::new())];
        (of("spans_dropped"), of("spans_sent"))
    };
    records::play(&exporters);
    assert!(exporters.flush(WAIT));
    let (lost, sent) = lost_and_sent();
    assert_eq!(lost, 0.0);
    // This response serves for metrics too: rejected spans and rejected data points have the same field number.
    let partial = ExportTracePartialSuccess { rejected_spans: 2, error_message: "too old".to_owned() };
    let response = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
    collector.got.lock().unwrap().response = Some((200, response));
    records::play(&exporters);
    assert!(!exporters.flush(WAIT), "the export was accepted only in part");
    assert_eq!(lost_and_sent(), (2.0, 2.0 * sent - 2.0));
    collector.got.lock().unwrap().response = Some((403, Vec::new()));
    records::play(&exporters);
    assert!(!exporters.flush(WAIT));
    assert_eq!(lost_and_sent(), (2.0 + sent, 2.0 * sent - 2.0));
}

#[test]
fn shutdown_during_a_hanging_export_is_bounded() {
    let hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/metrics", hole.local_addr().unwrap());
    let mut settings = settings(endpoint(url, Protocol::HttpProtobuf));
    settings.metrics.interval = Duration::from_millis(1);
    let exporters = records::start(&settings).unwrap();
    // Waits until the export has connected; it then hangs, because nothing responds.
    let mut connection = hole.accept().unwrap().0;
    let closing = Instant::now();
    assert!(!exporters.shutdown(Duration::from_millis(300)));
    assert!(closing.elapsed() < Duration::from_millis(800), "{:?}", closing.elapsed());
    // The shutdown also ended the export: its connection is closed.
    connection.set_read_timeout(Some(WAIT / 2)).unwrap();
    connection.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn invalid_settings_are_rejected_at_start() {
    let start = |endpoint| records::start(&settings(endpoint)).unwrap_err().to_string();
    let good = || endpoint("http://127.0.0.1:1/v1/metrics".to_owned(), Protocol::HttpProtobuf);
    let error = start(Endpoint { url: "127.0.0.1:4318".to_owned(), ..good() });
    assert!(error.contains("127.0.0.1:4318") && error.contains("http://"), "{error}");
    let error = start(Endpoint { url: "ftp://user:hunter2@c:1/?key=hunter2".to_owned(), ..good() });
    assert!(error.contains("ftp://c:1 cannot be used") && !error.contains("hunter2"), "{error}");
    let error = start(Endpoint { headers: vec![("bad name".to_owned(), "x".to_owned())], ..good() });
    assert!(error.contains("bad name"), "{error}");
    let missing = Some("/nowhere/ca.pem".into());
    let error = start(Endpoint { url: "https://127.0.0.1:1".to_owned(), ca: missing.clone(), ..good() });
    assert!(error.contains("/nowhere/ca.pem"), "{error}");
    let grpc = Endpoint { url: "https://127.0.0.1:1".to_owned(), protocol: Protocol::Grpc, ca: missing, ..good() };
    assert!(start(grpc).contains("/nowhere/ca.pem"));
}

#[test]
fn flush_without_an_endpoint_succeeds() {
    let exporters = records::start(&records::settings()).unwrap();
    assert!(exporters.flush(Duration::ZERO) && exporters.shutdown(Duration::ZERO));
}
