//! TLS on both sides, HTTP/2 clients, WebSockets and Unix sockets.

use std::io::{Read, Write};
use std::sync::Arc;
use std::thread;

use rustls::{ServerConnection, StreamOwned};
use tokometer_observe::measure::{CountSource, Outcome};
use tokometer_proxy::listen::{Address, ClientTls, Listener, ServerTls};

use super::{Proxy, all, chat, read_request, usage};
use crate::listener::listener_to;
use crate::relay::peer;
use crate::relay::sockets::{Authority, tls_client};

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

#[test]
fn tls_on_both_sides() {
    let authority = Authority::new();
    let (socket, upstream) = peer::listen();
    let (certificate, key) = authority.sign("relay.test");
    let server_name = Some("server.test".to_owned());
    let proxy = Proxy::with(Listener {
        tls: Some(ServerTls { certificate, key, client_ca: None }),
        upstream_tls: Some(ClientTls { ca: Some(authority.ca()), server_name, identity: None, insecure: false }),
        rewrite: Some(Arc::new(all())),
        ..listener_to(upstream)
    });
    let config = authority.server("server.test");
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let connection = ServerConnection::new(config).unwrap();
            let mut server = StreamOwned::new(connection, peer::prepare(socket.accept().unwrap().0));
            let request = read_request(&mut server);
            server.write_all(RESPONSE).unwrap();
            request
        });
        let mut client = tls_client(&authority.client(None), peer::dial(proxy.address));
        client.write_all(&chat(br#"{"stream":true}"#)).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).ok();
        assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n") && got.ends_with(b"{}"));
        let (_, sent) = server.join().unwrap();
        assert_eq!(sent, br#"{"stream":true,"stream_options":{"include_usage":true}}"#);
    });
}

#[test]
fn unix_sockets_on_both_sides_reuse_the_connection_to_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (outside, inside) = (folder.path().join("out.sock"), folder.path().join("in.sock"));
    let socket = std::os::unix::net::UnixListener::bind(&inside).unwrap();
    let listener = Listener {
        listen: Address::Unix(outside.clone()),
        rewrite: Some(Arc::new(usage())),
        ..listener_to(Address::Unix(inside))
    };
    let notebook = tokometer::replay::Notebook::default();
    let path = tokometer::app::DataPath::start(
        &[listener],
        tokometer_proxy::relay::Settings::default(),
        tokometer_observe::observer::Settings::default(),
        Arc::new(notebook),
        1,
    )
    .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut server = socket.accept().unwrap().0;
            for _ in 0..3 {
                read_request(&mut server);
                server.write_all(RESPONSE).unwrap();
            }
        });
        let mut client = std::os::unix::net::UnixStream::connect(&outside).unwrap();
        for _ in 0..3 {
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut got = Vec::new();
            while !got.ends_with(b"{}") {
                let mut piece = [0; 512];
                let length = client.read(&mut piece).unwrap();
                assert!(length > 0, "{}", got.escape_ascii());
                got.extend_from_slice(&piece[..length]);
            }
        }
    });
    path.stop();
}

/// Streams of clients that did not request counts have exact counts.
#[test]
fn streams_have_exact_counts_over_http1_and_http2() {
    let (runtime, simulator) = crate::program::simulated();
    for http2 in [false, true] {
        let mut proxy = Proxy::to(simulator.local_address(), all());
        let settings = tokometer_sim::load::Settings {
            url: format!("http://{}", proxy.address),
            concurrency: 16,
            requests: Some(200),
            max_tokens: 30,
            include_usage: false,
            http2,
            ..tokometer_sim::load::Settings::default()
        };
        let before = simulator.stats().generation_tokens;
        let summary = runtime.block_on(tokometer_sim::load::run(settings, |_| {})).unwrap();
        proxy.stop();
        let replayed = proxy.notebook.take();
        assert_eq!((summary.requests, replayed.records.len(), replayed.in_flight), (200, 200, 0), "http2: {http2}");
        assert_eq!(summary.tokens_from_usage, 0, "no client got counts");
        let counted: u64 = replayed
            .records
            .iter()
            .map(|record| {
                let tokens = record.tokens.output.unwrap();
                assert_eq!((record.outcome, tokens.source), (Outcome::Ok, CountSource::Usage));
                tokens.tokens
            })
            .sum();
        assert_eq!(counted, simulator.stats().generation_tokens - before, "http2: {http2}");
    }
    runtime.block_on(simulator.stop());
}
