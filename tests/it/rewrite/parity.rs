//! The same traffic gives equal records in proxy mode and in rewrite mode.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;
use tokometer_observe::measure::{Outcome, Record};
use tokometer_proxy::listen::{Listener, ServerTls};
use tokometer_sim::load;
use tokometer_sim::load::End;

use super::{Proxy, chat, read_chunks, read_request, usage};
use crate::http2::program::drain;
use crate::listener::listener_to;
use crate::pod_end::{Process, port_after, until};
use crate::program::{get, value};
use crate::relay::peer;
use crate::relay::sockets::Authority;
use crate::websocket::observed::{COMMIT, DELTA, DONE, HANDSHAKE, SWITCHED, of_client, of_server};

/// A proxy in each mode: proxy mode, then rewrite mode.
fn both(listener: impl Fn() -> Listener) -> [Proxy; 2] {
    [None, Some(Arc::new(usage()) as _)].map(|rewrite| Proxy::with(Listener { rewrite, ..listener() }))
}

/// The values of all records that do not depend on time or mode.
fn facts(mut proxy: Proxy) -> Vec<String> {
    proxy.stop();
    let replayed = proxy.notebook.take();
    assert_eq!((replayed.in_flight, replayed.detached.len()), (0, 0));
    let of = |record: &Record| {
        let counts = [record.tokens.output, record.tokens.input].map(|count| count.map(|n| (n.tokens, n.source)));
        let labels = (&record.labels.request_model, record.labels.streaming, record.labels.engine);
        let events = (record.tokens.chunks, record.response.events, record.times.first_token.is_some());
        let end = (
            record.outcome,
            record.response.status,
            &record.response.finish_reasons,
            &record.response.error_type,
            record.times.requested.is_some(),
        );
        format!("{:?}", (&record.request.id, end, counts, events, labels))
    };
    let mut facts: Vec<String> = replayed.records.iter().map(of).collect();
    facts.sort_unstable();
    facts
}

/// The outcomes of 50 streams whose server is killed after the first events, and of a later request.
fn killed(make: impl Fn(SocketAddr) -> Proxy) -> Vec<Outcome> {
    const STREAMS: usize = 50;
    let sim = ["sim", "--rate", "20", "--ttft-ms", "0", "--tokens", "30000", "--listen", "127.0.0.1:0"];
    let (server, port) = Process::start(&sim, |stated| port_after(stated, "on http://"));
    let mut proxy = make(SocketAddr::from(([127, 0, 0, 1], port)));
    let request = chat(br#"{"model":"sim","stream":true,"messages":[],"max_tokens":30000}"#);
    let mut clients: Vec<_> = (0..STREAMS)
        .map(|_| {
            let mut client = peer::dial(proxy.address);
            client.write_all(&request).unwrap();
            client
        })
        .collect();
    for client in &mut clients {
        let mut got = Vec::new();
        while memchr::memmem::find(&got, b"\"content\":\"").is_none() {
            let mut piece = [0; 1024];
            let length = client.read(&mut piece).unwrap();
            assert!(length > 0, "{}", got.escape_ascii());
            got.extend_from_slice(&piece[..length]);
        }
    }
    drop(server);
    for mut client in clients {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).ok();
        assert!(!rest.ends_with(b"0\r\n\r\n"), "the client sees the truncation");
    }
    let mut late = peer::dial(proxy.address);
    late.write_all(&request).unwrap();
    let mut got = Vec::new();
    late.read_to_end(&mut got).ok();
    assert!(got.starts_with(b"HTTP/1.1 503 "), "{}", got.escape_ascii());
    drop(late);
    let relay = proxy.handles().relay;
    until("all connections have ended", || relay.stats_of(0).open() == 0);
    proxy.stop();
    let replayed = proxy.notebook.take();
    assert_eq!(replayed.in_flight, 0);
    replayed.records.iter().map(|record| record.outcome).collect()
}

#[test]
fn killed_server_truncates_its_streams_and_refuses_the_next_request() {
    let mut expected = vec![Outcome::Truncated; 50];
    expected.push(Outcome::UpstreamRefused);
    assert_eq!(killed(|upstream| Proxy::with(listener_to(upstream))), expected, "proxy mode");
    assert_eq!(killed(|upstream| Proxy::to(upstream, usage())), expected, "rewrite mode");
}

/// Sends streamed requests, all with `include_usage`, over one HTTP/2 connection with TLS.
async fn chats(address: SocketAddr, config: Arc<ClientConfig>) {
    let socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let stream = TlsConnector::from(config).connect("relay.test".try_into().unwrap(), socket).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    let driven = tokio::spawn(connection);
    let mut send = send.ready().await.unwrap();
    let mut asked = Vec::new();
    for number in 0..50 {
        send = send.ready().await.unwrap();
        let request =
            Request::post("https://relay.test/v1/chat/completions").header("x-request-id", number.to_string());
        let (response, mut body) = send.send_request(request.body(()).unwrap(), false).unwrap();
        let json = format!(
            r#"{{"model":"sim","stream":true,"messages":[],"max_tokens":{},"stream_options":{{"include_usage":true}}}}"#,
            1 + number % 7
        );
        body.send_data(Bytes::from(json), true).unwrap();
        asked.push(tokio::spawn(async move { drain(response.await.unwrap().into_body()).await.unwrap() }));
    }
    for ask in asked {
        ask.await.unwrap();
    }
    drop(send);
    driven.await.unwrap().unwrap();
}

