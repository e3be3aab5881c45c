//! The metrics pages of all engines, and the state derived from them.

use tokometer_decode::engine::Quantity;
use tokometer_engine::scrape::{Ratio, RatioSource, SOURCES, State};

use super::{page, state};

/// A page of tests/fixtures/engine-metrics.
pub(super) fn file(name: &str) -> String {
    let path = format!("{}/tests/fixtures/engine-metrics/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn deltas(value: f64) -> Option<Ratio> {
    Some(Ratio { value, source: RatioSource::CounterDeltas })
}

fn gauge(value: f64) -> Option<Ratio> {
    Some(Ratio { value, source: RatioSource::EngineGauge })
}

#[test]
fn each_engine_page_gives_exactly_its_values() {
    let nothing = State::default;
    let table = [
        (
            "recorded/vllm-0.32.0.txt",
            State {
                running: Some(0.0),
                waiting: Some(0.0),
                kv_usage: Some(0.0),
                cache_queries: Some(557.0),
                cache_hits: Some(0.0),
                cache_ratio: deltas(0.0),
                preemptions: Some(0.0),
                iterations: Some(1509.0),
                generated: Some(1614.0),
                queue_seconds: Some(0.001_047_019_001_362_059_5),
                queue_requests: Some(40.0),
                queue_mean: Some(0.001_047_019_001_362_059_5 / 40.0),
                ..nothing()
            },
        ),
        (
            // One request runs and six wait; 51 prompt tokens are counted, 32 of them from the cache.
            "recorded/llamacpp-0.7.0.txt",
            State {
                running: Some(1.0),
                waiting: Some(6.0),
                cache_queries: Some(51.0),
                cache_hits: Some(32.0),
                cache_ratio: deltas(32.0 / 51.0),
                drafted: Some(0.0),
                accepted: Some(0.0),
                ..nothing()
            },
        ),
        (
            "written/vllm-0.33.0-two-ranks.txt",
            State {
                running: Some(12.0),
                waiting: Some(3.0),
                kv_usage: Some(0.93),
                cache_queries: Some(10_000.0),
                cache_hits: Some(2500.0),
                cache_ratio: deltas(0.25),
                preemptions: Some(2.0),
                drafted: Some(400.0),
                accepted: Some(300.0),
                acceptance_ratio: deltas(0.75),
                iterations: Some(700.0),
                generated: Some(5000.0),
                queue_seconds: Some(50.0),
                queue_requests: Some(40.0),
                queue_mean: Some(1.25),
                kv_transfer_seconds: Some(0.75),
                kv_transfers: Some(30.0),
                ..nothing()
            },
        ),
        (
            "written/vllm-v0.txt",
            State {
                running: Some(4.0),
                waiting: Some(1.0),
                kv_usage: Some(0.25),
                cache_ratio: gauge(0.5),
                preemptions: Some(3.0),
                acceptance_ratio: gauge(0.6),
                ..nothing()
            },
        ),
        (
            // Two data-parallel ranks; the first has two tensor-parallel ranks with equal values, and values by
            // priority.
            "written/sglang-0.5.23.txt",
            State {
                running: Some(11.0),
                waiting: Some(3.0),
                kv_usage: Some(0.7),
                cache_queries: Some(1000.0),
                cache_hits: Some(400.0),
                cache_ratio: deltas(0.4),
                preemptions: Some(4.0),
                acceptance_ratio: gauge(0.8),
                queue_seconds: Some(12.5),
                queue_requests: Some(50.0),
                queue_mean: Some(0.25),
                ..nothing()
            },
        ),
        (
            "written/tgi-3.3.6.txt",
            State {
                running: Some(8.0),
                waiting: Some(4.0),
                queue_seconds: Some(2.4),
                queue_requests: Some(16.0),
                queue_mean: Some(2.4 / 16.0),
                ..nothing()
            },
        ),
        (
            "written/lmdeploy-0.18.txt",
            State {
                running: Some(3.0),
                waiting: Some(2.0),
                kv_usage: Some(0.125),
                cache_ratio: gauge(0.2),
                drafted: Some(80.0),
                accepted: Some(20.0),
                acceptance_ratio: deltas(0.25),
                queue_seconds: Some(0.5),
                queue_requests: Some(5.0),
                queue_mean: Some(0.1),
                ..nothing()
            },
        ),
        (
            "written/tensorrt_llm-2026.txt",
            State {
                running: Some(9.0),
                waiting: Some(1.0),
                kv_usage: Some(0.62),
                cache_queries: Some(100.0),
                cache_hits: Some(30.0),
                cache_ratio: deltas(0.3),
                drafted: Some(40.0),
                accepted: Some(30.0),
                acceptance_ratio: deltas(0.75),
                queue_seconds: Some(1.0),
                queue_requests: Some(4.0),
                queue_mean: Some(0.25),
                ..nothing()
            },
        ),
        (
            // The page lists several models of an ensemble. Queue times are read only if a page lists a single model.
            "written/triton-2.73-tensorrt_llm.txt",
            State { running: Some(7.0), waiting: Some(2.0), kv_usage: Some(0.4), ..nothing() },
        ),
        (
            "written/triton-2.73-one-model.txt",
            State {
                waiting: Some(3.0),
                queue_seconds: Some(5.0),
                queue_requests: Some(20.0),
                queue_mean: Some(0.25),
                ..nothing()
            },
        ),
        ("written/dynamo-1.6.1-frontend.txt", State { running: Some(11.0), waiting: Some(3.0), ..nothing() }),
    ];
    for (name, want) in table {
        assert_eq!(state(&file(name)), want, "{name}");
    }
}

#[test]
fn underscores_may_replace_colons_in_names() {
    let text = file("written/vllm-0.33.0-two-ranks.txt");
    assert_eq!(state(&text.replace("vllm:", "vllm_")), state(&text));
}

#[test]
fn every_name_in_the_table_is_found() {
    for (engine, source) in SOURCES.iter() {
        let line = |term: &tokometer_decode::engine::Term| {
            let label = term.label.map(|(name, value)| format!("{{{name}=\"{value}\"}}")).unwrap_or_default();
            format!("{}{label} 1\n", term.name)
        };
        let text: String = source.terms.iter().map(line).collect();
        assert!(!page(&text).has_no_known_names(), "{text}");
        let state = state(&text);
        let reported = match source.quantity {
            Quantity::Running => state.running,
            Quantity::Waiting => state.waiting,
            Quantity::KvUsage => state.kv_usage,
            Quantity::CacheQueries => state.cache_queries,
            Quantity::CacheHits => state.cache_hits,
            Quantity::CacheRatio => state.cache_ratio.map(|ratio| ratio.value),
            Quantity::Preemptions => state.preemptions,
            Quantity::Drafted => state.drafted,
            Quantity::Accepted => state.accepted,
            Quantity::AcceptanceRatio => state.acceptance_ratio.map(|ratio| ratio.value),
            Quantity::Iterations => state.iterations,
            Quantity::Generated => state.generated,
            Quantity::QueueSeconds => state.queue_seconds,
            Quantity::QueueRequests => state.queue_requests,
            Quantity::KvTransferSeconds => state.kv_transfer_seconds,
            Quantity::KvTransfers => state.kv_transfers,
        };
        let want: f64 = source.terms.iter().map(|term| term.scale).sum();
        assert_eq!(reported, Some(want), "{} {:?}", engine.as_str(), source.quantity);
    }
}

#[test]
fn every_quantity_has_a_metric_in_the_table() {
    for quantity in Quantity::ALL {
        let name = quantity.as_str();
        assert!(tokometer_metrics::table::TABLE.iter().any(|metric| metric.name == name), "{name}");
    }
}
