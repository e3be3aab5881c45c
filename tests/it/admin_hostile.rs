//! Hostile clients of the admin server, over real sockets: probes respond, memory is bounded, no state changes.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rustix::process::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tokometer::admin::{Control, Draining, Pages, Server, Settings};

use crate::WAIT;
use crate::admin::{Program, ask, body, connect, pages, round_trip, settings, status};

const PROBES: [&str; 4] = ["/livez", "/readyz", "/startz", "/engine/healthz"];

/// The tests need many descriptors: both ends of each connection are in this process.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Asserts that the server responds with 200 to every probe on a new connection.
fn assert_probes_answer(server: &Server) {
    for _ in 0..5 {
        for path in PROBES {
            let began = Instant::now();
            assert_eq!(status(&ask(server, "GET", path)), 200, "{path}");
            assert!(began.elapsed() < Duration::from_secs(5), "{path} took {:?}", began.elapsed());
        }
    }
}

#[test]
fn incomplete_requests_do_not_block_probes() {
    raise_descriptor_limit();
    let server = Server::start(&settings(), pages(Program::new(0))).unwrap();
    let mut half = Vec::new();
    for count in [300, 1000] {
        while half.len() < count {
            let mut stream = connect(&server);
            // The server may have closed the connection already.
            stream.write_all(b"GET /livez HTTP/1.1\r\nhost: a\r\nx").ok();
            half.push(stream);
        }
        assert_probes_answer(&server);
    }
}

#[test]
fn watchers_above_the_maximum_do_not_block_probes() {
    raise_descriptor_limit();
    let server = Server::start(&settings(), pages(Program::new(0))).unwrap();
    let mut watchers: Vec<TcpStream> = (0..1000)
        .map(|_| {
            let mut stream = connect(&server);
            stream.write_all(b"GET /live/events HTTP/1.1\r\nhost: a\r\n\r\n").ok();
            stream
        })
        .collect();
    assert_probes_answer(&server);
    let is_watching = |stream: &mut TcpStream| {
        let mut first = [0; 12];
        stream.read_exact(&mut first).is_ok() && &first == b"HTTP/1.1 200"
    };
    let watching = watchers.iter_mut().map(is_watching).filter(|watching| *watching).count();
    assert_eq!(watching, 16);
    assert_probes_answer(&server);
    drop(watchers);
    let began = Instant::now();
    while !is_watching(&mut { watcher(&server) }) {
        assert!(began.elapsed() < Duration::from_secs(30), "no slot was freed");
    }
}

fn watcher(server: &Server) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(b"GET /live/events HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    stream
}

/// Size of a page that exceeds all socket buffers.
const LARGE: usize = 64 << 20;

fn with_large_requests(timeout: Duration) -> (Server, Arc<AtomicUsize>) {
    let rendered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&rendered);
    let requests = move |_: Option<&str>| {
        count.fetch_add(1, Ordering::SeqCst);
        (200, vec![b' '; LARGE])
    };
    let pages = Pages { requests: Arc::new(requests), ..pages(Program::new(0)) };
    (Server::start(&Settings { header_timeout: timeout, ..settings() }, pages).unwrap(), rendered)
}

#[test]
fn slow_readers_get_two_bodies_at_a_time() {
    let (server, rendered) = with_large_requests(Duration::from_secs(60));
    let mut readers: Vec<TcpStream> = (0..60).map(|_| connect(&server)).collect();
    for stream in &mut readers {
        stream.write_all(b"GET /requests HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    }
    let mut refused = 0;
    for stream in &mut readers {
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        if &first == b"HTTP/1.1 503" {
            let mut rest = String::new();
            stream.read_to_string(&mut rest).unwrap();
            assert!(rest.contains("retry-after: 1\r\n") && rest.contains("in progress"), "{rest}");
            refused += 1;
        }
    }
    assert_eq!((refused, rendered.load(Ordering::SeqCst)), (58, 2));
    assert_probes_answer(&server);
}

#[test]
fn client_that_reads_no_response_is_closed_and_frees_its_slot() {
    let (server, _) = with_large_requests(Duration::from_secs(2));
    let silent: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = connect(&server);
            stream.write_all(b"GET /requests HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            stream.read_exact(&mut [0; 12]).unwrap();
            stream
        })
        .collect();
    assert_eq!(status(&ask(&server, "GET", "/requests")), 503);
    let began = Instant::now();
    while status(&ask(&server, "HEAD", "/requests")) == 503 {
        assert!(began.elapsed() < Duration::from_secs(30), "the slots were not freed");
    }
    drop(silent);
}

#[test]
fn slow_reads_do_not_extend_the_response_timeout() {
    let (server, _) = with_large_requests(Duration::from_millis(500));
    let mut stream = connect(&server);
    stream.write_all(b"GET /requests HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let (mut read, mut bytes) = (0, vec![0; 256 << 10]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(some) => read += some,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                break;
            }
        }
        // Each pause is far shorter than the timeout; all pauses together are far longer.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(read < LARGE, "it received the whole response");
}

