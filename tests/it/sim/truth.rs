//! The values that the simulated server reports match its behavior.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokometer_sim::server::{Pace, Settings, Simulator};

use crate::sim::round_trip;

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn usage_token_ids_and_counters_agree() {
    for tokens_per_chunk in [1, 4] {
        let mut settings = round_trip::swift();
        settings.pace.tokens_per_chunk = tokens_per_chunk;
        let simulator = Simulator::start(settings).await.unwrap();
        let mut total = 0;
        for (limit, n) in [(1, 1), (2, 1), (30, 1), (30, 3), (1000, 2)] {
            let body = format!(
                r#"{{"model":"tiny","messages":[{{"role":"user","content":"Hello"}}],"stream":true,"n":{n},
                "max_tokens":{limit},"return_token_ids":true,"stream_options":{{"include_usage":true}}}}"#
            );
            let received = round_trip::post(simulator.local_address(), CHAT, "", &body).await;
            let (_, stream) = round_trip::split(&received.bytes);
            let events = round_trip::events(stream);
            let ids: usize = events
                .iter()
                .flat_map(|event| event["choices"].as_array().unwrap())
                .filter_map(|choice| choice["token_ids"].as_array())
                .map(Vec::len)
                .sum();
            let usage = &events.last().unwrap()["usage"];
            assert_eq!(usage["completion_tokens"], ids);
            let sum = usage["prompt_tokens"].as_u64().unwrap() + ids as u64;
            assert_eq!(usage["total_tokens"], sum);
            total += ids as u64;
            assert_eq!(simulator.stats().generation_tokens, total);
        }
        let stats = simulator.stop().await;
        assert_eq!((stats.requests, stats.stopped + stats.exhausted, stats.aborted), (5, 5, 0));
        assert_eq!((stats.running, stats.waiting), (0, 0));
    }
}

#[tokio::test]
async fn seed_determines_the_responses() {
    let mut responses = Vec::new();
    for seed in [1, 1, 2] {
        let simulator = Simulator::start(Settings { seed, ..round_trip::swift() }).await.unwrap();
        let body = r#"{"model":"tiny","messages":[],"stream":true}"#;
        let mut contents = Vec::new();
        for _ in 0..3 {
            let received = round_trip::post(simulator.local_address(), CHAT, "", body).await;
            let (_, stream) = round_trip::split(&received.bytes);
            let text = |event: &Value| event["choices"][0]["delta"]["content"].as_str().unwrap_or("").to_owned();
            contents.push(round_trip::events(stream).iter().map(text).collect::<String>());
        }
        assert_ne!(contents[0], contents[1], "each request has a different response");
        responses.push(contents);
    }
    assert_eq!(responses[0], responses[1]);
    assert_ne!(responses[1], responses[2]);
}

#[tokio::test]
async fn queued_request_has_headers_and_aborted_one_keeps_tokens() {
    let pace = Pace { time_to_first_token: Duration::ZERO, tokens_per_second: 0.001, ..Pace::default() };
    let settings = Settings { max_concurrency: 1, pace, per_request_metrics: true, ..round_trip::swift() };
    let simulator = Simulator::start(settings).await.unwrap();
    let request = |tokens: u32| {
        let body = format!(
            r#"{{"messages":[],"stream":true,"max_tokens":{tokens},"ignore_eos":true,
            "stream_options":{{"include_usage":true}}}}"#
        );
        format!("POST {CHAT} HTTP/1.1\r\nHost: sim\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    let mut first = TcpStream::connect(simulator.local_address()).await.unwrap();
    first.write_all(request(2).as_bytes()).await.unwrap();
    read_past(&mut first, b"\"role\"").await;
    let mut second = TcpStream::connect(simulator.local_address()).await.unwrap();
    second.write_all(request(1).as_bytes()).await.unwrap();
    read_past(&mut second, b"\r\n\r\n").await;
    while simulator.stats().waiting == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!((simulator.stats().running, simulator.stats().waiting), (1, 1));
    // The first request would take 15 minutes. After its client disconnects, the second request is scheduled.
    drop(first);
    let rest = read_past(&mut second, b"[DONE]").await;
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("\"queue_time_ms\":"), "{rest}");
    let stats = simulator.stop().await;
    assert_eq!((stats.aborted, stats.exhausted, stats.generation_tokens), (1, 1, 2));
}

