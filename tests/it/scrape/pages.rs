//! Invalid pages: unknown values are not reported.

use super::{page, state};

#[test]
fn impossible_values_are_ignored() {
    for value in ["NaN", "+Inf", "-1"] {
        let text = format!(
            "vllm:num_requests_running 3\nvllm:num_requests_waiting{{engine=\"0\"}} 1\nvllm:num_requests_waiting{{engine=\"1\"}} {value}\n"
        );
        let state = state(&text);
        assert_eq!((state.running, state.waiting), (Some(3.0), None), "{value}");
    }
    // vLLM reports this value as a ratio, in spite of its name; 93 is not a ratio.
    assert_eq!(state("vllm:kv_cache_usage_perc 93\n").kv_usage, None);
}

#[test]
fn name_with_too_many_series_is_ignored() {
    let series = |count: usize| -> String {
        (0..count).map(|n| format!("vllm:num_requests_running{{engine=\"{n}\"}} 1\n")).collect()
    };
    assert_eq!(state(&series(256)).running, Some(256.0));
    let more = series(257) + "vllm:num_requests_waiting 2\n";
    assert_eq!((state(&more).running, state(&more).waiting), (None, Some(2.0)));
}

#[test]
fn order_of_labels_is_irrelevant() {
    let text = "vllm:num_requests_running{a=\"1\",b=\"2\"} 5\nvllm:num_requests_running{b=\"2\",a=\"1\"} 5\n";
    assert_eq!(state(text).running, Some(5.0));
}

#[test]
fn ratio_of_several_ranks_is_ignored() {
    let text = "sglang:cache_hit_rate{dp_rank=\"0\"} 0.5\nsglang:cache_hit_rate{dp_rank=\"1\"} 0.1\n";
    assert_eq!(state(text).cache_ratio, None);
}

#[test]
fn sum_requires_all_its_names() {
    let text = "trtllm_kv_cache_reused_blocks_total 30\n";
    assert_eq!((state(text).cache_hits, state(text).cache_queries), (Some(30.0), None));
}

#[test]
fn page_without_known_names_is_detected() {
    assert!(page("python_info{version=\"3.11\"} 1\nvllm:something_new 3\n").has_no_known_names());
    assert!(!page("vllm:num_requests_running 0\n").has_no_known_names());
}
