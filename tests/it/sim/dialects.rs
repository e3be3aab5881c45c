//! Responses in every dialect have the shape of the dialect's recording, and report the generated tokens.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokometer_sim::server::{Listen, Settings, Simulator};

use crate::sim::round_trip;
use crate::sim::shapes::assert_same_shape;

#[tokio::test]
async fn responses_have_the_recorded_shape() {
    let body = |stream| format!(r#"{{"model":"tiny","input":"Say hello.","stream":{stream}}}"#);
    for (stream, case) in [(true, "vllm-0.32.0/responses-stream"), (false, "vllm-0.32.0/responses-nonstream")] {
        assert_same_shape(round_trip::swift(), case, "/v1/responses", "", &body(stream)).await;
    }
}

#[tokio::test]
async fn messages_have_the_recorded_shape() {
    let body =
        |stream| format!(r#"{{"model":"tiny","messages":[{{"content":"Say"}}],"max_tokens":400,"stream":{stream}}}"#);
    for (stream, case) in [(true, "vllm-0.32.0/messages-stream"), (false, "vllm-0.32.0/messages-nonstream")] {
        assert_same_shape(round_trip::swift(), case, "/v1/messages", "", &body(stream)).await;
    }
}

#[tokio::test]
async fn sglang_has_the_recorded_shape() {
    let settings = || Settings { per_request_metrics: true, ..round_trip::swift() };
    let body = |stream| {
        format!(r#"{{"text":"Count.","sampling_params":{{"max_new_tokens":9,"ignore_eos":true}},"stream":{stream}}}"#)
    };
    for (stream, case) in
        [(true, "sglang-0.5.23/native-generate-stream"), (false, "sglang-0.5.23/native-generate-nonstream")]
    {
        assert_same_shape(settings(), case, "/generate", "", &body(stream)).await;
    }
}

#[tokio::test]
async fn llama_cpp_has_the_recorded_shape() {
    let body = |stream| format!(r#"{{"prompt":"Count.","n_predict":9,"stream":{stream}}}"#);
    for (stream, case) in [
        (true, "llamacpp-0.5.0-dev/native-completion-stream"),
        (false, "llamacpp-0.5.0-dev/native-completion-nonstream"),
    ] {
        assert_same_shape(round_trip::swift(), case, "/completion", "", &body(stream)).await;
    }
}

#[tokio::test]
async fn ollama_has_the_recorded_shape() {
    let messages = r#""model":"tiny","messages":[{"role":"user","content":"Count."}]"#;
    for (case, path, body) in [
        ("api-chat-stream", "/api/chat", format!("{{{messages}}}")),
        ("api-chat-nonstream", "/api/chat", format!(r#"{{{messages},"stream":false}}"#)),
        ("api-chat-stream-one-token", "/api/chat", format!(r#"{{{messages},"options":{{"num_predict":1}}}}"#)),
        ("api-generate-stream", "/api/generate", r#"{"model":"tiny","prompt":"Count."}"#.to_owned()),
        ("api-generate-nonstream", "/api/generate", r#"{"model":"tiny","prompt":"Count.","stream":false}"#.to_owned()),
        ("api-chat-load-only", "/api/chat", r#"{"model":"tiny","messages":[]}"#.to_owned()),
        ("api-generate-load-only", "/api/generate", r#"{"model":"tiny"}"#.to_owned()),
        ("api-chat-error-model", "/api/chat", r#"{"model":"nope","messages":[]}"#.to_owned()),
    ] {
        // Tokens need some time, because Ollama omits durations of zero.
        let mut settings = round_trip::swift();
        settings.pace.time_to_first_token = std::time::Duration::from_millis(5);
        settings.pace.tokens_per_second = if case.contains("one-token") { 0.0 } else { 20_000.0 };
        assert_same_shape(settings, &format!("ollama-0.17.4/{case}"), path, "", &body).await;
    }
}

#[tokio::test]
async fn embeddings_and_scores_have_the_recorded_shape() {
    for (case, path, body) in [
        ("embeddings", "/v1/embeddings", r#"{"model":"tiny","input":["hello world","second text here"]}"#),
        ("pooling", "/pooling", r#"{"model":"tiny","input":"hello"}"#),
        ("rerank", "/v1/rerank", r#"{"model":"tiny","query":"a","documents":["b","c"]}"#),
    ] {
        assert_same_shape(round_trip::swift(), &format!("vllm-0.32.0/{case}"), path, "", body).await;
    }
}

#[tokio::test]
async fn unix_socket_is_served_and_removed_on_stop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sim.sock");
    let settings = Settings { listen: Listen::Unix(path.clone()), ..round_trip::swift() };
    let simulator = Simulator::start(settings).await.unwrap();
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    simulator.stop().await;
    assert!(!path.exists());
}