#[tokio::test]
async fn metrics_page_has_vllm_names_and_correct_values() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let body = r#"{"model":"tiny","messages":[],"stream":true,"max_tokens":7,"ignore_eos":true}"#;
    round_trip::post(simulator.local_address(), CHAT, "", body).await;
    round_trip::post(simulator.local_address(), CHAT, "", "no JSON").await;
    round_trip::post(simulator.local_address(), "/v2/chat", "", body).await;
    let request = b"GET /metrics HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n";
    let received = round_trip::round_trip(simulator.local_address(), request).await;
    let (head, page) = round_trip::split(&received.bytes);
    assert!(head.contains("content-type: text/plain; version=1.0.0; charset=utf-8"), "{head}");
    let page = std::str::from_utf8(page).unwrap();
    let labels = r#"{engine="0",model_name="tiny"}"#;
    for line in [
        format!("vllm:num_requests_running{labels} 0.0"),
        format!("vllm:num_requests_waiting{labels} 0.0"),
        format!("vllm:kv_cache_usage_perc{labels} 0.0"),
        format!("vllm:generation_tokens_total{labels} 7.0"),
        format!("vllm:time_to_first_token_seconds_count{labels} 1.0"),
        format!("vllm:request_queue_time_seconds_count{labels} 1.0"),
        r#"vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1.0"#.to_owned(),
        r#"http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 1.0"#.to_owned(),
        r#"http_requests_total{handler="/v1/chat/completions",method="POST",status="4xx"} 1.0"#.to_owned(),
        r#"http_requests_total{handler="none",method="POST",status="4xx"} 1.0"#.to_owned(),
    ] {
        assert!(page.lines().any(|had| had == line), "{line} is not in\n{page}");
    }
    // Like vLLM, the server does not count requests for its metrics page.
    assert!(!page.contains("/metrics"), "{page}");
}

#[tokio::test]
async fn connections_are_kept_and_closed_like_uvicorn() {
    let settings = Settings { idle_timeout: Duration::from_millis(500), ..round_trip::swift() };
    let simulator = Simulator::start(settings).await.unwrap();
    // Two pipelined requests on one connection, then silence: both get a response, and the server closes the
    // connection.
    let twice = b"GET /health HTTP/1.1\r\nHost: sim\r\n\r\nHEAD /health HTTP/1.1\r\nHost: sim\r\n\r\n";
    let received = round_trip::round_trip(simulator.local_address(), twice).await;
    let text = String::from_utf8(received.bytes).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{text}");
    assert!(received.end.is_ok());
    // A chunked request body with `Expect: 100-continue`.
    let chunked = b"POST /v1/completions HTTP/1.1\r\nHost: sim\r\nExpect: 100-continue\r\nConnection: close\r\n\
        Transfer-Encoding: chunked\r\n\r\nB;x=1\r\n{\"prompt\":\"\r\n14\r\na\",\"max_tokens\":2  }\r\n0\r\n\r\n";
    let received = round_trip::round_trip(simulator.local_address(), chunked).await;
    let text = String::from_utf8(received.bytes).unwrap();
    assert!(text.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains("connection: close\r\n"), "{text}");
    let received = round_trip::round_trip(simulator.local_address(), b"\x16\x03\x01 no HTTP\r\n\r\n").await;
    assert!(received.bytes.starts_with(b"HTTP/1.1 400 Bad Request\r\n"));
}

/// Reads until `mark` has been received; returns all bytes read.
async fn read_past(stream: &mut TcpStream, mark: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    while !bytes.windows(mark.len()).any(|window| window == mark) {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&bytes));
    }
    bytes
}

#[tokio::test]
async fn spinning_server_keeps_the_pace_of_a_sleeping_one() {
    let mut settings = Settings { spin: true, ..round_trip::swift() };
    settings.pace.tokens_per_second = 1000.0;
    let simulator = Simulator::start(settings).await.unwrap();
    let body = r#"{"messages":[],"stream":true,"max_tokens":11,"ignore_eos":true}"#;
    let began = std::time::Instant::now();
    let received = round_trip::post(simulator.local_address(), CHAT, "", body).await;
    assert!(began.elapsed() >= Duration::from_millis(10), "eleven tokens have ten gaps");
    assert_eq!(round_trip::events(round_trip::split(&received.bytes).1).len(), 12);
    assert_eq!(simulator.stats().generation_tokens, 11);
}

#[tokio::test]
async fn non_streamed_response_stops_when_client_disconnects() {
    let mut settings = round_trip::swift();
    settings.pace.tokens_per_second = 0.001;
    let simulator = Simulator::start(settings).await.unwrap();
    let body = r#"{"messages":[],"max_tokens":3,"ignore_eos":true}"#;
    let request = format!("POST {CHAT} HTTP/1.1\r\nHost: sim\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut client = TcpStream::connect(simulator.local_address()).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    while simulator.stats().generation_tokens == 0 {
        tokio::task::yield_now().await;
    }
    drop(client);
    while simulator.stats().running > 0 {
        tokio::task::yield_now().await;
    }
    let stats = simulator.stop().await;
    assert_eq!((stats.aborted, stats.generation_tokens), (1, 1));
}
