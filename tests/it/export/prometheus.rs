//! The metrics page in its three formats.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use tokometer_decode::Route;
use tokometer_observe::measure::{Labels, Outcome, Record, Sink};
use tokometer_telemetry::export::{Exporters, Profile, Prometheus, Semconv, Settings, protobuf};

use super::text::Form;
use super::{records, text};

const OPEN: &str = "application/openmetrics-text;version=1.0.0";
const PROTOBUF: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";

fn start(settings: &Settings) -> Arc<Exporters> {
    records::start(settings).unwrap()
}

fn scrape(exporters: &Exporters, accept: &str) -> String {
    String::from_utf8(exporters.scrape(Some(accept)).body).unwrap()
}

/// Compares with a golden file, which UPDATE=1 rewrites.
fn golden(name: &str, have: &str) {
    let version = |text| format!("version=\"{text}\"");
    let have = &have.replace(&version(env!("CARGO_PKG_VERSION")), &version("VERSION"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/export/golden").join(name);
    if std::env::vars().any(|(name, value)| name == "UPDATE" && value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, have).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    for (at, (have, want)) in have.lines().zip(want.lines()).enumerate() {
        assert_eq!(have, want, "line {} of {name}", at + 1);
    }
    assert_eq!(have.len(), want.len(), "{name}: run with UPDATE=1 if the change is intended");
}

fn value(samples: &text::Samples, name: &str, labels: &[(&str, &str)]) -> f64 {
    let matches = |found: &BTreeMap<String, String>| {
        labels.iter().all(|(key, value)| found.get(*key).is_some_and(|have| have == value))
    };
    let found: Vec<_> = samples.iter().filter(|((n, l), _)| n == name && matches(l)).collect();
    assert!(!found.is_empty(), "no {name} with {labels:?}");
    found.iter().map(|(_, value)| **value).sum()
}

#[test]
fn scripted_requests_give_the_golden_pages() {
    let exporters = start(&records::settings());
    records::play(&exporters);
    let (open, plain) = (scrape(&exporters, OPEN), scrape(&exporters, "text/plain"));
    let open_samples = text::parse(&open, Form::OpenMetrics).samples;
    let plain_samples = text::parse(&plain, Form::Plain).samples;
    assert_eq!(open_samples, plain_samples, "both formats have the same samples");
    golden("openmetrics.txt", &open);
    golden("plain.txt", &plain);
}

#[test]
fn every_value_of_the_script_is_in_its_series() {
    let exporters = start(&Settings { semconv: Semconv::Both, ..records::settings() });
    records::play(&exporters);
    let samples = text::parse(&scrape(&exporters, OPEN), Form::OpenMetrics).samples;
    let of = |name: &str, labels: &[(&str, &str)]| value(&samples, name, labels);
    let near = |have: f64, want: f64| assert!((have - want).abs() < 1e-9, "{have} is not {want}");

    assert_eq!(of("tokometer_requests_total", &[("outcome", "ok")]), 2.0);
    assert_eq!(of("tokometer_requests_total", &[("outcome", "rejected_busy"), ("status_class", "4xx")]), 1.0);
    assert_eq!(of("tokometer_requests_total", &[("outcome", "upstream_refused")]), 0.0);
    assert_eq!(of("tokometer_requests_total", &[("gen_ai_operation_name", "other")]), 1.0);
    assert_eq!(of("tokometer_finishes_total", &[("finish_reason", "stop")]), 2.0);

    // Counts only the two successful requests, measured from the last byte of the request.
    assert_eq!(of("gen_ai_server_time_to_first_token_seconds_count", &[]), 2.0);
    near(of("gen_ai_server_time_to_first_token_seconds_sum", &[]), 0.4);
    near(of("gen_ai_server_time_per_output_token_seconds_sum", &[]), 2.0 * 1.01 / 100.0);
    // Counts all five requests on known paths; failures have their `error_type`.
    assert_eq!(of("gen_ai_server_request_duration_seconds_count", &[]), 5.0);
    assert_eq!(of("gen_ai_server_request_duration_seconds_count", &[("error_type", "429")]), 1.0);
    assert_eq!(of("gen_ai_server_request_duration_seconds_count", &[("error_type", "truncated")]), 1.0);
    // This histogram includes the truncated stream.
    assert_eq!(of("tokometer_time_to_first_token_seconds_count", &[]), 3.0);
    assert_eq!(of("tokometer_time_to_first_token_seconds_count", &[("outcome_class", "failure")]), 1.0);
    near(of("tokometer_time_to_first_visible_seconds_sum", &[]), 0.9);
    // Requests that waited without receiving a token.
    near(of("tokometer_wait_without_first_token_seconds_sum", &[("outcome", "client_abort_before_first_token")]), 5.0);

    // Lower bounds and exact counts are never in one series.
    assert_eq!(of("tokometer_output_tokens_total", &[("source", "usage")]), 202.0);
    assert_eq!(of("tokometer_output_tokens_total", &[("source", "deltas_lower_bound")]), 5.0);
    assert_eq!(of("gen_ai_client_token_usage_sum", &[("gen_ai_token_type", "output")]), 202.0);
    assert_eq!(of("gen_ai_client_inference_usage_output_tokens_total", &[("gen_ai_token_modality", "text")]), 202.0);
    assert_eq!(of("gen_ai_client_inference_usage_input_tokens_total", &[("gen_ai_token_modality", "unknown")]), 0.0);
    assert_eq!(of("gen_ai_client_inference_usage_cache_read_input_tokens_total", &[]), 1200.0);
    assert_eq!(of("tokometer_reasoning_tokens_total", &[]), 40.0);
    assert_eq!(of("tokometer_live_tokens_total", &[]), 101.0);

    // Three gaps with 1, 1 and 3 tokens give five inter-token latencies of 10 ms.
    assert_eq!(of("tokometer_inter_token_latency_seconds_count", &[]), 5.0);
    near(of("tokometer_inter_token_latency_seconds_sum", &[]), 0.05);
    assert_eq!(of("tokometer_inter_token_latency_seconds_bucket", &[("le", "0.01")]), 5.0);
    assert_eq!(of("tokometer_chunk_gap_seconds_count", &[]), 3.0);
    assert_eq!(of("tokometer_chunk_tokens_count", &[]), 2.0);
    assert_eq!(of("tokometer_stalls_total", &[]), 1.0);

    near(of("tokometer_queue_time_seconds_sum", &[("source", "in_band")]), 0.08);
    // 400 uncached tokens in 160 ms.
    near(of("tokometer_prefill_tokens_per_second_sum", &[]), 5000.0);
    assert_eq!(of("tokometer_decode_tokens_per_second_bucket", &[("source", "usage"), ("le", "100.0")]), 2.0);
    assert_eq!(of("tokometer_decode_tokens_per_second_sum", &[("source", "deltas_lower_bound")]), 125.0);
    near(of("tokometer_delivery_blocked_seconds_sum", &[]), 0.004);

    assert_eq!(of("tokometer_in_flight", &[("phase", "waiting_first_token")]), 2.0);
    assert_eq!(of("tokometer_in_flight", &[("phase", "streaming")]), 1.0);
    assert_eq!(of("tokometer_observer_detached_total", &[("reason", "not_http"), ("server_port", "8001")]), 1.0);
    assert_eq!(of("tokometer_observer_detached_total", &[("reason", "panic")]), 0.0);
    assert_eq!(of("tokometer_relay_io_bytes_total", &[("direction", "response")]), 340_000.0);
    assert_eq!(of("tokometer_connect_failures_total", &[("reason", "refused")]), 1.0);
    near(of("process_cpu_seconds_total", &[]), 12.34);
    assert_eq!(of("process_open_fds", &[]), 21.0);
    assert_eq!(of("process_start_time_seconds", &[]), 1.7e9);
    assert_eq!(of("tokometer_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
    assert_eq!(of("target_info", &[("k8s_pod_name", "vllm-0"), ("service_name", "tokometer")]), 1.0);
}

#[test]
fn unstreamed_response_has_no_time_to_first_token() {
    let exporters = start(&records::settings());
    let labels = Labels { streaming: Some(false), ..records::labels("llama") };
    exporters.record(&Arc::new(Record { labels: Arc::new(labels), ..records::good("llama") }));
    let page = scrape(&exporters, OPEN);
    assert!(!page.contains("time_to_first_token"), "the time of the first token is unknown");
    assert!(page.contains("gen_ai_server_request_duration_seconds_count"));
}

#[test]
fn labels_are_escaped_and_unreadable_ones_cleaned() {
    let exporters = start(&records::settings());
    exporters.record(&Arc::new(records::good("a\"b\\c\nd")));
    for (accept, form) in [(OPEN, Form::OpenMetrics), ("", Form::Plain)] {
        let samples = text::parse(&scrape(&exporters, accept), form).samples;
        assert_eq!(
            value(&samples, "tokometer_requests_total", &[("outcome", "ok"), ("gen_ai_request_model", "a\"b\\c_d")]),
            1.0
        );
    }
}

#[test]
fn models_over_the_cap_become_other_and_are_counted() {
    let exporters = start(&Settings { max_models: 2, ..records::settings() });
    for model in ["a", "b", "c", "d", "a"] {
        exporters.record(&Arc::new(records::good(model)));
    }
    let samples = text::parse(&scrape(&exporters, OPEN), Form::OpenMetrics).samples;
    let ended = |model| value(&samples, "tokometer_requests_total", &[("gen_ai_request_model", model)]);
    assert_eq!((ended("a"), ended("b"), ended("other")), (2.0, 1.0, 2.0));
    assert_eq!(value(&samples, "tokometer_labels_folded_total", &[("kind", "model")]), 2.0);
}

#[test]
fn label_sets_over_the_cap_are_folded_and_counted() {
    let exporters = start(&Settings { max_label_sets: 3, ..records::settings() });
    for model in ["a", "b", "c", "d", "e", "d"] {
        exporters.record(&Arc::new(records::good(model)));
    }
    let samples = text::parse(&scrape(&exporters, OPEN), Form::OpenMetrics).samples;
    assert_eq!(value(&samples, "tokometer_requests_total", &[("gen_ai_request_model", "other")]), 3.0);
    assert_eq!(value(&samples, "tokometer_labels_folded_total", &[("kind", "label_set")]), 3.0);
    assert_eq!(value(&samples, "gen_ai_server_request_duration_seconds_count", &[]), 6.0);
}

#[test]
fn rejected_model_names_take_no_place() {
    let exporters = start(&Settings { max_models: 1, ..records::settings() });
    for made_up in ["x1", "x2"] {
        exporters.record(&Arc::new(records::busy(made_up).with(|r| {
            r.outcome = Outcome::Http4xx;
            r.response.status = Some(404);
        })));
    }
    exporters.record(&Arc::new(records::good("real")));
    let samples = text::parse(&scrape(&exporters, OPEN), Form::OpenMetrics).samples;
    assert_eq!(value(&samples, "tokometer_requests_total", &[("gen_ai_request_model", "real")]), 1.0);
    assert_eq!(
        value(&samples, "gen_ai_server_request_duration_seconds_count", &[("gen_ai_request_model", "other")]),
        2.0
    );
}

/// Three models on two routes, as in docs/how-to/scale.md.
#[test]
fn fleet_profile_has_at_most_900_series_for_three_models_on_two_routes() {
    let page = |profile| {
        let exporters =
            start(&Settings { prometheus: Prometheus { profile, ..Prometheus::default() }, ..records::settings() });
        for model in ["a", "b", "c"] {
            for route in [Route::Chat, Route::Completions] {
                let labels = Arc::new(Labels { route, ..records::labels(model) });
                for record in [records::good(model), records::busy(model)] {
                    exporters.record(&Arc::new(Record { labels: Arc::clone(&labels), ..record }));
                }
            }
        }
        text::parse(&scrape(&exporters, OPEN), Form::OpenMetrics).samples
    };
    let (full, fleet) = (page(Profile::Full), page(Profile::Fleet));
    assert!(fleet.len() < 900 && fleet.len() * 3 < full.len(), "{} of {}", fleet.len(), full.len());
    for name in
        ["tokometer_output_tokens_total", "tokometer_decode_tokens_per_second_count", "tokometer_requests_total"]
    {
        let of = |samples: &text::Samples| value(samples, name, &[("gen_ai_response_model", "b")]);
        assert_eq!(of(&fleet), of(&full), "{name}");
    }
    let bucket = [("gen_ai_response_model", "b"), ("le", "125.0")];
    let name = "tokometer_decode_tokens_per_second_bucket";
    assert_eq!(value(&fleet, name, &bucket), value(&full, name, &bucket));
    assert!(!fleet.keys().any(|(name, _)| name.starts_with("tokometer_chunk_gap")));
}

#[test]
fn content_type_follows_the_accept_header() {
    let exporters = start(&records::settings());
    let of = |accept| exporters.scrape(accept).content_type;
    assert_eq!(of(None), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(of(Some(OPEN)), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(of(Some(PROTOBUF)).starts_with("application/vnd.google.protobuf"));
}

#[test]
fn protobuf_has_native_and_classic_histograms() {
    let exporters = start(&records::settings());
    records::play(&exporters);
    let body = exporters.scrape(Some(PROTOBUF)).body;
    let mut rest = body.as_slice();
    let mut families = BTreeMap::new();
    while !rest.is_empty() {
        let family = protobuf::MetricFamily::decode_length_delimited(&mut rest).unwrap();
        families.insert(family.name.clone(), family);
    }
    let samples = text::parse(&scrape(&exporters, OPEN), Form::OpenMetrics).samples;
    assert_eq!(families["tokometer_live_tokens_total"].metric[0].counter.as_ref().unwrap().value, 101.0);
    let mut histograms = 0;
    for (name, family) in &families {
        for histogram in family.metric.iter().filter_map(|metric| metric.histogram.as_ref()) {
            histograms += 1;
            let mut count = 0;
            let mut native = histogram.zero_count;
            for delta in &histogram.positive_delta {
                count += delta;
                native += count as u64;
            }
            let spans: u32 = histogram.positive_span.iter().map(|span| span.length).sum();
            assert_eq!(spans as usize, histogram.positive_delta.len(), "{name}");
            assert_eq!(native, histogram.sample_count, "{name}: native buckets must contain every observation");
            assert_eq!(histogram.bucket.last().unwrap().cumulative_count, histogram.sample_count, "{name}");
        }
        let total: u64 = family.metric.iter().filter_map(|m| m.histogram.as_ref()).map(|h| h.sample_count).sum();
        if family.r#type() == protobuf::MetricType::Histogram {
            assert_eq!(total as f64, value(&samples, &format!("{name}_count"), &[]));
        }
    }
    assert!(histograms > 10);

    let classic = start(&Settings {
        prometheus: Prometheus { native_histograms: false, ..Prometheus::default() },
        ..records::settings()
    });
    records::play(&classic);
    let body = classic.scrape(Some(PROTOBUF)).body;
    let mut rest = body.as_slice();
    while !rest.is_empty() {
        let family = protobuf::MetricFamily::decode_length_delimited(&mut rest).unwrap();
        assert!(family.metric.iter().filter_map(|m| m.histogram.as_ref()).all(|h| h.positive_span.is_empty()));
    }
}
