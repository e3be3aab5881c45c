//! Rewriting of request bodies at every split, and in every framing.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::channel;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokometer_observe::measure::Outcome;

use super::{Proxy, all, chat, exchange, exchange_on, header, read_request, usage};
use crate::relay::peer;

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
const KEPT: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
const BODY: &str = "{ \"stream\" : true, \"n\": 1.50, \"messages\":[{\"content\":\"{\\\"stream\\\":false}\"}] }";
const CHANGED: &str = "{ \"stream\" : true, \"n\": 1.50, \"messages\":[{\"content\":\"{\\\"stream\\\":false}\"}],\"stream_options\":{\"include_usage\":true} }";

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut request =
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec();
    for chunk in body.chunks(size) {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
}

#[test]
fn body_is_changed_at_every_split() {
    let (listener, server) = peer::listen();
    let proxy = Proxy::to(server, usage());
    for request in [chat(BODY.as_bytes()), chunked(BODY.as_bytes(), 9), chunked(BODY.as_bytes(), 1000)] {
        let head = memchr::memmem::find(&request, b"\r\n\r\n").unwrap();
        for split in head..request.len() {
            let (first, second) = request.split_at(split);
            let ((_, sent), got) = exchange(&proxy, &listener, &[first, second], &[RESPONSE]);
            assert_eq!(std::str::from_utf8(&sent).unwrap(), CHANGED, "split at {split}");
            assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n") && got.ends_with(b"\r\n\r\n{}"), "split at {split}");
        }
    }
}

#[test]
fn large_bodies_arrive_whole_in_every_framing() {
    let (listener, server) = peer::listen();
    let settings = super::Settings { max_body: tokometer_settings::Size(1 << 20), ..usage() };
    let proxy = Proxy::to(server, settings);
    // Lengths around pingora's buffer size of 64 KiB, and around and above `max_body`.
    for length in [65_000, 65_536 - 60, 65_536, 65_537, 131_072, 200_000, (1 << 20) - 40, 1 << 20, 3 << 20] {
        let body = format!("{{\"stream\":true,\"x\":\"{}\"}}", "y".repeat(length - 22));
        assert_eq!(body.len(), length);
        let expected = match length <= 1 << 20 {
            true => format!("{},\"stream_options\":{{\"include_usage\":true}}}}", &body[..length - 1]),
            false => body.clone(),
        };
        for request in [chat(body.as_bytes()), chunked(body.as_bytes(), 5000), chunked(body.as_bytes(), 100_000)] {
            let ((head, sent), got) = exchange(&proxy, &listener, &[&request], &[RESPONSE]);
            assert!(sent == expected.as_bytes(), "{length}: {} bytes, {head}", sent.len());
            assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n"), "{length}");
        }
    }
}

/// At most half of the memory for bodies is available to one request.
#[test]
fn body_that_needs_too_much_memory_passes_whole() {
    let (listener, server) = peer::listen();
    let settings = super::Settings { max_body: tokometer_settings::Size(100 << 20), ..usage() };
    let mut proxy = Proxy::to(server, settings);
    let body = format!("{{\"stream\":true,\"x\":\"{}\"}}", "y".repeat(40 << 20));
    // The process has one memory limit for bodies, and the tests that run at the same time need the share of 127.0.0.1.
    let dial = || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        socket.connect(&proxy.address.into()).unwrap();
        peer::prepare(socket.into())
    };
    for request in [chat(body.as_bytes()), chunked(body.as_bytes(), 100_000)] {
        let ((head, sent), got) = exchange_on(dial, &listener, &[&request], &[RESPONSE]);
        assert!(sent == body.as_bytes(), "{} bytes, {head}", sent.len());
        assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    proxy.stop();
    let outcomes: Vec<_> = proxy.notebook.take().records.iter().map(|record| record.outcome).collect();
    assert_eq!(outcomes, [Outcome::Ok; 2]);
}

