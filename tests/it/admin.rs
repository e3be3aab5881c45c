//! The admin server, tested over real sockets.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::watch;
use tokometer::admin::{Control, Draining, Pages, Server, Settings};

use crate::injected;

/// A fake program: tests set the number of open streams.
pub(crate) struct Program {
    open: watch::Sender<usize>,
    drains: AtomicUsize,
    draining: Mutex<Option<Draining>>,
    pub(crate) grace: Mutex<Duration>,
}

impl Program {
    pub(crate) fn new(open: usize) -> Arc<Program> {
        Arc::new(Program {
            open: watch::channel(open).0,
            drains: AtomicUsize::new(0),
            draining: Mutex::default(),
            grace: Mutex::new(Duration::from_secs(30)),
        })
    }
}

#[async_trait]
impl Control for Program {
    fn begin_drain(&self, requested_by: &str) {
        self.drains.fetch_add(1, Ordering::SeqCst);
        *self.draining.lock().unwrap() =
            Some(Draining { began: Instant::now(), requested_by: requested_by.to_owned() });
    }

    fn draining(&self) -> Option<Draining> {
        self.draining.lock().unwrap().clone()
    }

    fn grace_period(&self) -> Duration {
        *self.grace.lock().unwrap()
    }

    fn open_streams(&self) -> usize {
        *self.open.borrow()
    }

    async fn wait_until_idle(&self) {
        self.open.subscribe().wait_for(|open| *open == 0).await.ok();
    }
}

pub(crate) fn settings() -> Settings {
    Settings { listen: "127.0.0.1:0".parse().unwrap(), ..Settings::default() }
}

pub(crate) fn pages(program: Arc<Program>) -> Pages {
    Pages {
        metrics: Arc::new(|accept| match accept {
            Some("panic") => injected::panic("a page"),
            accept => (format!("text/plain; accept={}", accept.unwrap_or("none")), b"tokometer_up 1\n".to_vec()),
        }),
        config: Arc::new(|| "log:\n  level: info\n".to_owned()),
        engine: Arc::new(|query| match query {
            Some("listener=wedged") => (503, serde_json::json!({ "healthy": false })),
            _ => (200, serde_json::json!({ "healthy": true })),
        }),
        requests: Arc::new(|query| match query {
            Some("panic") => injected::panic("a page"),
            query => (200, serde_json::json!({ "query": query }).to_string().into_bytes()),
        }),
        live: Arc::new(|| b"{}".to_vec()),
        control: program,
    }
}

fn serve(program: Arc<Program>) -> Server {
    Server::start(&Settings { remote_drain: true, ..settings() }, pages(program)).unwrap()
}

pub(crate) fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends these bytes and reads until the server closes the connection.
pub(crate) fn round_trip(server: &Server, request: &str) -> String {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

pub(crate) fn ask(server: &Server, method: &str, target: &str) -> String {
    round_trip(server, &format!("{method} {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"))
}

pub(crate) fn status(response: &str) -> u16 {
    response.split(' ').nth(1).unwrap().parse().unwrap()
}

pub(crate) fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").unwrap().1
}

fn json(response: &str) -> serde_json::Value {
    serde_json::from_str(body(response)).unwrap()
}

#[test]
fn every_path_of_the_index_responds() {
    let server = serve(Program::new(0));
    let index = ask(&server, "GET", "/");
    let paths = [
        "/metrics",
        "/live",
        "/startz",
        "/livez",
        "/readyz",
        "/engine/healthz",
        "/requests",
        "/live/snapshot",
        "/drain",
        "/drain/wait",
        "/config",
    ];
    for path in paths {
        assert!(index.contains(&format!("href=\"{path}\"")), "{index}");
        assert_eq!(status(&ask(&server, "GET", path)), 200, "{path}");
    }
    assert!(ask(&server, "GET", "/config").ends_with("log:\n  level: info\n"));
    server.stop();
}

