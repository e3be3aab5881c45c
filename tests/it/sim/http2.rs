//! Over HTTP/2 with prior knowledge, the simulated server sends the same responses as over HTTP/1.1.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokometer_sim::server::{Settings, Simulator};

use crate::sim::cases::CASES;
use crate::sim::round_trip;

/// Opens a connection, and spawns the task that drives it.
async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    // An unread stream must not use up the connection's flow-control window.
    let mut builder = h2::client::Builder::new();
    let (send, connection) = builder.initial_connection_window_size(1 << 20).handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send
}

/// Sends a request; returns the complete response and its body.
async fn ask(
    send: &SendRequest<Bytes>,
    request: Request<()>,
    body: &str,
) -> Result<(Response<()>, Vec<u8>), h2::Error> {
    let mut send = send.clone().ready().await?;
    let (response, mut stream) = send.send_request(request, body.is_empty())?;
    if !body.is_empty() {
        stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true)?;
    }
    let (head, mut body) = response.await?.into_parts();
    let mut bytes = Vec::new();
    while let Some(part) = body.data().await.transpose()? {
        body.flow_control().release_capacity(part.len())?;
        bytes.extend_from_slice(&part);
    }
    Ok((Response::from_parts(head, ()), bytes))
}

/// The response of a new server over HTTP/1.1: headers, and body without framing.
async fn plain(path: &str, headers: &str, body: &str) -> (String, Vec<u8>) {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let got = round_trip::post(simulator.local_address(), path, headers, body).await;
    let (head, body) = round_trip::split(&got.bytes);
    let body = if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        round_trip::chunks(body).0.concat().into_bytes()
    } else {
        body.to_vec()
    };
    (head, body)
}

/// Removes times and ids that vary between runs.
fn timeless(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body).into_owned();
    let mut kept = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        kept.push_str(before);
        kept.push('0');
        rest = number.trim_start_matches(|c: char| c.is_ascii_digit() || ".:-TZe".contains(c));
    }
    kept.push_str(rest);
    kept
}

#[tokio::test]
async fn every_dialect_is_identical_over_http1_and_http2() {
    for case in CASES {
        let (head, expected) = plain(case.path, case.headers, case.body).await;
        let simulator = Simulator::start(round_trip::swift()).await.unwrap();
        let send = connect(simulator.local_address()).await;
        let mut request = Request::post(format!("http://sim{}", case.path));
        for line in case.headers.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let (response, body) = ask(&send, request.body(()).unwrap(), case.body).await.unwrap();
        assert_eq!(response.status(), 200, "{}", case.path);
        let content_type = response.headers()["content-type"].to_str().unwrap();
        assert!(head.to_ascii_lowercase().contains(&format!("content-type: {content_type}")), "{head}: {content_type}");
        for name in ["connection", "keep-alive", "transfer-encoding"] {
            assert!(!response.headers().contains_key(name), "{} {name}", case.path);
        }
        assert_eq!(timeless(&body), timeless(&expected), "{}", case.path);
        assert!(!body.is_empty());
        assert_eq!(simulator.stats().generation_tokens, 9, "{}", case.path);
    }
}

#[tokio::test]
async fn pages_and_errors_keep_status_and_head_has_no_body() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let send = connect(simulator.local_address()).await;
    let get =
        |method: &str, path: &str| Request::builder().method(method).uri(format!("http://sim{path}")).body(()).unwrap();
    let (response, body) = ask(&send, get("GET", "/v1/models"), "").await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(String::from_utf8(body).unwrap().contains(r#""id":"tiny""#));
    let (response, body) = ask(&send, get("HEAD", "/v1/models"), "").await.unwrap();
    assert!(response.headers()["content-length"].to_str().unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!((response.status().as_u16(), body.len()), (200, 0));
    let (response, _) = ask(&send, get("GET", "/nowhere"), "").await.unwrap();
    assert_eq!(response.status(), 404);
    let (response, _) = ask(&send, get("POST", "/v1/chat/completions"), "{").await.unwrap();
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn reset_stream_is_aborted_and_others_continue() {
    let mut settings = round_trip::swift();
    settings.pace.tokens_per_second = 500.0;
    let simulator = Simulator::start(settings).await.unwrap();
    let send = connect(simulator.local_address()).await;
    let request = || Request::post("http://sim/v1/completions").body(()).unwrap();
    let neighbour = tokio::spawn({
        let send = send.clone();
        let request = request();
        async move { ask(&send, request, r#"{"prompt":"x","max_tokens":50,"ignore_eos":true,"stream":true}"#).await }
    });
    let mut opened = send.clone().ready().await.unwrap();
    let (response, mut stream) = opened.send_request(request(), false).unwrap();
    stream.send_data(r#"{"prompt":"x","max_tokens":30000,"ignore_eos":true,"stream":true}"#.into(), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    assert!(!body.data().await.unwrap().unwrap().is_empty());
    stream.send_reset(Reason::CANCEL);
    let (_, whole) = neighbour.await.unwrap().unwrap();
    assert!(whole.ends_with(b"data: [DONE]\n\n"));
    while simulator.stats().aborted < 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(simulator.stats().running, 0);
}

#[tokio::test]
async fn slow_reader_delays_only_its_own_stream() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let send = connect(simulator.local_address()).await;
    let request = || Request::post("http://sim/v1/completions").body(()).unwrap();
    let mut opened = send.clone().ready().await.unwrap();
    let (response, mut stream) = opened.send_request(request(), false).unwrap();
    stream.send_data(r#"{"prompt":"x","max_tokens":20000,"ignore_eos":true,"stream":true}"#.into(), true).unwrap();
    let mut slow = response.await.unwrap().into_body();
    let body = r#"{"prompt":"x","max_tokens":9,"ignore_eos":true,"stream":true}"#;
    let (_, quick) = ask(&send, request(), body).await.unwrap();
    assert!(quick.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(simulator.stats().running, 1);
    let mut length = 0;
    while let Some(part) = slow.data().await {
        let part = part.unwrap();
        length += part.len();
        slow.flow_control().release_capacity(part.len()).unwrap();
    }
    assert!(length > 20_000 * 100, "{length}");
    assert_eq!(simulator.stats().generation_tokens, 20_009);
}

#[tokio::test]
async fn split_preface_is_accepted_and_partial_one_rejected() {
    let simulator = Simulator::start(round_trip::swift()).await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for cut in 1..preface.len() {
        let mut stream = TcpStream::connect(simulator.local_address()).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (head, tail) = preface.split_at(cut);
        stream.write_all(head).await.unwrap();
        tokio::task::yield_now().await;
        stream.write_all(tail).await.unwrap();
        // Sends an empty SETTINGS frame.
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        let mut frame = [0; 9];
        stream.read_exact(&mut frame).await.unwrap();
        assert_eq!((frame[3], &frame[5..]), (4, &[0; 4][..]), "cut at {cut}: SETTINGS of the connection");
    }
    let got = round_trip::round_trip(simulator.local_address(), b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n").await;
    assert!(got.bytes.starts_with(b"HTTP/1.1 400 "));
}

#[tokio::test]
async fn idle_connection_without_streams_is_closed() {
    let settings = Settings { idle_timeout: Duration::from_millis(20), ..round_trip::swift() };
    let simulator = Simulator::start(settings).await.unwrap();
    let stream = TcpStream::connect(simulator.local_address()).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    connection.await.unwrap();
    drop(send);
}
