//! In rewrite mode, each ending has the same outcome as in proxy mode.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tokometer_observe::measure::Outcome;
use tokometer_proxy::relay::{Phase, Unreached};

use super::{Proxy, Settings, all, chat, exchange, read_request, usage};
use crate::listener::reserved;
use crate::relay::peer;
use crate::relay::peer::Wire;

const BODY: &[u8] = br#"{"model":"m","stream":true}"#;
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const EVENT: &[u8] = b"45\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"model\":\"m\"}\n\n\r\n";
/// A part of `EVENT` that the client receives unmodified.
const TEXT: &str = "\"content\":\"a\"";

/// How the server ends the connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Finish,
    Reset,
}

/// Lets a server send these bytes and end the connection; returns the outcome, and the bytes that the client received.
fn outcome(sent: &[&[u8]], end: End) -> (Outcome, String) {
    let (listener, server) = peer::listen();
    let mut proxy = Proxy::to(server, usage());
    let (seen, forwarded) = channel();
    let got = thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = peer::prepare(listener.accept().unwrap().0);
            read_request(&mut stream);
            sent.iter().for_each(|bytes| stream.write_all(bytes).unwrap());
            if end == End::Reset {
                // A reset discards bytes that the proxy has not read yet.
                if !sent.is_empty() {
                    forwarded.recv().unwrap();
                }
                Wire::reset(&mut stream);
            }
        });
        let mut client = peer::dial(proxy.address);
        client.write_all(&chat(BODY)).unwrap();
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = client.read(&mut buffer) {
            got.extend(&buffer[..len]);
            if String::from_utf8_lossy(&got).contains(TEXT) {
                // The server may have finished.
                seen.send(()).ok();
            }
        }
        got
    });
    proxy.stop();
    let replayed = proxy.notebook.take();
    let [record] = replayed.records.as_slice() else { panic!("{} records", replayed.records.len()) };
    assert_eq!(replayed.in_flight, 0);
    (record.outcome, String::from_utf8(got).unwrap())
}

#[test]
fn upstream_endings_have_the_outcomes_of_proxy_mode() {
    let (cut, got) = outcome(&[HEAD, EVENT], End::Finish);
    assert_eq!(cut, Outcome::Truncated);
    assert!(got.contains(TEXT) && !got.ends_with("0\r\n\r\n"), "the client sees the truncation: {got}");
    assert_eq!(outcome(&[HEAD, EVENT], End::Reset).0, Outcome::UpstreamReset);
    let (none, got) = outcome(&[], End::Reset);
    assert_eq!(none, Outcome::UpstreamReset);
    assert!(got.starts_with("HTTP/1.1 502 ") && got.contains("\"type\":\"upstream_error\""), "{got}");
    let busy = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(outcome(&[busy], End::Finish).0, Outcome::RejectedBusy);
    let error = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(outcome(&[error], End::Finish).0, Outcome::Http4xx);
}

#[test]
fn unreachable_server_causes_a_503() {
    let upstream = reserved();
    let mut proxy = Proxy::to(upstream, all());
    let mut client = peer::dial(proxy.address);
    client.write_all(&chat(BODY)).unwrap();
    let mut got = String::new();
    client.read_to_string(&mut got).unwrap();
    let (head, body) = got.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("tokometer: cannot reach the inference server at {upstream}: ")), "{message}");
    assert_eq!(proxy.handles().relay.stats_of(0).unreached(Unreached::Refused).get(), 1);
    proxy.stop();
    assert_eq!(proxy.notebook.take().records[0].outcome, Outcome::UpstreamRefused);
}

