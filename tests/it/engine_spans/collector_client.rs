//! Forwarding with the protocols of a real collector.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use tokometer_telemetry::export::{CollectorClient, Endpoint, Protocol};

use crate::export::collector;
use crate::listener::reserved;

use super::*;

fn endpoint(url: String, protocol: Protocol, gzip: bool) -> Endpoint {
    Endpoint {
        url,
        protocol,
        headers: vec![("authorization".to_owned(), "Bearer ours".to_owned())],
        gzip,
        timeout: Duration::from_secs(20),
        ca: None,
        identity: None,
    }
}

fn send(endpoint: &Endpoint, message: Vec<u8>, headers: HeaderMap) -> Reply {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { CollectorClient::new(endpoint).unwrap().export(Bytes::from(message), headers).await })
}

#[test]
fn message_arrives_unmodified_over_http_and_grpc() {
    let http = collector::Collector::http();
    let grpc = collector::Collector::grpc_traces();
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "Bearer engine".parse().unwrap());
    for gzip in [false, true] {
        let sent = message(50, u64::from(gzip));
        let over_http = endpoint(format!("{}/v1/traces", url(http.port)), Protocol::HttpProtobuf, gzip);
        assert_eq!(send(&over_http, sent.clone(), headers.clone()), Reply::Taken { rejected: 0 });
        let over_grpc = endpoint(url(grpc.port), Protocol::Grpc, gzip);
        assert_eq!(send(&over_grpc, sent.clone(), headers.clone()), Reply::Taken { rejected: 0 });
        for collector in [&http, &grpc] {
            let got = collector.got.lock().unwrap();
            assert_eq!(got.traces.last().unwrap().encode_to_vec(), sent);
        }
    }
    let got = http.got.lock().unwrap();
    assert!(got.heads.iter().all(|head| head.contains("Bearer ours")), "{:?}", got.heads);
}

#[test]
fn unreachable_collector_means_retry_later() {
    let free = reserved();
    for protocol in [Protocol::HttpProtobuf, Protocol::Grpc] {
        let gone = endpoint(format!("http://{free}/v1/traces"), protocol, false);
        assert!(matches!(send(&gone, message(1, 1), HeaderMap::new()), Reply::Later { after: None, .. }));
    }
}

/// Starts a server that sends these bytes in response to one HTTP/1.1 request; returns the URL.
fn respond_with(response: &'static str) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 65536]).unwrap() > 0);
        stream.write_all(response.as_bytes()).unwrap();
    });
    format!("http://{address}/v1/traces")
}

#[test]
fn collector_responses_are_understood() {
    let over_http = |response| {
        send(&endpoint(respond_with(response), Protocol::HttpProtobuf, false), message(1, 1), HeaderMap::new())
    };
    let after = |response| match over_http(response) {
        Reply::Later { after, .. } => after,
        other => panic!("{other:?}"),
    };
    assert_eq!(after("HTTP/1.1 503 x\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n"), Some(Duration::from_secs(7)));
    assert_eq!(after("HTTP/1.1 429 x\r\ncontent-length: 0\r\n\r\n"), None);
    let refused = over_http("HTTP/1.1 400 x\r\ncontent-length: 3\r\n\r\nbad");
    assert!(matches!(&refused, Reply::Refused { why } if why.contains("400") && !why.contains("bad")), "{refused:?}");
    // The body is the message `partial_success { rejected_spans: 5 }`.
    let partial = over_http("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n\n\x02\x08\x05");
    assert_eq!(partial, Reply::Taken { rejected: 5 });
}