#[test]
fn http2_over_tls_has_the_records_of_proxy_mode() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign("relay.test");
    let mut config = (*authority.client(None)).clone();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let (runtime, simulator) = crate::program::simulated();
    let tls = ServerTls { certificate, key, client_ca: None };
    let [proxied, rewritten] = both(|| Listener { tls: Some(tls.clone()), ..listener_to(simulator.local_address()) })
        .map(|proxy| {
            runtime.block_on(chats(proxy.address, Arc::clone(&config)));
            facts(proxy)
        });
    assert_eq!(proxied.len(), 50);
    assert_eq!(proxied, rewritten);
    runtime.block_on(simulator.stop());
}

#[test]
fn trailers_of_http1_do_not_change_the_record() {
    const EVENT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"model\":\"m\"}\n\n";
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n{:x}\r\n{EVENT}\r\n{:x}\r\n{DONE}\r\n0\r\nx-sum: 1\r\n\r\n",
        EVENT.len(),
        DONE.len(),
    );
    const DONE: &str = "data: [DONE]\n\n";
    let (listener, server) = peer::listen();
    let [proxied, rewritten] = both(|| listener_to(server)).map(|proxy| {
        let body = br#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        let (_, got) = super::exchange(&proxy, &listener, &[&chat(body)], &[response.as_bytes()]);
        let start = memchr::memmem::find(&got, b"\r\n\r\n").unwrap() + 4;
        let got = if got.ends_with(b"x-sum: 1\r\n\r\n") { &got[..got.len() - 10] } else { &got[..] };
        let body = read_chunks(&mut [&got[start..], b"\r\n"].concat().as_slice());
        assert_eq!(String::from_utf8(body).unwrap(), [EVENT, DONE].concat());
        facts(proxy)
    });
    assert_eq!(proxied.len(), 1);
    assert_eq!(proxied, rewritten);
}

#[test]
fn messages_of_both_sides_of_a_websocket_are_observed() {
    let (listener, server) = peer::listen();
    let [proxied, rewritten] = both(|| listener_to(server)).map(|proxy| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut stream = peer::prepare(listener.accept().unwrap().0);
                read_request(&mut stream);
                stream.write_all(SWITCHED).unwrap();
                let mut commit = vec![0; of_client(COMMIT).len()];
                stream.read_exact(&mut commit).unwrap();
                stream.write_all(&[of_server(DELTA), of_server(DONE)].concat()).unwrap();
                stream.read_to_end(&mut commit).unwrap();
            });
            let mut client = peer::dial(proxy.address);
            client.write_all(HANDSHAKE).unwrap();
            let mut got = Vec::new();
            let mut read_to = |client: &mut TcpStream, end: &[u8]| {
                while !got.ends_with(end) {
                    let mut byte = [0];
                    client.read_exact(&mut byte).unwrap();
                    got.push(byte[0]);
                }
            };
            read_to(&mut client, b"\r\n\r\n");
            client.write_all(&of_client(COMMIT)).unwrap();
            read_to(&mut client, &of_server(DONE));
        });
        facts(proxy)
    });
    assert_eq!(proxied.len(), 2, "the handshake and a response, which was requested: {proxied:?}");
    assert_eq!(proxied, rewritten);
}

/// Runs the program with these settings, and replaces its configuration file during traffic.
fn reloaded(listener: &str, settings: &str, simulator: SocketAddr, runtime: &tokio::runtime::Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokometer.yaml");
    let publish = |decode: &str| {
        let text = format!(
            "listeners: [{{listen: '127.0.0.1:0', upstream: '{simulator}'{listener}}}]\nadmin: {{listen: '127.0.0.1:0'}}\nwedge: {{decode: {decode}}}\n{settings}"
        );
        fs::write(folder.path().join("next"), text).unwrap();
        fs::rename(folder.path().join("next"), &file).unwrap();
    };
    publish("61s");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.arg("run").arg("--config").arg(&file);
    let (_process, (port, admin)) =
        Process::of(command, |log| Some((port_after(log, "Relaying. listen=")?, port_after(log, "/drain. address=")?)));
    let admin = SocketAddr::from(([127, 0, 0, 1], admin));
    let stop = Arc::new(AtomicBool::new(false));
    let settings = load::Settings {
        url: format!("http://127.0.0.1:{port}"),
        concurrency: 16,
        requests: Some(16),
        max_tokens: 50,
        ..load::Settings::default()
    };
    let loading = runtime.spawn({
        let stop = Arc::clone(&stop);
        async move {
            let (mut requests, mut complete) = (0, 0);
            while !stop.load(Ordering::Relaxed) {
                let summary = load::run(settings.clone(), |_| {}).await.unwrap();
                requests += summary.requests;
                complete += summary.count(End::Complete);
            }
            (requests, complete)
        }
    });
    let end = Instant::now() + Duration::from_secs(30);
    for decode in ["62s", "63s"] {
        publish(decode);
        while !get(admin, "/config").contains(decode) {
            assert!(Instant::now() < end, "not reloaded");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (requests, complete) = runtime.block_on(loading).unwrap();
    assert!(requests > 0 && requests == complete, "{complete} of {requests} complete");
    until("all requests are counted", || {
        value(&get(admin, "/metrics"), &["tokometer_requests_total{", "outcome=\"ok\""]) == Some(requests as f64)
    });
}

#[test]
fn reload_disturbs_no_stream() {
    let (runtime, simulator) = crate::program::simulated();
    reloaded("", "", simulator.local_address(), &runtime);
    let rewrites = "rewrite: {include_usage: true, traceparent: true, request_id: true}\n";
    reloaded(", mode: rewrite", rewrites, simulator.local_address(), &runtime);
    runtime.block_on(simulator.stop());
}