#[test]
fn metrics_get_the_accept_header_and_survive_a_panic() {
    let server = serve(Program::new(0));
    let response = ask(&server, "GET", "/metrics");
    assert!(response.contains("content-type: text/plain; accept=none\r\n") && response.ends_with("tokometer_up 1\n"));
    let with = |accept: &str| {
        round_trip(
            &server,
            &format!("GET /metrics HTTP/1.1\r\nhost: a\r\naccept: {accept}\r\nconnection: close\r\n\r\n"),
        )
    };
    assert!(with("application/openmetrics-text").contains("accept=application/openmetrics-text"));
    // The values of repeated headers are joined into one list.
    assert!(with("a;q=0.5\r\naccept: b\r\nAccept: c").contains("accept=a;q=0.5,b,c\r\n"));
    assert_eq!(status(&with("panic")), 500);
    assert_eq!(status(&ask(&server, "GET", "/metrics")), 200);
}

#[test]
fn metrics_are_compressed_for_clients_that_accept_gzip() {
    let server = serve(Program::new(0));
    let with = |accepted: &str| {
        let mut stream = connect(&server);
        let request =
            format!("GET /metrics HTTP/1.1\r\nhost: a\r\naccept-encoding: {accepted}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let body = response.split_off(end);
        (String::from_utf8(response).unwrap(), body)
    };
    let yes =
        ["gzip", "GZIP", "deflate, gzip;q=0.5", "x-gzip", "*", "br\r\naccept-encoding: gzip", "identity;q=0, *;q=0.1"];
    for accepted in yes {
        let (headers, body) = with(accepted);
        assert!(headers.contains("content-encoding: gzip\r\n"), "{accepted}: {headers}");
        assert!(headers.contains(&format!("content-length: {}\r\n", body.len())), "{accepted}: {headers}");
        let mut page = String::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut page).unwrap();
        assert_eq!(page, "tokometer_up 1\n", "{accepted}");
    }
    for accepted in ["identity", "gzip;q=0", "gzip; q=0.000, *", "br, deflate", "gzip;q=x", "gzipped", ""] {
        let (headers, body) = with(accepted);
        assert!(!headers.contains("content-encoding"), "{accepted}: {headers}");
        assert_eq!(body, b"tokometer_up 1\n", "{accepted}");
    }
    // Other pages are small.
    assert!(!ask(&server, "GET", "/livez").contains("content-encoding"));
}

#[test]
fn engine_health_has_its_status_and_pages_survive_a_panic() {
    let server = serve(Program::new(0));
    let response = ask(&server, "GET", "/engine/healthz?listener=wedged");
    assert_eq!((status(&response), &json(&response)["healthy"]), (503, &false.into()));
    assert_eq!(status(&ask(&server, "GET", "/readyz")), 200, "only the engine is unhealthy");
    assert_eq!(json(&ask(&server, "GET", "/requests?limit=2"))["query"], "limit=2");
    assert_eq!(status(&ask(&server, "GET", "/requests?panic")), 500);
    assert_eq!(status(&ask(&server, "GET", "/requests")), 200);
}

#[test]
fn head_returns_get_without_a_body() {
    let server = serve(Program::new(0));
    for path in ["/", "/metrics", "/live", "/live/snapshot", "/livez", "/drain"] {
        let (head, get) = (ask(&server, "HEAD", path), ask(&server, "GET", path));
        assert_eq!(status(&head), 200, "{path}");
        assert_eq!(body(&head), "", "{path}");
        assert!(head.contains(&format!("content-length: {}\r\n", body(&get).len())), "{path}: {head}");
    }
}

