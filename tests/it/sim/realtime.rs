//! Realtime sessions with the simulated server, direct and through the relay: the server's messages, and the relay's
//! records.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokometer::replay::{Notebook, Replayed};
use tokometer_decode::FinishReason;
use tokometer_observe::measure::{CountSource, Outcome, Record};
use tokometer_sim::server::{Settings, Simulator, Stats};

use crate::end_to_end::relay_to;
use crate::sim::round_trip;
use crate::websocket::model::frame;

/// A client's message with two seconds of silence.
fn audio() -> Value {
    json!({"type": "input_audio_buffer.append", "audio": "A".repeat(64_000 / 3 * 4)})
}

/// A minimal WebSocket client.
struct Client {
    stream: TcpStream,
}

impl Client {
    async fn connect(address: SocketAddr, target: &str, headers: &str) -> Client {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: sim\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{headers}\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        Client { stream }
    }

    async fn frame(&mut self, first: u8, payload: &[u8]) {
        self.stream.write_all(&frame(first, Some([3, 1, 4, 1]), payload)).await.unwrap();
    }

    async fn send_event(&mut self, message: &Value) {
        self.frame(0x81, message.to_string().as_bytes()).await;
    }

    /// Sends messages in one write, so that none of them can arrive after the response to an earlier one.
    async fn send_together(&mut self, messages: &[Value]) {
        let frames =
            messages.iter().flat_map(|message| frame(0x81, Some([3, 1, 4, 1]), message.to_string().as_bytes()));
        self.stream.write_all(&frames.collect::<Vec<u8>>()).await.unwrap();
    }

    /// Reads the next frame; returns its first byte and its payload.
    async fn read_frame(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let first = self.stream.read_u8().await?;
        let length = match self.stream.read_u8().await? {
            126 => u64::from(self.stream.read_u16().await?),
            127 => self.stream.read_u64().await?,
            length => u64::from(length),
        };
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).await?;
        Ok((first, payload))
    }

    async fn message(&mut self) -> Value {
        let (first, payload) = self.read_frame().await.unwrap();
        assert_eq!(first, 0x81, "{}", String::from_utf8_lossy(&payload));
        serde_json::from_slice(&payload).unwrap()
    }

    /// Reads messages up to the first one of this type.
    async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut messages = Vec::new();
        loop {
            messages.push(self.message().await);
            if messages.last().unwrap()["type"] == kind {
                return messages;
            }
        }
    }

    /// Sends a close frame and reads the reply.
    async fn close(&mut self) {
        self.frame(0x88, &1000_u16.to_be_bytes()).await;
        assert_eq!(self.read_frame().await.unwrap(), (0x88, 1000_u16.to_be_bytes().to_vec()));
        assert_eq!(self.read_frame().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}

fn kinds(messages: &[Value]) -> Vec<&str> {
    messages.iter().map(|message| message["type"].as_str().unwrap()).collect()
}

fn settings() -> Settings {
    Settings { response_tokens: 7..=7, ..round_trip::swift() }
}

/// Runs sessions through a new relay; waits for this many records, and returns them with the server's counters.
fn through(settings: Settings, requests: usize, session: impl AsyncFnOnce(SocketAddr)) -> (Vec<Record>, Stats) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let notebook = Notebook::default();
    let mut replayed = Replayed::default();
    let (path, stats) = runtime.block_on(async {
        let simulator = Simulator::start(settings).await.unwrap();
        let (path, url) = relay_to(simulator.local_address(), &notebook);
        session(url.trim_start_matches("http://").parse().unwrap()).await;
        // The observer of the relay is notified of the end of the connection later than the client.
        let deadline = Instant::now() + crate::WAIT;
        while replayed.records.len() < requests && Instant::now() < deadline {
            tokio::task::yield_now().await;
            let more = notebook.take();
            replayed.records.extend(more.records);
            replayed.detached.extend(more.detached);
            replayed.in_flight += more.in_flight;
        }
        (path, simulator.stop().await)
    });
    path.stop();
    let last = notebook.take();
    replayed.in_flight += last.in_flight;
    replayed.records.extend(last.records);
    assert_eq!((replayed.detached.len(), replayed.in_flight), (0, 0), "{replayed:?}");
    assert_eq!(replayed.records.len(), requests, "{replayed:?}");
    (replayed.records, stats)
}

/// The records of responses: the first record is the handshake's.
fn responses(records: &[Record]) -> &[Record] {
    assert_eq!((records[0].outcome, records[0].tokens.output), (Outcome::Ok, None), "{records:?}");
    &records[1..]
}

