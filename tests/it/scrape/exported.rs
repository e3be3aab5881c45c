//! The engine state in both exporters and on spans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point;
use tokometer_engine::scrape;
use tokometer_engine::scrape::{Failure, Watch};
use tokometer_metrics::table::TABLE;
use tokometer_metrics::{Collect, Points};
use tokometer_observe::measure::Sink;
use tokometer_telemetry::export::{Endpoint, Exporters, Metrics, Protocol, Settings};

use super::engines::file;
use super::{page, zeros};
use crate::WAIT;
use crate::export::collector::Collector;
use crate::export::text::Form;
use crate::export::{records, text};

/// Two listeners; only the engine of the first is scraped.
struct One {
    watch: Watch,
    now: Instant,
}

impl Collect for One {
    fn collect(&self, points: &mut Points<'_>) {
        self.watch.measurements(self.now).put(0, points);
    }
}

/// A watch that has read two pages, seven and two seconds ago. On the first page all values are zero.
fn read_twice(name: &str) -> One {
    let now = Instant::now();
    let watch = Watch::new(&scrape::Settings::default());
    let text = file(name);
    let ago = |seconds| now - Duration::from_secs(seconds);
    watch.note(ago(7), Duration::from_millis(4), Ok(&page(&zeros(&text))));
    watch.note(ago(2), Duration::from_millis(3), Ok(&page(&text)));
    One { watch, now }
}

fn prometheus(exporters: &Exporters) -> BTreeMap<String, f64> {
    let body = String::from_utf8(exporters.scrape(Some("application/openmetrics-text")).body).unwrap();
    let ours = |(name, labels): (String, BTreeMap<String, String>)| {
        let own: Vec<String> = labels
            .iter()
            .filter(|(key, _)| !key.starts_with("server_"))
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        (name.contains("_engine_") || name.contains("estimate"))
            .then(|| [name, own.join(",")].join(" ").trim().to_owned())
    };
    text::parse(&body, Form::OpenMetrics)
        .samples
        .into_iter()
        .filter_map(|(name, value)| Some((ours(name)?, value)))
        .collect()
}

/// The last values that a collector received, by OpenTelemetry names.
fn otlp(collector: &Collector) -> BTreeMap<String, f64> {
    let got = collector.got.lock().unwrap();
    let metrics =
        got.metrics.last().unwrap().resource_metrics.iter().flat_map(|r| &r.scope_metrics).flat_map(|s| &s.metrics);
    let mut held = BTreeMap::new();
    for metric in metrics.filter(|metric| metric.name.contains(".engine.") || metric.name.contains("estimate")) {
        let points = match metric.data.as_ref().unwrap() {
            Data::Gauge(gauge) => &gauge.data_points,
            Data::Sum(sum) => {
                assert!(sum.is_monotonic, "{}", metric.name);
                &sum.data_points
            }
            other => panic!("{other:?}"),
        };
        for point in points {
            let own = point.attributes.iter().filter(|kv| !kv.key.starts_with("server.")).map(|kv| {
                match kv.value.as_ref().unwrap().value.as_ref().unwrap() {
                    Value::StringValue(word) => format!("{}={word}", kv.key),
                    Value::IntValue(number) => format!("{}={number}", kv.key),
                    other => panic!("{}: {other:?}", kv.key),
                }
            });
            let own: Vec<String> = own.collect();
            let Some(number_data_point::Value::AsDouble(value)) = point.value else { panic!("{point:?}") };
            held.insert([metric.name.clone(), own.join(",")].join(" ").trim().to_owned(), value);
        }
    }
    held
}

fn exporters(settings: &Settings, one: &Arc<One>) -> Arc<Exporters> {
    let exporters = Exporters::start(settings).unwrap();
    exporters.add(Arc::clone(one) as Arc<dyn Collect>);
    let one = Arc::clone(one);
    exporters.join_engine_state(move |listener, moment| (listener == 0).then(|| one.watch.at(moment))?);
    exporters
}

fn start(endpoint: Option<Endpoint>, one: One) -> (Arc<Exporters>, Arc<One>) {
    let one = Arc::new(one);
    let settings = Settings { metrics: Metrics { endpoint, ..Settings::default().metrics }, ..records::settings() };
    (exporters(&settings, &one), one)
}

fn endpoint(collector: &Collector, signal: &str) -> Endpoint {
    crate::export::otlp::endpoint(format!("http://127.0.0.1:{}/v1/{signal}", collector.port), Protocol::HttpProtobuf)
}

