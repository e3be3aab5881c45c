//! The simulated server's output has the shape that was recorded from vLLM 0.32.0 (`tests/fixtures/vllm`).

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tokometer_sim::server::{Settings, Simulator};

use crate::sim::round_trip;

/// A recording in `tests/fixtures/vllm`, or, with an engine prefix, in `tests/fixtures/captures`.
fn recorded(case: &str) -> Vec<u8> {
    if case.contains('/') {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures").join(format!("{case}.jsonl"));
        let lines = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let reads = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let bytes = reads.filter_map(|read| read["b64"].as_str().map(|text| STANDARD.decode(text).unwrap()));
        return bytes.flatten().collect();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vllm").join(case).with_extension("http");
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// JSON text with its keys in order and each value replaced by its type.
fn skeleton(json: &str) -> String {
    let mut out = String::new();
    let mut rest = json.chars().peekable();
    while let Some(letter) = rest.next() {
        match letter {
            '"' => {
                let mut text = String::new();
                while let Some(letter) = rest.next().filter(|letter| *letter != '"') {
                    text.push(letter);
                    if letter == '\\' {
                        text.extend(rest.next());
                    }
                }
                out.push_str(&if rest.peek() == Some(&':') { format!("{text:?}") } else { "text".to_owned() });
            }
            '0'..='9' | '-' => {
                while rest.next_if(|letter| matches!(letter, '0'..='9' | '.' | 'e' | '-' | '+')).is_some() {}
                out.push('0');
            }
            letter => out.push(letter),
        }
    }
    // Lists of ids vary in length.
    while out.contains("0,0") {
        out = out.replace("0,0", "0");
    }
    out
}

/// The header lines of a response, without values that vary.
fn head_skeleton(head: &str) -> Vec<String> {
    let lines = head
        .split("\r\n")
        .filter(|line| !line.eq_ignore_ascii_case("connection: close") && !line.starts_with("Keep-Alive: "));
    lines
        .map(|line| match line.split_once(": ") {
            Some((name @ ("date" | "content-length" | "Date" | "Content-Length"), _)) => name.to_owned(),
            _ => line.to_owned(),
        })
        .collect()
}

/// The distinct events of a stream, in the order of their first appearance.
fn kinds(body: &[u8]) -> Vec<String> {
    let (chunks, terminated) = round_trip::chunks(body);
    assert!(terminated);
    let mut kinds = Vec::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.starts_with(':')) {
        let kind = skeleton(chunk);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

pub(super) async fn assert_same_shape(settings: Settings, case: &str, path: &str, headers: &str, body: &str) {
    let simulator = Simulator::start(settings).await.unwrap();
    let received = round_trip::post(simulator.local_address(), path, headers, body).await;
    let recorded = recorded(case);
    let ((head, body), (recorded_head, recorded_body)) =
        (round_trip::split(&received.bytes), round_trip::split(&recorded));
    assert_eq!(head_skeleton(&head), head_skeleton(&recorded_head), "{case}");
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        assert_eq!(kinds(body), kinds(recorded_body), "{case}");
    } else {
        let text = |body: &[u8]| skeleton(std::str::from_utf8(body).unwrap());
        assert_eq!(text(body), text(recorded_body), "{case}");
    }
}

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

#[tokio::test]
async fn chat_stream_has_the_recorded_shape() {
    let one = r#"{"model":"tiny","messages":[{"role":"user","content":"Say hello."}],"stream":true,"max_tokens":1,
        "stream_options":{"include_usage":true}}"#;
    assert_same_shape(round_trip::swift(), "chat-stream-one-token", CHAT, "", one).await;
    let continuous = r#"{"model":"tiny","messages":[{"role":"user","content":"Count."}],"stream":true,"max_tokens":9,
        "ignore_eos":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    assert_same_shape(round_trip::swift(), "chat-stream-continuous-usage", CHAT, "", continuous).await;
    let two = r#"{"model":"tiny","messages":[{"role":"user","content":"Loop."}],"stream":true,"max_tokens":9,"n":2,
        "ignore_eos":true,"stream_options":{"include_usage":true}}"#;
    assert_same_shape(round_trip::swift(), "chat-stream-n2", CHAT, "", two).await;
}