#[test]
fn transcription_counts_match_the_server() {
    let (records, stats) = through(settings(), 3, async |address| {
        let mut client = Client::connect(address, "/v1/realtime", "").await;
        assert_eq!(client.message().await["type"], "session.created");
        client.send_event(&json!({"type": "session.update", "model": "tiny"})).await;
        for _ in 0..2 {
            client.send_event(&audio()).await;
            client.send_event(&json!({"type": "input_audio_buffer.commit", "final": false})).await;
            let first = client.message().await;
            assert_eq!(first["type"], "transcription.delta");
            client.frame(0x89, b"still there?").await;
            client.send_event(&json!({"type": "input_audio_buffer.commit", "final": true})).await;
            let mut text = first["delta"].as_str().unwrap().to_owned();
            let mut ponged = false;
            loop {
                let (opcode, payload) = client.read_frame().await.unwrap();
                if opcode == 0x8a {
                    assert_eq!(payload, b"still there?");
                    ponged = true;
                    continue;
                }
                let message: Value = serde_json::from_slice(&payload).unwrap();
                if message["type"] == "transcription.done" {
                    assert_eq!(message["text"], text);
                    assert_eq!(
                        message["usage"],
                        json!({"prompt_tokens": 4, "total_tokens": 11, "completion_tokens": 7,
                        "prompt_tokens_details": null})
                    );
                    break;
                }
                text.push_str(message["delta"].as_str().unwrap());
            }
            assert!(ponged);
        }
        client.close().await;
    });
    let responses = responses(&records);
    assert_eq!((responses.len(), stats.requests, stats.generation_tokens), (2, 2, 14));
    for response in responses {
        let output = response.tokens.output.map(|count| (count.tokens, count.source));
        assert_eq!((response.outcome, output), (Outcome::Ok, Some((7, CountSource::Usage))), "{response:?}");
        assert_eq!(response.tokens.input.map(|count| count.tokens), Some(4));
        assert!(response.times.first_token.is_some());
    }
}

#[test]
fn response_counts_match_the_server() {
    let (records, stats) = through(settings(), 3, async |address| {
        let mut client = Client::connect(address, "/v1/realtime?model=tiny", "").await;
        let created = client.message().await;
        assert_eq!((&created["type"], &created["session"]["model"]), (&json!("session.created"), &json!("tiny")));
        client.send_event(&json!({"type": "session.update", "session": {"type": "realtime"}})).await;
        assert_eq!(client.message().await["type"], "session.updated");
        let item = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "12345678"}]});
        client.send_event(&json!({"type": "conversation.item.create", "item": item})).await;
        assert_eq!(client.message().await["item"], item);
        for (limit, status) in [(json!("inf"), "completed"), (json!(4), "incomplete")] {
            client.send_event(&json!({"type": "response.create", "response": {"max_output_tokens": limit}})).await;
            let messages = client.until("response.done").await;
            let text: String = messages.iter().filter_map(|message| message["delta"].as_str()).collect();
            let response = &messages.last().unwrap()["response"];
            assert_eq!(response["status"], status);
            assert_eq!(response["output"][0]["content"][0]["text"], text);
            assert_eq!(
                kinds(&messages)[..3],
                ["response.created", "response.output_item.added", "response.content_part.added"]
            );
        }
        client.send_event(&json!({"type": "nonsense"})).await;
        assert_eq!(client.message().await["error"]["code"], "unknown_event");
        client.close().await;
    });
    let responses = responses(&records);
    let reported: Vec<_> = responses
        .iter()
        .map(|response| {
            (
                response.outcome,
                response.tokens.output.map(|count| count.tokens),
                response.response.finish_reasons.as_slice().to_vec(),
            )
        })
        .collect();
    assert_eq!(
        reported,
        [(Outcome::Ok, Some(7), vec![FinishReason::Completed]), (Outcome::Ok, Some(4), vec![FinishReason::Length]),]
    );
    assert_eq!((stats.generation_tokens, stats.requests, stats.exhausted), (11, 2, 1));
}

#[test]
fn close_disconnect_or_cancel_aborts_the_response() {
    let mut slow = Settings { response_tokens: 30_000..=30_000, ..round_trip::swift() };
    slow.pace.tokens_per_second = 500.0;
    let (records, stats) = through(slow, 6, async |address| {
        for way in ["close", "leave", "cancel"] {
            let mut client = Client::connect(address, "/v1/realtime?model=tiny", "").await;
            client.send_event(&json!({"type": "response.create"})).await;
            client.until("response.output_text.delta").await;
            match way {
                "close" => {
                    client.frame(0x88, &1000_u16.to_be_bytes()).await;
                    while client.read_frame().await.is_ok() {}
                }
                "leave" => drop(client),
                _ => {
                    client.send_event(&json!({"type": "response.cancel"})).await;
                    let messages = client.until("response.done").await;
                    assert_eq!(messages.last().unwrap()["response"]["status"], "cancelled");
                    client.close().await;
                }
            }
        }
    });
    assert_eq!(stats.requests, 3);
    let mut outcomes: Vec<_> =
        records.iter().filter(|record| record.times.first_token.is_some()).map(|record| record.outcome).collect();
    outcomes.sort_by_key(|outcome| format!("{outcome:?}"));
    assert_eq!(outcomes, [Outcome::ClientAbortMidStream, Outcome::ClientAbortMidStream, Outcome::Ok]);
}

