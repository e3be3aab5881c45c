//! Counters across pages: increases across restarts, changing ranks, and changing names.

use proptest::collection::vec;
use proptest::prelude::*;
use tokometer_engine::scrape::{State, Tracker};

use super::page;

fn pages(texts: &[&str]) -> Vec<State> {
    let mut tracker = Tracker::default();
    texts.iter().map(|text| tracker.take(&page(text))).collect()
}

fn preemptions(texts: &[&str]) -> Vec<Option<f64>> {
    pages(texts).into_iter().map(|state| state.preemptions).collect()
}

#[test]
fn counts_start_with_the_first_page() {
    let reported = preemptions(&["vllm:num_preemptions_total 40", "vllm:num_preemptions_total 42"]);
    assert_eq!(reported, [Some(0.0), Some(2.0)]);
}

#[test]
fn counts_continue_after_an_engine_restart() {
    let reported = preemptions(&[
        "vllm:num_preemptions_total 40",
        "vllm:num_preemptions_total 45",
        "vllm:num_preemptions_total 3",
        "vllm:num_preemptions_total 4",
    ]);
    assert_eq!(reported, [Some(0.0), Some(5.0), Some(8.0), Some(9.0)]);
}

#[test]
fn restart_of_one_rank_is_detected() {
    let reported = preemptions(&[
        "vllm:num_preemptions_total{engine=\"0\"} 10\nvllm:num_preemptions_total{engine=\"1\"} 100\n",
        "vllm:num_preemptions_total{engine=\"0\"} 2\nvllm:num_preemptions_total{engine=\"1\"} 120\n",
    ]);
    assert_eq!(reported, [Some(0.0), Some(22.0)], "the sum on the page rose by 12");
}

#[test]
fn new_series_start_at_zero_and_returning_ones_continue() {
    let reported = preemptions(&[
        "vllm:num_preemptions_total{engine=\"0\"} 10\n",
        "vllm:num_preemptions_total{engine=\"0\"} 10\nvllm:num_preemptions_total{engine=\"1\"} 4\n",
        "vllm:num_preemptions_total{engine=\"1\"} 5\n",
        "vllm:num_preemptions_total{engine=\"0\"} 11\nvllm:num_preemptions_total{engine=\"1\"} 5\n",
    ]);
    assert_eq!(reported, [Some(0.0), Some(4.0), Some(5.0), Some(6.0)]);
}

#[test]
fn unchanged_count_of_two_unlabelled_names_stays() {
    let page = |prompt: u32, cached: u32| {
        format!("llamacpp:prompt_tokens_total {prompt}\nllamacpp:prompt_tokens_cached_total {cached}\n")
    };
    let texts = [page(10, 2), page(63, 16), page(63, 16), page(63, 16), page(64, 20)];
    let reported = pages(&texts.each_ref().map(String::as_str));
    let queries: Vec<Option<f64>> = reported.into_iter().map(|state| state.cache_queries).collect();
    assert_eq!(queries, [0.0, 67.0, 67.0, 67.0, 72.0].map(Some));
}

#[test]
fn missing_count_is_absent_and_then_continues() {
    let reported = preemptions(&["vllm:num_preemptions_total 1", "up 1", "vllm:num_preemptions_total 3"]);
    assert_eq!(reported, [Some(0.0), None, Some(2.0)]);
}

#[test]
fn count_that_appears_later_began_at_zero() {
    let running = "vllm:num_requests_running 1\n";
    let reported = preemptions(&[running, running, "vllm:num_preemptions_total 20", "vllm:num_preemptions_total 23"]);
    assert_eq!(reported, [None, None, Some(20.0), Some(23.0)]);
    let queue = "vllm:request_queue_time_seconds_sum 6.19\nvllm:request_queue_time_seconds_count 20\n";
    let state = pages(&[running, queue]).pop().unwrap();
    assert_eq!((state.queue_seconds, state.queue_requests), (Some(6.19), Some(20.0)));
    assert_eq!(state.queue_mean, Some(6.19 / 20.0));
}

#[test]
fn count_of_unknown_start_begins_with_its_first_page() {
    // Neither a page of another engine nor a page with an invalid value shows that the counter was 0 before.
    for before in ["sglang:num_running_reqs 1", "vllm:num_preemptions_total NaN"] {
        assert_eq!(preemptions(&[before, "vllm:num_preemptions_total 20"]), [None, Some(0.0)], "{before}");
    }
}

#[test]
fn another_engine_at_the_address_adds_no_past_counts() {
    let reported = preemptions(&[
        "vllm:num_preemptions_total 1",
        "vllm:num_preemptions_total 2",
        "sglang:num_retracted_requests_total 500",
        "sglang:num_retracted_requests_total 501",
    ]);
    assert_eq!(reported, [Some(0.0), Some(1.0), Some(1.0), Some(2.0)]);
}

#[test]
fn queue_estimate_is_the_mean_between_two_pages() {
    let queue = |sum: f64, count: u32| {
        format!("vllm:request_queue_time_seconds_sum {sum}\nvllm:request_queue_time_seconds_count {count}\n")
    };
    let texts = [queue(100.0, 50), queue(103.0, 52), queue(103.0, 52), queue(0.5, 1)];
    let reported: Vec<Option<f64>> =
        pages(&texts.each_ref().map(String::as_str)).into_iter().map(|state| state.queue_mean).collect();
    assert_eq!(reported, [None, Some(1.5), None, Some(0.5)], "none before a second page or without requests");
}

#[test]
fn ratio_covers_the_time_between_two_pages() {
    let cache = |hits: u32, queries: u32| {
        format!("vllm:prefix_cache_hits_total {hits}\nvllm:prefix_cache_queries_total {queries}\n")
    };
    let texts = [cache(10, 100), cache(40, 140), cache(40, 140), cache(60, 150)];
    let reported: Vec<Option<f64>> = pages(&texts.each_ref().map(String::as_str))
        .into_iter()
        .map(|state| state.cache_ratio.map(|ratio| ratio.value))
        .collect();
    assert_eq!(reported, [None, Some(0.75), None, None], "hits and lookups were read at different times");
}

proptest! {
    /// Compares with a naive model: each rank has a counter that increases and occasionally restarts at zero.
    #[test]
    fn counts_equal_the_model_increases(steps in vec((0usize..3, 0u32..5, any::<bool>()), 1..40)) {
        let (mut tracker, mut values, mut gained) = (Tracker::default(), [7u32, 0, 3], 0u32);
        let text = |values: &[u32; 3]| -> String {
            values.iter().enumerate().map(|(rank, n)| format!("vllm:num_preemptions_total{{engine=\"{rank}\"}} {n}\n")).collect()
        };
        tracker.take(&page(&text(&values)));
        for (rank, step, restart) in steps {
            // A restart is undetectable if the counter reaches its previous value before the next page.
            if restart && step < values[rank] {
                values[rank] = step;
            } else {
                values[rank] += step;
            }
            gained += step;
            let state = tracker.take(&page(&text(&values)));
            prop_assert_eq!(state.preemptions, Some(f64::from(gained)));
        }
    }
}