/// The end of a body is sent once: a second one would be read as the start of the connection's next request.
#[tokio::test]
async fn empty_pieces_do_not_end_a_body_twice() {
    let (listener, server) = peer::listen();
    let proxy = Proxy::to(server, usage());
    let upstream = std::thread::spawn(move || {
        let mut stream = peer::prepare(listener.accept().unwrap().0);
        [(); 4].map(|()| {
            let request = read_request(&mut stream);
            stream.write_all(KEPT).unwrap();
            request
        })
    });
    let address = proxy.address;
    let http1 = tokio::task::spawn_blocking(move || {
        let mut client = peer::dial(address);
        for _ in 0..2 {
            let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
            client.write_all(format!("{head}0\r\n\r\n").as_bytes()).unwrap();
            let mut got = Vec::new();
            while !got.ends_with(b"{}") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                got.push(byte[0]);
            }
        }
    });
    http1.await.unwrap();
    // An HTTP/2 client ends each body with an empty frame.
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(async move { connection.await.ok() });
    for path in ["/v1/chat/completions", "/v1/embeddings"] {
        send = send.ready().await.unwrap();
        let request = http::Request::post(format!("http://x{path}")).body(()).unwrap();
        let (response, mut body) = send.send_request(request, false).unwrap();
        body.send_data(BODY.into(), false).unwrap();
        body.send_data("".into(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        while let Some(data) = body.data().await {
            data.unwrap();
        }
    }
    let requests = tokio::task::spawn_blocking(|| upstream.join().unwrap()).await.unwrap();
    let seen = requests.map(|(head, body)| {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        (path, String::from_utf8(body).unwrap())
    });
    let expected =
        [("chat/completions", ""), ("chat/completions", ""), ("chat/completions", CHANGED), ("embeddings", BODY)];
    assert_eq!(seen, expected.map(|(path, body)| (format!("/v1/{path}"), body.to_owned())));
    tokio::task::spawn_blocking(move || drop(proxy)).await.unwrap();
}

/// The stream of an HTTP/2 client that accepts compression is requested uncompressed, so that counts can be removed.
#[tokio::test]
async fn compression_is_not_requested_for_changed_requests() {
    let (listener, server) = peer::listen();
    let proxy = Proxy::to(server, usage());
    let upstream = std::thread::spawn(move || {
        let mut stream = peer::prepare(listener.accept().unwrap().0);
        [(); 2].map(|()| {
            let (head, _) = read_request(&mut stream);
            stream.write_all(KEPT).unwrap();
            header(&head, "accept-encoding").map(str::to_owned)
        })
    });
    let socket = tokio::net::TcpStream::connect(proxy.address).await.unwrap();
    let (mut send, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(async move { connection.await.ok() });
    for body in [BODY, "{\"stream\":false}"] {
        send = send.ready().await.unwrap();
        let request = http::Request::post("http://x/v1/chat/completions")
            .header("content-length", body.len())
            .header("accept-encoding", "gzip")
            .body(())
            .unwrap();
        let (response, mut sent) = send.send_request(request, false).unwrap();
        sent.send_data(body.into(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        while let Some(data) = body.data().await {
            data.unwrap();
        }
    }
    let sent = tokio::task::spawn_blocking(|| upstream.join().unwrap()).await.unwrap();
    assert_eq!(sent, [None, Some("gzip".to_owned())]);
    tokio::task::spawn_blocking(move || drop(proxy)).await.unwrap();
}

#[test]
fn compressed_body_is_changed_and_sent_plain() {
    let (listener, server) = peer::listen();
    let proxy = Proxy::to(server, usage());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(BODY.as_bytes()).unwrap();
    let gzip = encoder.finish().unwrap();
    let with_coding = |coding: &str, body: &[u8]| {
        let request = chat(body);
        let head = memchr::memmem::find(&request, b"\r\n\r\n").unwrap() + 2;
        [&request[..head], format!("content-encoding: {coding}\r\n").as_bytes(), &request[head..]].concat()
    };
    let ((head, sent), _) = exchange(&proxy, &listener, &[&with_coding("gzip", &gzip)], &[RESPONSE]);
    assert_eq!((std::str::from_utf8(&sent).unwrap(), header(&head, "content-encoding")), (CHANGED, None));
    // A body that cannot be decoded is forwarded unmodified, with its coding.
    for (coding, body) in [("gzip", &gzip[..gzip.len() / 2]), ("x-unknown", BODY.as_bytes())] {
        let ((head, sent), _) = exchange(&proxy, &listener, &[&with_coding(coding, body)], &[RESPONSE]);
        assert_eq!((sent.as_slice(), header(&head, "content-encoding")), (body, Some(coding)));
    }
}

#[test]
fn other_requests_pass_with_their_bodies() {
    let (listener, server) = peer::listen();
    let proxy = Proxy::to(server, usage());
    for (path, body) in [
        ("/v1/chat/completions", "{\"stream\":false}"),
        ("/v1/chat/completions", "not json"),
        ("/v1/chat/completions", "{\"stream\":true,\"stream_options\":{\"include_usage\":true}}"),
        ("/v1/responses", "{\"stream\":true}"),
        ("/completion", "{\"stream\":true}"),
    ] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let ((head, sent), _) = exchange(&proxy, &listener, &[request.as_bytes()], &[RESPONSE]);
        assert_eq!(std::str::from_utf8(&sent).unwrap(), body, "{path}");
        assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{head}");
        assert!(header(&head, "traceparent").is_none() && header(&head, "x-request-id").is_none(), "{head}");
    }
}

#[test]
fn trace_context_and_request_id_reach_server_client_and_record() {
    let (listener, server) = peer::listen();
    let mut proxy = Proxy::to(server, all());
    let request = |headers: &str| format!("GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    let ((head, _), got) = exchange(&proxy, &listener, &[request("").as_bytes()], &[RESPONSE]);
    let (sent, id) = (header(&head, "traceparent").unwrap(), header(&head, "x-request-id").unwrap());
    assert!(sent.starts_with("00-") && sent.ends_with("-01") && sent.len() == 55, "{sent}");
    assert_eq!(header(std::str::from_utf8(&got).unwrap(), "x-request-id"), Some(id));
    let client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let headers = format!("traceparent: {client}\r\ntracestate: a=b,c=d\r\nx-request-id: mine\r\n");
    let ((head, _), got) = exchange(&proxy, &listener, &[request(&headers).as_bytes()], &[RESPONSE]);
    let sent = header(&head, "traceparent").unwrap();
    assert_eq!((&sent[..36], &sent[52..]), (&client[..36], "-00"), "the client's trace and flag");
    assert_ne!(sent, client, "with the proxy's span");
    assert_eq!((header(&head, "tracestate"), header(&head, "x-request-id")), (Some("a=b,c=d"), Some("mine")));
    assert_eq!(header(std::str::from_utf8(&got).unwrap(), "x-request-id"), None);
    let headers = "traceparent: 00-0-0-01\r\ntracestate: a=b\r\n";
    let ((head, _), _) = exchange(&proxy, &listener, &[request(headers).as_bytes()], &[RESPONSE]);
    assert_eq!(header(&head, "tracestate"), None, "it belongs to the trace that was replaced: {head}");
    proxy.stop();
    let records = proxy.notebook.take().records;
    assert!(records.is_empty(), "a probe is not recorded");
}

#[test]
fn retried_body_without_a_length_is_sent_and_recorded_once() {
    let (listener, server) = peer::listen();
    let mut proxy = Proxy::to(server, super::Settings { upstream_retries: 1, ..usage() });
    let first =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len());
    let second = chunked(BODY.as_bytes(), 9);
    // Splits the request in the middle of its body.
    let (begin, rest) = second.split_at(second.len() - 20);
    let (failed, fails) = channel();
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| {
            let mut stream = peer::prepare(listener.accept().unwrap().0);
            read_request(&mut stream);
            stream.write_all(KEPT).unwrap();
            // Reads the headers of the second request and closes. The connection was reused, so the proxy retries the
            // request.
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            drop(stream);
            let mut stream = peer::prepare(listener.accept().unwrap().0);
            failed.send(()).unwrap();
            let (_, sent) = read_request(&mut stream);
            stream.write_all(RESPONSE).unwrap();
            sent
        });
        let mut client = peer::dial(proxy.address);
        client.write_all(first.as_bytes()).unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"\r\n\r\n{}") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            got.push(byte[0]);
        }
        client.write_all(begin).unwrap();
        fails.recv().unwrap();
        client.write_all(rest).unwrap();
        client.read_to_end(&mut got).unwrap();
        assert_eq!(std::str::from_utf8(&sent.join().unwrap()).unwrap(), CHANGED);
    });
    proxy.stop();
    let records = proxy.notebook.take().records;
    assert_eq!(records.len(), 2);
    assert_eq!(records[0].request.bytes, records[1].request.bytes, "no piece twice");
}