#[test]
fn each_fault_is_recorded_with_its_outcome() {
    for (fault, outcome, tokens) in [
        ("error-event:2", Outcome::ErrorInStream, Some(2)),
        ("cut:2", Outcome::Truncated, Some(2)),
        ("reset:2", Outcome::UpstreamReset, Some(2)),
        // One less than the generated tokens, because the end-of-text token has no text.
        ("no-done", Outcome::Truncated, Some(6)),
        ("empty", Outcome::NoOutput, Some(0)),
        ("bad-json:2", Outcome::Ok, Some(7)),
        ("stall:0.001", Outcome::Ok, Some(7)),
    ] {
        for target in ["/v1/realtime", "/v1/realtime?model=tiny"] {
            let (records, stats) = through(settings(), 2, async |address| {
                let mut client = Client::connect(address, target, &format!("x-sim-fault: {fault}\r\n")).await;
                let update = json!({"type": "session.update", "model": "tiny"});
                let commit = json!({"type": "input_audio_buffer.commit"});
                let create = json!({"type": "response.create"});
                let last = json!({"type": "input_audio_buffer.commit", "final": true});
                client.send_together(&[update, commit, create, last]).await;
                while let Ok((first, payload)) = client.read_frame().await {
                    let text = String::from_utf8_lossy(&payload);
                    if first == 0x88
                        || ["response.done", "transcription.done", DEAD].iter().any(|end| text.contains(end))
                    {
                        break;
                    }
                }
            });
            assert_eq!(stats.faulted, 1, "{target} {fault}: {stats:?}");
            let silent = u64::from(fault == "no-done");
            assert_eq!(stats.generation_tokens, tokens.unwrap_or(0) + silent, "{target} {fault}");
            let response = responses(&records).first().unwrap();
            let counted = response.tokens.output.map(|count| count.tokens);
            assert_eq!((response.outcome, counted), (outcome, tokens), "{target} {fault}: {response:?}");
        }
    }
}

const DEAD: &str = "EngineCore encountered an issue";

#[tokio::test]
async fn missing_or_wrong_model_is_reported_and_session_continues() {
    let simulator = Simulator::start(settings()).await.unwrap();
    let mut client = Client::connect(simulator.local_address(), "/v1/realtime", "").await;
    assert_eq!(client.message().await["type"], "session.created");
    client.send_event(&json!({"type": "input_audio_buffer.commit"})).await;
    assert_eq!(client.message().await["code"], "model_not_validated");
    client.send_event(&json!({"type": "session.update", "model": "nope"})).await;
    client.send_event(&json!({"type": "input_audio_buffer.commit"})).await;
    assert_eq!(client.message().await["code"], "processing_error");
    client.frame(0x81, b"{").await;
    assert_eq!(client.message().await["code"], "invalid_json");
    client.send_event(&json!({"type": "session.update", "model": "tiny"})).await;
    client.send_event(&json!({"type": "input_audio_buffer.commit"})).await;
    client.send_event(&json!({"type": "input_audio_buffer.commit", "final": true})).await;
    assert_eq!(client.until("transcription.done").await.len(), 8);
    client.frame(0xc1, b"no extension was agreed upon").await;
    assert_eq!(client.read_frame().await.unwrap(), (0x88, 1002_u16.to_be_bytes().to_vec()));
}

#[tokio::test]
async fn handshake_can_be_refused_and_plain_request_is_404() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let ask = async |target: &str, headers: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: sim\r\nConnection: close\r\n{headers}\r\n");
        let got = round_trip::round_trip(simulator.local_address(), request.as_bytes()).await;
        String::from_utf8(got.bytes).unwrap()
    };
    const UPGRADE: &str = "Upgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert!(ask("/v1/realtime", "").await.starts_with("HTTP/1.1 404 "));
    assert!(ask("/v1/realtime?model=fault%2Fstatus:503", UPGRADE).await.starts_with("HTTP/1.1 503 "));
    assert!(ask("/v1/realtime", &format!("{UPGRADE}x-sim-fault: nothing\r\n")).await.starts_with("HTTP/1.1 400 "));
    assert_eq!(simulator.stats().refused, 2);
}