#[test]
fn client_that_reads_no_probe_responses_is_closed() {
    let server =
        Server::start(&Settings { header_timeout: Duration::from_millis(500), ..settings() }, pages(Program::new(0)));
    let server = server.unwrap();
    let mut stream = connect(&server);
    stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
    let requests = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n".repeat(1000);
    let error = loop {
        if let Err(error) = stream.write_all(&requests) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
}

#[test]
fn foreign_hosts_and_origins_are_rejected_except_for_probes() {
    let program = Program::new(0);
    let names = Settings { allowed_hosts: vec!["tokometer.corp.example".to_owned()], ..settings() };
    let server = Server::start(&names, pages(Arc::clone(&program))).unwrap();
    let with = |method: &str, path: &str, headers: &str| {
        round_trip(&server, &format!("{method} {path} HTTP/1.1\r\n{headers}\r\nconnection: close\r\n\r\n"))
    };
    let foreign = [
        "host: evil.example",
        "host: evil.example:9464\r\norigin: http://evil.example:9464",
        "host: 127.0.0.1:9464\r\norigin: http://evil.example",
        "host: 127.0.0.1:9464\r\norigin: null",
        "host: localhost:9464\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\nsec-fetch-dest: image",
    ];
    let changing = ["/drain", "/drain?wait=1ms"];
    for headers in foreign {
        for path in [
            "/config",
            "/requests",
            "/metrics",
            "/live",
            "/live/snapshot",
            "/live/events",
            "/drain",
            "/drain/wait",
            "/",
        ] {
            let response = with("GET", path, headers);
            assert_eq!(status(&response), 403, "{path} {headers}");
            assert!(!response.contains("access-control-allow") && response.contains("nosniff"), "{response}");
        }
        changing.iter().for_each(|path| assert_eq!(status(&with("POST", path, headers)), 403, "{path} {headers}"));
        PROBES.iter().for_each(|path| assert_eq!(status(&with("GET", path, headers)), 200, "{path} {headers}"));
    }
    assert!(body(&with("GET", "/config", foreign[0])).contains("admin.allowed_hosts"));
    assert!(program.draining().is_none());
    let link = "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document";
    for headers in [
        "host: tokometer.corp.example",
        "host: 127.0.0.1:9464\r\norigin: http://127.0.0.1:9464",
        "host: localhost\r\nsec-fetch-site: same-origin",
        &format!("host: localhost\r\n{link}"),
    ] {
        assert_eq!(status(&with("GET", "/config", headers)), 200, "{headers}");
    }
    assert_eq!(status(&with("GET", "http://evil.example/config", "host: 127.0.0.1")), 403, "the target has precedence");
    assert_eq!(status(&with("GET", "/config", "host: a\r\nhost: b")), 400);
    assert_eq!(status(&with("GET", "/config", "x: no host")), 400);
    assert_eq!(status(&round_trip(&server, "GET /config HTTP/1.0\r\n\r\n")), 200);
}

/// A connection from 127.0.0.`last`, which counts as another machine unless it is 1.
fn connect_from(last: u8, server: &Server) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0).into()).unwrap();
    socket.connect(&server.address().into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// A drain that never ends. Sends a message for each client that waits for its end.
struct Endless(Mutex<Sender<()>>);

#[async_trait]
impl Control for Endless {
    fn begin_drain(&self, _: &str) {}

    fn draining(&self) -> Option<Draining> {
        Some(Draining { began: Instant::now(), requested_by: "a test".to_owned() })
    }

    fn grace_period(&self) -> Duration {
        Duration::from_secs(3600)
    }

    fn open_streams(&self) -> usize {
        1
    }

    async fn wait_until_idle(&self) {
        self.0.lock().unwrap().send(()).ok();
        std::future::pending().await
    }
}

#[test]
fn few_hostile_addresses_do_not_use_up_the_waits_for_a_drain() {
    let (began, waits) = channel();
    let pages = Pages { control: Arc::new(Endless(Mutex::new(began))), ..pages(Program::new(0)) };
    let server = Server::start(&settings(), pages).unwrap();
    let wait = |last: u8| {
        let mut stream = connect_from(last, &server);
        stream.write_all(b"GET /drain/wait HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        stream
    };
    let mut hostile = Vec::new();
    for last in [2, 3, 4, 5] {
        for _ in 0..16 {
            hostile.push(wait(last));
            waits.recv_timeout(WAIT).unwrap();
        }
    }
    // These clients represent the kubelet and a hook in the pod.
    let hooks = [6, 1].map(|last| {
        let hook = wait(last);
        waits.recv_timeout(WAIT).expect("it waits, and gets no 503");
        hook
    });
    // For each of them, the server closed the oldest wait of an address with the most waits.
    for at in [0, 16] {
        assert_eq!(hostile[at].read(&mut [0; 1]).unwrap(), 0);
    }
    drop(hooks);
}

#[test]
fn few_hostile_addresses_do_not_use_up_the_scrapes() {
    let metrics = |_: Option<&str>| ("text/plain".to_owned(), vec![b' '; LARGE]);
    let server = Server::start(&settings(), Pages { metrics: Arc::new(metrics), ..pages(Program::new(0)) }).unwrap();
    let scrape = |last: u8| {
        let mut stream = connect_from(last, &server);
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        (stream, first)
    };
    // These clients do not read the rest of the responses, so their scrapes stay in progress.
    let hostile = [2, 2, 3, 3].map(scrape);
    assert!(hostile.iter().all(|(_, first)| first == b"HTTP/1.1 200"));
    assert_eq!(scrape(2).1, *b"HTTP/1.1 503", "its own maximum");
    assert_eq!(scrape(4).1, *b"HTTP/1.1 200");
}

/// Sends a drain request and reads the response.
fn drain(mut stream: impl Read + Write) -> String {
    stream.write_all(b"POST /drain HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

#[test]
fn network_clients_start_no_drain_unless_enabled() {
    for (remote_drain, expected) in [(false, 403), (true, 200)] {
        // Istio's sidecar connects from 127.0.0.6 on behalf of remote clients, `kubectl port-forward` from 127.0.0.1.
        for last in [1, 6] {
            let program = Program::new(0);
            let server = Server::start(&Settings { remote_drain, ..settings() }, pages(Arc::clone(&program))).unwrap();
            let response = drain(connect_from(last, &server));
            assert_eq!(status(&response), expected, "{response}");
            assert_eq!(program.draining().is_some(), remote_drain);
            assert!(remote_drain || body(&response).contains("admin.remote_drain"), "{response}");
        }
    }
}

#[test]
fn drain_is_accepted_through_the_unix_socket_of_the_right_server() {
    let start = |listen: &str| {
        let program = Program::new(0);
        let settings = Settings { listen: listen.parse().unwrap(), ..settings() };
        (Server::start(&settings, pages(Arc::clone(&program))).unwrap(), program)
    };
    for (listen, dial) in [("127.0.0.3:0", "127.0.0.3"), ("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "::1")] {
        let ((server, program), (_other, bystander)) = (start(listen), start("127.0.0.4:0"));
        let address = SocketAddr::new(dial.parse().unwrap(), server.address().port());
        // An address of another machine (RFC 5737) does not name this server.
        let elsewhere = SocketAddr::new("192.0.2.1".parse().unwrap(), address.port());
        assert!(tokometer::admin::connect_locally(elsewhere).is_none());
        let response = drain(tokometer::admin::connect_locally(address).unwrap());
        assert_eq!(status(&response), 200, "{response}");
        let requested_by = program.draining().unwrap().requested_by;
        assert!(requested_by.starts_with(&format!("process {} of user ", std::process::id())), "{requested_by}");
        assert!(bystander.draining().is_none());
        drop(server);
    }
}