#[test]
fn unknown_paths_and_methods_list_the_valid_ones() {
    let server = serve(Program::new(0));
    let response = ask(&server, "GET", "/v1/models");
    assert_eq!(status(&response), 404);
    assert!(json(&response)["error"]["paths"].as_array().unwrap().contains(&"/metrics".into()));
    assert!(json(&response)["error"]["message"].as_str().unwrap().contains("/v1/models"));
    for (method, path, allow) in [("POST", "/metrics", "GET, HEAD"), ("DELETE", "/drain", "GET, HEAD, POST")] {
        let response = ask(&server, method, path);
        assert_eq!(status(&response), 405, "{method} {path}");
        assert!(response.contains(&format!("allow: {allow}\r\n")), "{response}");
    }
}

#[test]
fn post_starts_a_drain_and_get_reports_it() {
    let program = Program::new(2);
    let server = serve(program.clone());
    let response = ask(&server, "GET", "/drain");
    assert_eq!((status(&response), &json(&response)["draining"]), (200, &false.into()));
    for (method, target) in [("GET", "/drain?wait"), ("GET", "/drain?wait=60s"), ("HEAD", "/drain?wait")] {
        let response = ask(&server, method, target);
        assert_eq!(status(&response), 405, "{method} {target}");
        assert!(response.contains("allow: POST\r\n"), "{response}");
        assert!(method == "HEAD" || body(&response).contains("POST /drain?wait"), "{response}");
    }
    assert_eq!(program.drains.load(Ordering::SeqCst), 0);
    assert_eq!(status(&ask(&server, "GET", "/readyz")), 200);

    let response = ask(&server, "POST", "/drain");
    assert_eq!(status(&response), 200);
    let report = json(&response);
    assert_eq!((&report["draining"], &report["open_streams"]), (&true.into(), &2.into()), "{report}");
    assert!(report["waited_ms"].is_null() && report["draining_ms"].is_u64(), "{report}");
    assert!(report["requested_by"].as_str().unwrap().starts_with("127.0.0.1:"), "{report}");
    let response = ask(&server, "GET", "/readyz");
    assert_eq!(status(&response), 503);
    for part in ["draining for 0 s", "requested by 127.0.0.1:", "2 streams are open", "the process exits"] {
        assert!(body(&response).contains(part), "{part} in {response}");
    }
    assert_eq!(status(&ask(&server, "GET", "/livez")), 200);
}

#[test]
fn wait_ends_with_the_last_stream() {
    for target in ["/drain?wait=60s", "/drain?wait"] {
        let program = Program::new(1);
        let server = serve(program.clone());
        let mut waiters = [("POST", target), ("GET", "/drain/wait")].map(|(method, target)| {
            let mut stream = connect(&server);
            let request = format!("{method} {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            stream
        });
        // Probes are served while clients wait. The drain has started once `/readyz` fails.
        while status(&ask(&server, "GET", "/readyz")) == 200 {}
        program.open.send_replace(0);
        for stream in &mut waiters {
            let mut response = String::new();
            stream.read_to_string(&mut response).unwrap();
            assert_eq!(status(&response), 200, "{response}");
            assert_eq!(json(&response)["open_streams"], 0);
            assert!(json(&response)["waited_ms"].as_u64().unwrap() < 30_000);
        }
    }
}

#[test]
fn wait_that_times_out_returns_503() {
    let program = Program::new(3);
    let server = serve(program.clone());
    assert_eq!(status(&ask(&server, "POST", "/drain?wait=soon")), 400);
    assert_eq!(program.drains.load(Ordering::SeqCst), 0, "an invalid request starts no drain");
    let response = ask(&server, "POST", "/drain?wait=1ms");
    assert_eq!((status(&response), &json(&response)["open_streams"]), (503, &3.into()));
    let bad = ask(&server, "POST", "/drain?wait=soon");
    assert!(json(&bad)["error"]["message"].as_str().unwrap().contains("10s"));
}

#[test]
fn drain_wait_follows_the_grace_period() {
    let program = Program::new(1);
    let server = serve(program.clone());
    ask(&server, "POST", "/drain");
    *program.grace.lock().unwrap() = Duration::from_millis(1);
    for (method, target) in [("GET", "/drain/wait"), ("POST", "/drain?wait")] {
        let response = ask(&server, method, target);
        assert_eq!(status(&response), 503, "{response}");
        assert!(json(&response)["waited_ms"].as_u64().unwrap() < 29_000, "the grace period of the start is not used");
    }
}

#[test]
fn long_headers_are_rejected() {
    let server = serve(Program::new(0));
    let mut stream = connect(&server);
    // The write may fail: the server may respond and close before it has read everything.
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "x".repeat(20_000)).as_bytes()).ok();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 431");
}

