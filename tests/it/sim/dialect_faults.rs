//! In each dialect, the server counts the generated tokens, sends the dialect's end mark, and reports errors in its
//! format.

use serde_json::Value;
use tokometer_sim::server::{Settings, Simulator};

use crate::sim::cases::{CASES, Case};
use crate::sim::round_trip;

/// The received chunks, and whether the body was terminated correctly.
async fn ask(case: &Case, fault: &str) -> (Vec<String>, bool, Simulator) {
    let simulator = Simulator::start(Settings { model: "tiny".to_owned(), ..round_trip::swift() }).await.unwrap();
    let fault = if fault.is_empty() { String::new() } else { format!("x-sim-fault: {fault}\r\n") };
    let headers = format!("{}{fault}", case.headers);
    let received = round_trip::post(simulator.local_address(), case.path, &headers, case.body).await;
    let (head, body) = round_trip::split(&received.bytes);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{} {head} {}", case.path, String::from_utf8_lossy(body));
    let (chunks, terminated) = round_trip::chunks(body);
    (chunks, terminated, simulator)
}

/// The JSON in a chunk, if it contains any.
fn json(chunk: &str) -> Option<Value> {
    let line = chunk.lines().find(|line| line.starts_with("data: ") || line.starts_with('{'))?;
    serde_json::from_str(line.strip_prefix("data: ").unwrap_or(line)).ok()
}

#[tokio::test]
async fn complete_stream_reports_tokens_and_ends_with_mark() {
    for case in CASES {
        let (chunks, terminated, simulator) = ask(case, "").await;
        assert!(terminated, "{}", case.path);
        assert!(chunks.last().unwrap().contains(case.mark), "{}: {:?}", case.path, chunks.last());
        let stats = simulator.stats();
        assert_eq!((stats.generation_tokens, stats.exhausted, stats.requests), (9, 1, 1), "{}", case.path);
        if !case.count.is_empty() {
            let mut counts = chunks.iter().filter_map(|chunk| json(chunk)?.pointer(case.count)?.as_u64());
            assert_eq!(counts.next_back(), Some(9), "{}", case.path);
        }
        assert!(chunks.iter().all(|chunk| chunk.contains("[DONE]") || json(chunk).is_some()), "{}", case.path);
    }
}

#[tokio::test]
async fn mid_stream_error_has_the_dialects_format() {
    for case in CASES {
        let (chunks, terminated, simulator) = ask(case, "error-event:2").await;
        let stats = simulator.stats();
        assert_eq!((stats.generation_tokens, stats.faulted, stats.aborted), (2, 1, 0), "{}", case.path);
        if case.error.is_empty() {
            assert!(!terminated, "{}", case.path);
            continue;
        }
        assert!(terminated, "{}", case.path);
        let reported = chunks.iter().filter(|chunk| chunk.contains(case.error)).count();
        assert_eq!(reported, 1, "{}: {chunks:?}", case.path);
        let ends_with_done = chunks.last().unwrap().contains("[DONE]");
        assert_eq!(ends_with_done, case.mark.contains("[DONE]"), "{}", case.path);
    }
}

#[tokio::test]
async fn missing_mark_ends_cleanly_and_cut_does_not() {
    for case in CASES {
        let (chunks, terminated, _) = ask(case, "no-done").await;
        assert!(terminated, "{}", case.path);
        if !case.mark.is_empty() {
            assert!(!chunks.iter().any(|chunk| chunk.contains(case.mark)), "{}: {:?}", case.path, chunks.last());
        }
        let (chunks, terminated, simulator) = ask(case, "cut:2").await;
        assert!(!terminated, "{}", case.path);
        assert!(case.mark.is_empty() || !chunks.iter().any(|chunk| chunk.contains(case.mark)), "{}", case.path);
        assert_eq!(simulator.stats().generation_tokens, 2, "{}", case.path);
    }
}

#[tokio::test]
async fn empty_stream_and_broken_event_end_cleanly() {
    for case in CASES {
        let (chunks, terminated, _) = ask(case, "empty").await;
        assert!(terminated, "{}", case.path);
        // The Responses API sends its first two events before any fault is injected.
        assert_eq!(chunks.len(), if case.path == "/v1/responses" { 2 } else { 0 }, "{}", case.path);
        let (chunks, terminated, _) = ask(case, "bad-json:2").await;
        let broken = chunks.iter().filter(|chunk| !chunk.contains("[DONE]") && json(chunk).is_none()).count();
        assert_eq!((broken, terminated), (1, true), "{}: {chunks:?}", case.path);
        assert!(chunks.last().unwrap().contains(case.mark), "{}", case.path);
    }
}

#[tokio::test]
async fn error_status_has_the_engines_envelope() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    for (path, headers, body, pointer) in [
        ("/v1/messages", "", r#"{"messages":[]}"#, "/error/type"),
        ("/completion", "", r#"{"prompt":"x"}"#, "/error/code"),
        ("/generate", "", r#"{"inputs":"x"}"#, "/error_type"),
        ("/generate", "", r#"{"text":"x"}"#, "/error/message"),
        ("/api/chat", "", r#"{"messages":[]}"#, "/error"),
        ("/v2/models/m/generate", "", r#"{"text_input":"x"}"#, "/error"),
        ("/v1/chat/completions", "x-sim-engine: sglang\r\n", r#"{"messages":[]}"#, "/code"),
        ("/v1/chat/completions", "x-sim-engine: dynamo\r\n", r#"{"messages":[]}"#, "/message"),
        ("/v1/embeddings", "", r#"{"input":"x"}"#, "/error/code"),
    ] {
        let headers = format!("{headers}x-sim-fault: status:503\r\n");
        let received = round_trip::post(simulator.local_address(), path, &headers, body).await;
        let (head, body) = round_trip::split(&received.bytes);
        assert!(head.starts_with("HTTP/1.1 503 "), "{path}: {head}");
        let body: Value = serde_json::from_slice(body).unwrap();
        assert!(body.pointer(pointer).is_some_and(|value| !value.is_null()), "{path}: {body}");
    }
    let received = round_trip::post(simulator.local_address(), "/v1/messages", "x-sim-engine: grok\r\n", "{}").await;
    let (head, body) = round_trip::split(&received.bytes);
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    assert!(String::from_utf8_lossy(body).contains("expected one of: vllm"));
}