#[test]
fn engine_version_is_exported_while_the_engine_is_scraped() {
    let one = read_twice("written/vllm-0.33.0-two-ranks.txt");
    one.watch.set_version("vllm", Some("0.33.0".into()));
    let (exporters, one) = start(None, one);
    let info = || prometheus(&exporters).remove("tokometer_engine_info gen_ai_provider_name=vllm,version=0.33.0");
    assert_eq!(info(), Some(1.0));
    one.watch.note(one.now, Duration::from_millis(3), Err(Failure::Connect));
    assert_eq!(info(), None);
}

#[test]
fn both_exporters_have_the_same_engine_metrics() {
    let collector = Collector::http();
    let (exporters, _) = start(Some(endpoint(&collector, "metrics")), read_twice("written/vllm-0.33.0-two-ranks.txt"));
    assert!(exporters.flush(WAIT));
    let want: BTreeMap<String, f64> = [
        ("tokometer_engine_requests_running data_parallel_rank=0", 7.0),
        ("tokometer_engine_requests_running data_parallel_rank=1", 5.0),
        ("tokometer_engine_requests_waiting data_parallel_rank=0", 3.0),
        ("tokometer_engine_requests_waiting data_parallel_rank=1", 0.0),
        ("tokometer_engine_kv_cache_usage_ratio data_parallel_rank=0", 0.93),
        ("tokometer_engine_kv_cache_usage_ratio data_parallel_rank=1", 0.41),
        ("tokometer_engine_prefix_cache_queries_total data_parallel_rank=0", 9000.0),
        ("tokometer_engine_prefix_cache_queries_total data_parallel_rank=1", 1000.0),
        ("tokometer_engine_prefix_cache_hits_total data_parallel_rank=0", 2400.0),
        ("tokometer_engine_prefix_cache_hits_total data_parallel_rank=1", 100.0),
        ("tokometer_engine_prefix_cache_hit_ratio data_parallel_rank=0,source=counter_deltas", 2400.0 / 9000.0),
        ("tokometer_engine_prefix_cache_hit_ratio data_parallel_rank=1,source=counter_deltas", 0.1),
        ("tokometer_engine_preemptions_total data_parallel_rank=0", 2.0),
        ("tokometer_engine_preemptions_total data_parallel_rank=1", 0.0),
        ("tokometer_engine_iterations_total data_parallel_rank=0", 600.0),
        ("tokometer_engine_iterations_total data_parallel_rank=1", 100.0),
        ("tokometer_engine_iterations_stopped_seconds data_parallel_rank=0", 0.0),
        ("tokometer_engine_iterations_stopped_seconds data_parallel_rank=1", 0.0),
        ("tokometer_engine_tokens_generated_total data_parallel_rank=0", 4200.0),
        ("tokometer_engine_tokens_generated_total data_parallel_rank=1", 800.0),
        // Only the first rank uses speculative decoding.
        ("tokometer_engine_speculative_drafted_total data_parallel_rank=0", 400.0),
        ("tokometer_engine_speculative_accepted_total data_parallel_rank=0", 300.0),
        ("tokometer_engine_speculative_acceptance_ratio data_parallel_rank=0,source=counter_deltas", 0.75),
        ("tokometer_engine_queue_time_seconds_total data_parallel_rank=0", 45.0),
        ("tokometer_engine_queue_time_seconds_total data_parallel_rank=1", 5.0),
        ("tokometer_engine_queue_requests_total data_parallel_rank=0", 30.0),
        ("tokometer_engine_queue_requests_total data_parallel_rank=1", 10.0),
        ("tokometer_engine_kv_transfer_time_seconds_total data_parallel_rank=0", 0.5),
        ("tokometer_engine_kv_transfer_time_seconds_total data_parallel_rank=1", 0.25),
        ("tokometer_engine_kv_transfers_total data_parallel_rank=0", 20.0),
        ("tokometer_engine_kv_transfers_total data_parallel_rank=1", 10.0),
        ("tokometer_queue_time_estimate_seconds data_parallel_rank=0,source=engine_metrics_estimate", 1.5),
        ("tokometer_queue_time_estimate_seconds data_parallel_rank=1,source=engine_metrics_estimate", 0.5),
        ("tokometer_engine_scrape_attempts_total", 2.0),
        ("tokometer_engine_scrape_duration_seconds", 0.003),
        ("tokometer_engine_scrape_age_seconds", 2.0),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .chain(Failure::ALL.map(|why| (format!("tokometer_engine_scrape_failures_total reason={}", why.as_str()), 0.0)))
    .collect();
    assert_eq!(prometheus(&exporters), want);
    let name = |otel: &str| {
        let (name, labels) =
            otel.split_once(' ').map_or((otel, String::new()), |(name, own)| (name, format!(" {own}")));
        let metric = TABLE.iter().find(|metric| metric.name == name).unwrap();
        format!("{}{labels}", metric.prometheus().full())
    };
    let pushed: BTreeMap<String, f64> = otlp(&collector).iter().map(|(otel, value)| (name(otel), *value)).collect();
    assert_eq!(pushed, want);
}

#[test]
fn unreported_values_have_no_series() {
    let (exporters, _) = start(None, read_twice("written/dynamo-1.6.1-frontend.txt"));
    let reported = prometheus(&exporters);
    let state: Vec<&String> = reported.keys().filter(|name| !name.contains("_scrape_")).collect();
    assert_eq!(state, ["tokometer_engine_requests_running", "tokometer_engine_requests_waiting"]);
}

#[test]
fn failed_scrape_ends_the_series_and_is_counted() {
    let collector = Collector::http();
    let (exporters, one) =
        start(Some(endpoint(&collector, "metrics")), read_twice("written/vllm-0.33.0-two-ranks.txt"));
    assert!(exporters.flush(WAIT));
    assert!(otlp(&collector).contains_key("tokometer.engine.requests.running data_parallel_rank=0"));
    one.watch.note(one.now, Duration::from_secs(2), Err(Failure::Timeout));
    assert!(exporters.flush(WAIT));
    let (scraped, pushed) = (prometheus(&exporters), otlp(&collector));
    for reported in [&scraped, &pushed] {
        assert!(reported.keys().all(|name| name.contains("scrape")), "{reported:?}");
    }
    assert_eq!(scraped["tokometer_engine_scrape_failures_total reason=timeout"], 1.0);
    assert_eq!(pushed["tokometer.engine.scrape.failures reason=timeout"], 1.0);
    assert_eq!(scraped["tokometer_engine_scrape_age_seconds"], 2.0, "since the last page that was read");
    assert_eq!(scraped["tokometer_engine_scrape_duration_seconds"], 2.0);
}

#[test]
fn span_has_the_engine_state_at_its_first_token() {
    let collector = Collector::http();
    let now = Instant::now();
    let watch = Watch::new(&scrape::Settings::default());
    let note = |ago: u64, running: u32, usage: f64, preemptions: u32| {
        let text = format!(
            "vllm:num_requests_running {running}\nvllm:kv_cache_usage_perc {usage}\nvllm:num_preemptions_total {preemptions}\n"
        );
        watch.note(now - Duration::from_secs(ago), Duration::from_millis(3), Ok(&page(&text)));
    };
    // The request started twelve seconds ago, its first token arrived eight seconds ago, its last one now.
    note(15, 1, 0.1, 5);
    note(10, 9, 0.93, 7);
    note(5, 2, 0.2, 7);
    let one = Arc::new(One { watch, now });
    let mut settings = records::settings();
    settings.traces.endpoint = Some(endpoint(&collector, "traces"));
    let exporters = exporters(&settings, &one);
    let began = now - Duration::from_secs(12);
    let mut record = records::good("m");
    (record.started, record.times.ended) = (began, Duration::from_secs(12));
    (record.times.first_token, record.times.last_token) = (Some(Duration::from_secs(4)), Some(Duration::from_secs(12)));
    let mut elsewhere = record.clone();
    elsewhere.labels = Arc::new(tokometer_observe::measure::Labels { listener: 1, ..records::labels("m") });
    exporters.record(&Arc::new(record));
    exporters.record(&Arc::new(elsewhere));
    assert!(exporters.flush(WAIT));
    let spans = collector.spans();
    let servers: Vec<_> = spans.iter().filter(|span| span.kind == 2).collect();
    assert_eq!(servers.len(), 2);
    let of = |index: usize, key: &str| {
        let found = servers[index].attributes.iter().find(|kv| kv.key == format!("tokometer.engine.{key}"))?;
        match found.value.as_ref().unwrap().value.as_ref().unwrap() {
            Value::IntValue(n) => Some(*n as f64),
            Value::DoubleValue(x) => Some(*x),
            other => panic!("{other:?}"),
        }
    };
    let reported = ["requests.running", "requests.waiting", "kv_cache.usage", "preemptions", "state.age"];
    assert_eq!(reported.map(|key| of(0, key)), [Some(9.0), None, Some(0.93), Some(2.0), Some(2.0)]);
    assert_eq!(reported.map(|key| of(1, key)), [None; 5], "the engine of the other listener is not scraped");
}