#[tokio::test]
async fn chat_stream_without_usage_has_fingerprint_and_request_id() {
    let body = r#"{"model":"tiny","messages":[],"stream":true,"max_tokens":5,"ignore_eos":true}"#;
    let header = "X-Request-Id: my-req-0001\r\n";
    assert_same_shape(round_trip::swift(), "chat-stream-request-id", CHAT, header, body).await;
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let received = round_trip::post(simulator.local_address(), CHAT, header, body).await;
    let (_, stream) = round_trip::split(&received.bytes);
    assert!(round_trip::events(stream).iter().all(|event| event["id"] == "chatcmpl-my-req-0001"));
}

#[tokio::test]
async fn stopped_response_ends_with_empty_delta_and_metrics() {
    let body = r#"{"model":"tiny","messages":[],"stream":true,"stream_options":{"include_usage":true}}"#;
    let settings = Settings { per_request_metrics: true, prompt_tokens_details: true, ..round_trip::swift() };
    assert_same_shape(settings, "spec-metrics-chat-stream-count", CHAT, "", body).await;
}

#[tokio::test]
async fn token_ids_and_several_tokens_per_event_have_the_recorded_shape() {
    let mut settings = round_trip::swift();
    settings.pace.tokens_per_chunk = 5;
    let body = r#"{"model":"tiny","messages":[],"stream":true,"max_tokens":23,"ignore_eos":true,
        "stream_options":{"include_usage":true,"continuous_usage_stats":true},"return_token_ids":true}"#;
    assert_same_shape(settings, "stream-interval-chat-continuous", CHAT, "", body).await;
}

#[tokio::test]
async fn completions_stream_has_the_recorded_shape() {
    let body = r#"{"model":"tiny","prompt":"Count.","stream":true,"max_tokens":9,"ignore_eos":true}"#;
    assert_same_shape(round_trip::swift(), "completions-stream", TEXT, "", body).await;
    let body = r#"{"model":"tiny","prompt":[1,2,3],"stream":true,"max_tokens":9,"ignore_eos":true,
        "stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    assert_same_shape(round_trip::swift(), "completions-stream-continuous", TEXT, "", body).await;
}

#[tokio::test]
async fn non_streamed_responses_and_errors_have_recorded_shape() {
    let chat = r#"{"model":"tiny","messages":[{"role":"user","content":"Say hello."}]}"#;
    assert_same_shape(round_trip::swift(), "chat-nonstream", CHAT, "", chat).await;
    let text = r#"{"model":"tiny","prompt":"Count.","max_tokens":6}"#;
    assert_same_shape(round_trip::swift(), "completions-nonstream", TEXT, "", text).await;
    let unknown = r#"{"model":"nope","messages":[],"stream":true}"#;
    assert_same_shape(round_trip::swift(), "err-bad-model-stream", CHAT, "", unknown).await;
    assert_same_shape(round_trip::swift(), "err-404", "/v1/nothing", "", "").await;
}

#[tokio::test]
async fn model_list_and_wrong_method_have_the_recorded_shape() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    for (case, path) in [("models", "/v1/models"), ("err-405", CHAT)] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n");
        let received = round_trip::round_trip(simulator.local_address(), request.as_bytes()).await;
        let recorded = recorded(case);
        let ((head, body), (recorded_head, recorded_body)) =
            (round_trip::split(&received.bytes), round_trip::split(&recorded));
        assert_eq!(head_skeleton(&head), head_skeleton(&recorded_head), "{case}");
        let text = |body: &[u8]| skeleton(std::str::from_utf8(body).unwrap());
        assert_eq!(text(body), text(recorded_body), "{case}");
    }
}