#[test]
fn slow_headers_time_out() {
    let settings = Settings { header_timeout: Duration::from_millis(50), ..settings() };
    let server = Server::start(&settings, pages(Program::new(0))).unwrap();
    let mut stream = connect(&server);
    stream.write_all(b"GET / HTTP/1.1\r\nhost").unwrap();
    let mut rest = Vec::new();
    // The server closes or resets; without the limit, the read would time out.
    let ended = stream.read_to_end(&mut rest);
    assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "the connection was not closed");
}

#[test]
fn oldest_idle_connection_is_closed_at_the_maximum() {
    let settings = Settings { max_connections: 2, ..settings() };
    let server = Server::start(&settings, pages(Program::new(0))).unwrap();
    let mut first = idle(&server);
    let second = idle(&server);
    let _third = idle(&server);
    assert_eq!(first.read(&mut [0; 1]).unwrap(), 0, "it is closed");
    second.set_nonblocking(true).unwrap();
    let error = (&second).read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "it is open");
}

#[test]
fn address_in_use_error_suggests_a_free_port() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = Settings { listen: taken.local_addr().unwrap(), ..settings() };
    let error = Server::start(&settings, pages(Program::new(0))).unwrap_err().to_string();
    for part in [settings.listen.to_string().as_str(), "admin.listen", "--admin", "in use"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let example = error.split_once("such as ").unwrap().1;
    assert!(example != settings.listen.to_string() && example.starts_with("127.0.0.1:"), "{error}");
}

#[test]
fn stop_lets_a_response_end_and_frees_the_address() {
    let (entered, has_entered) = channel();
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let slow = Pages {
        metrics: Arc::new(move |_| {
            entered.send(()).ok();
            wait.lock().unwrap().recv().ok();
            ("text/plain".to_owned(), b"late\n".to_vec())
        }),
        ..pages(Program::new(0))
    };
    let server = Server::start(&settings(), slow).unwrap();
    let address = server.address();
    let mut stream = connect(&server);
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    has_entered.recv().unwrap();
    let mut idle = idle(&server);
    let stopping = std::thread::spawn(move || server.stop());
    // Idle connections are closed immediately: this shows that the stop has started.
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    go.send(()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("late\n"), "{response}");
    stopping.join().unwrap();
    assert!(TcpStream::connect(address).is_err(), "the address is free");
}

/// A connection that has received a response and stays open.
fn idle(server: &Server) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(b"HEAD /livez HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).unwrap();
        response.extend(byte);
    }
    stream
}

#[test]
fn dropping_the_server_stops_it() {
    let server = serve(Program::new(0));
    let mut idle = idle(&server);
    drop(server);
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn wildcard_listener_accepts_ipv4_and_ipv6() {
    let settings = Settings { listen: "[::]:0".parse().unwrap(), ..Settings::default() };
    let server = Server::start(&settings, pages(Program::new(0))).unwrap();
    let port = server.address().port();
    let six = std::net::TcpListener::bind("[::1]:0").is_ok();
    let hosts: &[&str] = if six { &["127.0.0.1", "::1"] } else { &["127.0.0.1"] };
    for host in hosts {
        let mut stream = TcpStream::connect((*host, port)).unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert_eq!(status(&response), 200, "{host}: {response}");
    }
}
