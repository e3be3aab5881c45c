//! `tokometer replay`: the field names of its output are a stable interface.

use std::fs;

use serde_json::Value;
use tokometer::replay::{Show, print};
use tokometer_observe::observer::Settings;

use crate::truth::captures;

/// Documented field names that users' scripts may rely on.
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

const JSON: Show = Show { json: true, timeline: false };

#[test]
fn each_request_is_one_line_with_all_fields() {
    let mut out = Vec::new();
    print(&captures().join("vllm-0.32.0"), &[], JSON, &Settings::default(), &mut out).expect("recordings are readable");
    let lines: Vec<Value> = String::from_utf8(out)
        .expect("JSON is UTF-8")
        .lines()
        .map(|line| serde_json::from_str(line).expect("one object per line"))
        .collect();
    assert!(lines.len() > 70, "{}", lines.len());
    let named = |name: &str| lines.iter().filter(|line| line["recording"] == name).count();
    assert_eq!(named("vllm-0.32.0/chat-stream-usage"), 1, "each line has the name of its recording");
    for line in &lines {
        for name in NAMES {
            assert!(line.get(name).is_some(), "no {name} in {line}");
        }
    }
}

#[test]
fn invalid_recording_does_not_prevent_others() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let good = captures().join("vllm-0.32.0/chat-stream-usage");
    for end in ["jsonl", "meta.json"] {
        fs::copy(good.with_extension(end), folder.path().join(format!("good.{end}"))).expect("the file is copied");
    }
    fs::write(folder.path().join("bad.jsonl"), "{}\n").expect("the file is written");
    fs::write(folder.path().join("bad.meta.json"), "{\"request_raw_b64\":\"\"}").expect("the file is written");
    let mut out = Vec::new();
    let error = print(folder.path(), &[], JSON, &Settings::default(), &mut out).expect_err("one recording is invalid");
    assert!(error.to_string().contains("bad.jsonl:1: "), "{error}");
    assert_eq!(String::from_utf8_lossy(&out).lines().count(), 1);
}

/// Output of `replay` for one recording.
fn shown(case: &str, show: Show) -> String {
    let mut out = Vec::new();
    let path = captures().join(format!("{case}.jsonl"));
    print(&path, &[], show, &Settings::default(), &mut out).expect("the recording is readable");
    String::from_utf8(out).expect("the output is UTF-8")
}

#[test]
fn timeline_matches_the_record() {
    let show = Show { json: true, timeline: true };
    for case in
        ["vllm-0.32.0/chat-stream-usage", "sglang-0.5.23/chat-stream-usage", "ollama-0.17.4/api-chat-stream-long"]
    {
        let record: Value = serde_json::from_str(shown(case, show).trim()).expect("one record");
        let points = record["timeline"]["points"].as_array().expect("the timeline has points");
        let number = |value: &Value| value.as_f64().expect("a number");
        let near = |point: &Value, name: &str| (number(point) - number(&record[name])).abs() < 0.01;
        let (first, last) = (&points[0], points.last().expect("a point"));
        assert!(near(&last[0], "last_token_ms"), "{case}: {record}");
        assert!(points.len() <= 48, "{case}: {}", points.len());
        if record["timeline"]["events_per_point"] == 1 {
            assert!(near(&first[0], "time_to_first_token_ms"), "{case}: {record}");
            assert_eq!(points.len() as u64, record["chunks"].as_u64().expect("a stream"), "{case}");
        } else {
            assert!(record["chunks"].as_u64() > Some(48) && points.len() >= 24, "{case}: {record}");
        }
        let longest = points.iter().map(|point| number(&point[2])).fold(0.0, f64::max);
        assert!((longest / number(&record["longest_gap_ms"]) - 1.0).abs() < 0.002, "{case}: {longest} {record}");
    }
    let whole: Value = serde_json::from_str(shown("vllm-0.32.0/chat-nonstream", show).trim()).expect("one record");
    assert_eq!(whole.get("timeline"), Some(&Value::Null), "token times of a non-streamed response are unknown");
    let plain: Value = serde_json::from_str(shown("vllm-0.32.0/chat-nonstream", JSON).trim()).expect("one record");
    assert_eq!(plain.get("timeline"), None);
}

