//! Each injected fault has its documented effect.

use std::io;
use std::time::{Duration, Instant};

use tokometer_sim::server::{Fault, Settings, Simulator};

use crate::sim::round_trip;
use crate::sim::round_trip::Received;

const CHAT: &str = "/v1/chat/completions";
const BODY: &str = r#"{"messages":[],"stream":true,"max_tokens":9,"ignore_eos":true,
    "stream_options":{"include_usage":true}}"#;

async fn with_fault(fault: &str) -> (Received, Simulator) {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let header = format!("X-Sim-Fault: {fault}\r\n");
    let received = round_trip::post(simulator.local_address(), CHAT, &header, BODY).await;
    (received, simulator)
}

/// Number of chunks that contain a token.
fn tokens(chunks: &[String]) -> usize {
    chunks.iter().filter(|chunk| chunk.contains("\"delta\":{\"content\":\"")).count()
}

#[tokio::test]
async fn status_fault_returns_an_error_envelope() {
    for status in [400, 404, 429, 500, 503] {
        let (received, simulator) = with_fault(&format!("status:{status}")).await;
        let (head, body) = round_trip::split(&received.bytes);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let body: serde_json::Value = serde_json::from_slice(body).unwrap();
        assert_eq!(body["error"]["code"], status);
        assert_eq!(simulator.stats().refused, 1);
    }
}

#[tokio::test]
async fn error_event_is_followed_by_done_and_clean_end() {
    let (received, simulator) = with_fault("error-event:2").await;
    let (chunks, terminated) = round_trip::chunks(round_trip::split(&received.bytes).1);
    assert!(terminated);
    assert_eq!(tokens(&chunks), 2);
    let [.., error, done] = chunks.as_slice() else { panic!("{chunks:?}") };
    assert!(error.starts_with("data: {\"error\": {"), "{error}");
    assert_eq!(done, "data: [DONE]\n\n");
    let stats = simulator.stop().await;
    assert_eq!((stats.generation_tokens, stats.faulted, stats.aborted), (2, 1, 0));
}

#[tokio::test]
async fn cut_omits_terminator_and_reset_resets() {
    let (received, _) = with_fault("cut").await;
    let (chunks, terminated) = round_trip::chunks(round_trip::split(&received.bytes).1);
    assert_eq!((tokens(&chunks), terminated, received.end.is_ok()), (3, false, true));
    let (received, _) = with_fault("reset:4").await;
    assert_eq!(received.end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn no_done_empty_and_bad_json_otherwise_end_cleanly() {
    let (received, _) = with_fault("no-done").await;
    let (chunks, terminated) = round_trip::chunks(round_trip::split(&received.bytes).1);
    assert_eq!((tokens(&chunks), terminated), (9, true));
    assert!(chunks.last().unwrap().contains("\"usage\":"));
    let (received, _) = with_fault("empty").await;
    let (head, body) = round_trip::split(&received.bytes);
    assert!(head.contains("text/event-stream"));
    assert_eq!(body, b"0\r\n\r\n");
    let (received, _) = with_fault("bad-json:1").await;
    let (chunks, terminated) = round_trip::chunks(round_trip::split(&received.bytes).1);
    assert_eq!((tokens(&chunks), terminated), (9, true));
    assert_eq!(chunks.iter().filter(|chunk| chunk.ends_with("chatcmpl-\n\n")).count(), 1);
}

#[tokio::test]
async fn stalls_last_for_the_given_time() {
    for fault in ["stall:0.05", "hang:0.05", "slow-headers:0.05"] {
        let began = Instant::now();
        let (received, simulator) = with_fault(fault).await;
        assert!(began.elapsed() >= Duration::from_millis(50), "{fault}");
        let (chunks, terminated) = round_trip::chunks(round_trip::split(&received.bytes).1);
        assert_eq!((tokens(&chunks), terminated), (9, true), "{fault}");
        assert_eq!(simulator.stats().exhausted, 1);
    }
}

#[tokio::test]
async fn garbage_is_not_http() {
    let (received, _) = with_fault("garbage").await;
    assert!(!received.bytes.starts_with(b"HTTP/"));
    assert!(received.end.is_ok());
}

#[tokio::test]
async fn fault_is_selected_by_model_name_or_at_random() {
    let faults = vec![(Fault::Status(503), 0.5)];
    let simulator = Simulator::start(Settings { faults, ..round_trip::swift() }).await.unwrap();
    let body = BODY.replace("{\"messages\"", "{\"model\":\"fault/status:429\",\"messages\"");
    let received = round_trip::post(simulator.local_address(), CHAT, "", &body).await;
    assert!(received.bytes.starts_with(b"HTTP/1.1 429 "));
    let mut unlucky = 0;
    for _ in 0..40 {
        let received = round_trip::post(simulator.local_address(), CHAT, "", BODY).await;
        unlucky += usize::from(received.bytes.starts_with(b"HTTP/1.1 503 "));
    }
    assert!((8..=32).contains(&unlucky), "{unlucky} of 40");
    let received = round_trip::post(simulator.local_address(), CHAT, "X-Sim-Fault: explode\r\n", BODY).await;
    assert!(received.bytes.starts_with(b"HTTP/1.1 400 "));
}