/// A server that streams each response until the client disconnects, and counts the disconnects in `left`.
fn endless(listener: &std::net::TcpListener, requests: usize, left: &AtomicUsize) {
    thread::scope(|scope| {
        for _ in 0..requests {
            let mut stream = peer::prepare(listener.accept().unwrap().0);
            scope.spawn(move || {
                read_request(&mut stream);
                let mut sent = stream.write_all(HEAD);
                while sent.is_ok() {
                    sent = stream.write_all(EVENT);
                    thread::sleep(Duration::from_millis(5));
                }
                left.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
}

#[test]
fn thousand_aborting_clients_end_upstream_and_are_recorded_once() {
    const CLIENTS: usize = 1000;
    const AT_ONCE: usize = 50;
    let (listener, server) = peer::listen();
    let mut proxy = Proxy::to(server, all());
    let left = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| endless(&listener, CLIENTS, &left));
        for _ in 0..CLIENTS / AT_ONCE {
            let begin = |index: usize| {
                let mut client = peer::dial(proxy.address);
                client.write_all(&chat(BODY)).unwrap();
                (index, client)
            };
            let clients: Vec<(usize, TcpStream)> = (0..AT_ONCE).map(begin).collect();
            for (index, mut client) in clients {
                // All clients disconnect after the first token: every second one with a reset, the others with a normal
                // close.
                let mut got = Vec::new();
                while !String::from_utf8_lossy(&got).contains(TEXT) {
                    let mut piece = [0; 4096];
                    let length = client.read(&mut piece).unwrap();
                    assert!(length > 0);
                    got.extend_from_slice(&piece[..length]);
                }
                if index.is_multiple_of(2) {
                    Wire::reset(&mut client);
                }
            }
        }
    });
    assert_eq!(left.load(Ordering::Relaxed), CLIENTS, "every abort reached the server");
    proxy.stop();
    let replayed = proxy.notebook.take();
    assert_eq!((replayed.records.len(), replayed.in_flight), (CLIENTS, 0));
    let aborted = replayed.records.iter().filter(|record| record.outcome == Outcome::ClientAbortMidStream).count();
    assert_eq!(aborted, CLIENTS);
}

#[test]
fn drain_lets_the_stream_finish_and_records_it() {
    let (listener, server) = peer::listen();
    let mut proxy = Proxy::to(server, usage());
    let mut idle = peer::dial(proxy.address);
    let mut streaming = peer::dial(proxy.address);
    streaming.write_all(&chat(BODY)).unwrap();
    let mut upstream = peer::prepare(listener.accept().unwrap().0);
    read_request(&mut upstream);
    upstream.write_all(HEAD).unwrap();
    upstream.write_all(EVENT).unwrap();
    let drain = proxy.handles().relay.drain().clone();
    drain.begin();
    assert_eq!(idle.read(&mut [0; 16]).unwrap(), 0, "the idle connection is closed");
    assert_eq!(drain.phase(), Phase::Draining);
    upstream.write_all(EVENT).unwrap();
    upstream.write_all(b"0\r\n\r\n").unwrap();
    let mut got = String::new();
    streaming.read_to_string(&mut got).unwrap();
    assert!(got.matches(TEXT).count() == 2 && got.ends_with("0\r\n\r\n"), "{got}");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(drain.emptied());
    let outcomes: Vec<_> = proxy.notebook.take().records.iter().map(|record| record.outcome).collect();
    assert_eq!(outcomes, [Outcome::Truncated], "the last request is recorded when no connection is open");
    proxy.stop();
}

#[test]
fn client_with_half_of_the_preface_is_closed_when_idle() {
    let (_listener, server) = peer::listen();
    let proxy = Proxy::to(server, Settings { client_idle_timeout: Duration::from_millis(100), ..usage() });
    for begin in [&b"P"[..], b"PRI * HTTP/2.0\r\n\r\nSM"] {
        let mut client = peer::dial(proxy.address);
        client.write_all(begin).unwrap();
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0, "{}", begin.escape_ascii());
    }
}

#[test]
fn beginning_of_a_response_with_a_length_is_not_held_back() {
    let (listener, server) = peer::listen();
    let proxy = Proxy::to(server, usage());
    let mut client = peer::dial(proxy.address);
    client.write_all(&chat(br#"{"model":"m"}"#)).unwrap();
    let mut upstream = peer::prepare(listener.accept().unwrap().0);
    read_request(&mut upstream);
    upstream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegin").unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\nbegin") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        got.push(byte[0]);
    }
    drop(upstream);
    client.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(b"\r\n\r\nbegin"));
}

#[test]
fn http10_clients_get_streams_without_chunks() {
    let (listener, server) = peer::listen();
    let proxy = Proxy::to(server, usage());
    let request = format!(
        "POST /v1/chat/completions HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\ncontent-length: {}\r\n\r\n",
        BODY.len()
    );
    let request = [request.as_bytes(), BODY].concat();
    let (_, got) = exchange(&proxy, &listener, &[&request], &[HEAD, EVENT, b"0\r\n\r\n"]);
    let got = String::from_utf8(got).unwrap();
    let (head, body) = got.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    let event = std::str::from_utf8(EVENT).unwrap().trim_start_matches("45\r\n").trim_end_matches("\r\n");
    assert_eq!(body, event);
}

#[tokio::test]
async fn end_of_a_drain_is_the_outcome_on_http2_too() {
    let (listener, server) = peer::listen();
    let mut proxy = Proxy::to(server, usage());
    let socket = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let (send, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(async move { connection.await.ok() });
    let mut send = send.ready().await.unwrap();
    let request = http::Request::post("http://x/v1/chat/completions").body(()).unwrap();
    let (response, mut body) = send.send_request(request, false).unwrap();
    body.send_data(BODY.into(), true).unwrap();
    let upstream = thread::spawn(move || {
        let mut stream = peer::prepare(listener.accept().unwrap().0);
        read_request(&mut stream);
        stream.write_all(HEAD).unwrap();
        stream.write_all(EVENT).unwrap();
        stream
    });
    let mut body = response.await.unwrap().into_body();
    body.data().await.unwrap().unwrap();
    let upstream = upstream.join().unwrap();
    let relay = proxy.handles().relay;
    relay.drain().begin();
    relay.drain().force();
    assert!(!matches!(body.data().await, Some(Ok(_))), "the stream ends");
    drop(upstream);
    tokio::task::spawn_blocking(move || {
        proxy.stop();
        let outcomes: Vec<_> = proxy.notebook.take().records.iter().map(|record| record.outcome).collect();
        assert_eq!(outcomes, [Outcome::Drained]);
    })
    .await
    .unwrap();
}