#[test]
fn timeline_text_has_one_sorted_row_per_point() {
    let text = shown("vllm-0.32.0/chat-stream-usage", Show { json: false, timeline: true });
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("events per row: 4")).skip(1).collect();
    let times: Vec<f64> = rows.iter().filter_map(|row| row.split_whitespace().next()?.parse().ok()).collect();
    assert!(times.len() > 24 && times.len() == rows.len() && times.is_sorted(), "{text}");
}

const HEAD: &str = "# Request record

Generated from the code; do not edit.

`tokometer replay --json` and the access log (`access_log.format: json`) write one line per request: a JSON object with
the values in the table below. Names and meanings are a stable interface: existing ones do not change, but new ones may
be added. Unknown values are null, never 0. Names that end with `_ms` are times in milliseconds. Points in time, such as
`last_token_ms`, are measured from the last byte of the request. The phases (`phase_*_ms`) add up to `duration_ms`
([Traces](../concepts/traces.md)).

Some lines have more values:

- Access log lines start with `time`, the time at which the first byte of the request was received. The text format
  omits null values.
- `replay` lines end with `recording` (the directory and name of the file). For packet captures, they also have `time`,
  `client` and `server`. With `--timeline`, they also have `timeline`.

The exit codes of `tokometer` are also a stable interface: 0 success, 1 failure, 2 wrong usage or an invalid
configuration.

| name | meaning |
|---|---|
";

#[test]
fn request_record_page_matches_the_code() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/request-record.md");
    let rows = tokometer_telemetry::fields::meanings().map(|(name, meaning)| format!("| `{name}` | {meaning} |\n"));
    let made: String = std::iter::once(HEAD.to_owned()).chain(rows).collect();
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == made, "docs/reference/request-record.md is out of date: run this test with UPDATE=1");
}

#[test]
fn control_characters_of_received_text_and_file_names_are_escaped() {
    let folder = tempfile::tempdir().expect("a directory");
    let case = folder.path().join("a\u{9b}31m\u{1b}[2Jb\nc");
    let encode = |bytes: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
    let request = "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}";
    let body = "{\"id\":\"x\u{9b}31m\u{85}y\u{7f}\",\"model\":\"m\u{9c}\",\"choices\":[]}";
    let response =
        format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let write = |extension: &str, text: String| {
        fs::write(format!("{}.{extension}", case.display()), text).expect("the directory is writable");
    };
    write("meta.json", serde_json::json!({"request_raw_b64": encode(request)}).to_string());
    write("jsonl", serde_json::json!({"t_us": 1, "b64": encode(&response)}).to_string());
    for show in [JSON, Show::default()] {
        let mut out = Vec::new();
        print(folder.path(), &[], show, &Settings::default(), &mut out).expect("the recording is readable");
        let out = String::from_utf8(out).expect("UTF-8");
        assert_eq!(out.lines().count(), if show.json { 1 } else { 2 }, "{out:?}");
        assert!(!out.chars().any(|c| c.is_control() && c != '\n'), "{out:?}");
        if show.json {
            assert!(out.contains("x\\u009b31m\\u0085y\\u007f"), "{out}");
            let line: Value = serde_json::from_str(&out).expect("valid JSON");
            assert_eq!(line["response_id"], "x\u{9b}31m\u{85}y\u{7f}");
        } else {
            assert!(out.contains("a\\u{9b}31m\\u{1b}[2Jb\\nc"), "{out}");
        }
    }
}

#[test]
fn capture_without_packets_is_an_error_of_its_own() {
    use tokometer::replay::{Captured, Error, is_capture};
    let folder = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("the file is written");
        path
    };
    for name in ["empty.pcap", "empty.pcapng", "empty.jsonl"] {
        let error = is_capture(&write(name, b"")).expect_err("the file is empty");
        assert!(matches!(error, Error::EmptyFile(_)) && error.to_string().contains(name), "{error}");
    }
    let pcap = [&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0][..], &[0; 8], &[0, 0, 4, 0, 1, 0, 0, 0]].concat();
    let block = [0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0];
    let pcapng = [&block[..], &[0xff; 8], &[28, 0, 0, 0]].concat();
    for (name, bytes) in [("header.pcap", pcap), ("header.pcapng", pcapng)] {
        let path = write(name, &bytes);
        assert!(is_capture(&path).expect("a capture"), "{name}");
        for ports in [&[][..], &[8000]] {
            let error = Captured::read(&path, ports, &Settings::default(), false).expect_err("no packets");
            assert!(matches!(error, Error::NoPackets(_)), "{name}: {error}");
            assert!(error.to_string().contains("contains no packets"), "{error}");
        }
    }
}
