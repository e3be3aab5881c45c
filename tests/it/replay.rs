//! `tokometer replay`: the names of its lines are an interface.

use std::fs;

use serde_json::Value;
use tokometer::app::replay;
use tokometer::observe::Settings;

use crate::truth::captures;

/// What users' scripts may rely on, in docs and help texts.
const NAMES: [&str; 23] = [
    "engine",
    "operation",
    "model",
    "streaming",
    "status",
    "outcome",
    "finish_reasons",
    "input_tokens",
    "input_tokens_source",
    "cached_tokens",
    "reasoning_tokens",
    "output_tokens",
    "output_tokens_source",
    "time_to_headers_ms",
    "time_to_first_event_ms",
    "time_to_first_token_ms",
    "time_to_first_visible_ms",
    "last_token_ms",
    "decode_tokens_per_second",
    "chunks",
    "queue_time_ms",
    "queue_time_source",
    "longest_gap_ms",
];

#[test]
fn every_exchange_is_one_line_with_every_name() {
    let mut out = Vec::new();
    replay(&captures().join("vllm-0.32.0"), true, &Settings::default(), &mut out).expect("recordings are readable");
    let lines: Vec<Value> = String::from_utf8(out)
        .expect("JSON is UTF-8")
        .lines()
        .map(|line| serde_json::from_str(line).expect("one object per line"))
        .collect();
    assert!(lines.len() > 70, "{}", lines.len());
    for line in &lines {
        for name in NAMES {
            assert!(line.get(name).is_some(), "no {name} in {line}");
        }
    }
}

#[test]
fn a_recording_that_cannot_be_read_does_not_keep_the_others_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let good = captures().join("vllm-0.32.0/chat-stream-usage");
    for end in ["jsonl", "meta.json"] {
        fs::copy(good.with_extension(end), folder.path().join(format!("good.{end}"))).expect("a copy");
    }
    fs::write(folder.path().join("bad.jsonl"), "{}\n").expect("a file");
    fs::write(folder.path().join("bad.meta.json"), "{\"request_raw_b64\":\"\"}").expect("a file");
    let mut out = Vec::new();
    let error = replay(folder.path(), true, &Settings::default(), &mut out).expect_err("one of them is bad");
    assert!(error.to_string().contains("bad.jsonl:1: "), "{error}");
    assert_eq!(String::from_utf8_lossy(&out).lines().count(), 1);
}
