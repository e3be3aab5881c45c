//! Scraping over real sockets: servers that are slow, huge or wrong, and pages that must not be read.

use std::collections::VecDeque;
use std::io;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::WAIT;
use crate::listener::reserved;
use async_trait::async_trait;
use tokometer_decode::Engine;
use tokometer_engine::scrape::{Dial, Failure, Measurements, Scraper, Settings, Target, Wire};

const PAGE: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n";

/// Handles a request with this method and path. `None` keeps the connection open without a response.
type Responses = dyn Fn(&str, &mut dyn Write) -> Option<()> + Send + Sync;

/// A scripted server that records its requests.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub(super) fn start(responses: impl Fn(&str, &mut dyn Write) -> Option<()> + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let (responses, heard): (Arc<Responses>, _) = (Arc::new(responses), Arc::clone(&asked));
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let head = head(&mut stream);
                let line = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
                heard.lock().unwrap().push(line.clone());
                if responses(&line, &mut stream).is_none() {
                    kept.push(stream);
                }
            }
        });
        Server { address, asked }
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn head(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n > 0) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

/// Writes a complete response.
pub(super) fn response(out: &mut dyn Write, status: &str, fields: &str, body: &str) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\n{fields}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
    out.write_all(head.as_bytes()).and_then(|()| out.write_all(body.as_bytes())).ok()
}

struct To(SocketAddr);

#[async_trait]
impl Dial for To {
    async fn dial(&self) -> io::Result<Box<dyn Wire>> {
        Ok(Box::new(tokio::net::TcpStream::connect(self.0).await?))
    }

    fn host(&self) -> String {
        self.0.to_string()
    }
}

fn settings(target: Target) -> Settings {
    Settings {
        interval: Duration::from_millis(10),
        timeout: Duration::from_secs(10),
        targets: vec![Some(target)],
        ..Settings::default()
    }
}

fn start(settings: &Settings, server: SocketAddr) -> Scraper {
    Scraper::start(settings, |_, _| Some(Arc::new(To(server)) as Arc<dyn Dial>)).unwrap()
}

fn measurements(scraper: &Scraper) -> Measurements {
    scraper.engines().measurements(Instant::now())[0].clone().unwrap()
}

/// Polls until `find` returns a value.
pub(crate) fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} within {WAIT:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn read(scraper: &Scraper) -> Measurements {
    until("a page is read", || Some(measurements(scraper)).filter(|measurements| measurements.state.is_some()))
}

fn failed(scraper: &Scraper) -> Failure {
    let which = |measurements: Measurements| measurements.failures.iter().position(|count| *count > 0);
    Failure::ALL[until("a reading fails", || which(measurements(scraper)))]
}

fn count(measurements: &Measurements, failure: Failure) -> u64 {
    measurements.failures[Failure::ALL.iter().position(|own| *own == failure).unwrap()]
}

#[test]
fn page_is_found_once_and_read_repeatedly() {
    let server = Server::start(|asked, out| match asked {
        "OPTIONS /metrics" => response(out, "200 OK", "server: uvicorn\r\n", PAGE),
        "GET /metrics" => response(out, "200 OK", "content-type: text/plain; version=1.0.0; charset=utf-8\r\n", PAGE),
        _ => response(out, "404 Not Found", "", ""),
    });
    let scraper = start(&settings(Target::default()), server.address);
    let state = read(&scraper).state.unwrap();
    assert_eq!((state.running, state.waiting, state.kv_usage), (Some(3.0), Some(1.0), None));
    let asked = until("four requests", || Some(server.asked()).filter(|asked| asked.len() >= 4));
    assert_eq!(
        asked[..4],
        ["OPTIONS /metrics", "GET /metrics", "GET /version", "GET /metrics"],
        "the page is searched once"
    );
    assert_eq!(measurements(&scraper).failures, [0; Failure::ALL.len()]);
    assert_eq!(measurements(&scraper).version, None);
}

#[test]
fn version_of_the_engine_is_requested_once_per_connection_failure() {
    let body = Arc::new(Mutex::new(r#"{"version": "0.33.0", "other": 1}"#.to_owned()));
    let fails = Arc::new(Mutex::new(false));
    let (served, failing) = (Arc::clone(&body), Arc::clone(&fails));
    let server = Server::start(move |asked, out| match asked {
        "GET /version" => response(out, "200 OK", "content-type: application/json\r\n", &served.lock().unwrap()),
        _ if *failing.lock().unwrap() => response(out, "503 Service Unavailable", "", ""),
        _ => response(out, "200 OK", "", PAGE),
    });
    let scraper = start(&settings(Target::default()), server.address);
    let version = || measurements(&scraper).version;
    let known = until("the version is read", version);
    assert_eq!((known.0, &*known.1), ("vllm", "0.33.0"));
    let attempts = measurements(&scraper).attempts;
    until("three more pages", || Some(()).filter(|()| measurements(&scraper).attempts >= attempts + 3));
    assert_eq!(server.asked().iter().filter(|asked| *asked == "GET /version").count(), 1);
    let too_large = format!(r#"{{"version": "2", "other": "{}"}}"#, "x".repeat(64 << 10));
    let too_long = format!(r#"{{"version": "{}"}}"#, "2".repeat(65));
    let unusable = ["{}", "[]", "no JSON", r#"{"version": 1}"#, r#"{"version": "a b"}"#, r#"{"version": ""}"#];
    for unusable in unusable.into_iter().chain([too_large.as_str(), &too_long]) {
        unusable.clone_into(&mut body.lock().unwrap());
        *fails.lock().unwrap() = true;
        let failures = count(&measurements(&scraper), Failure::Status);
        until("a failure", || Some(()).filter(|()| count(&measurements(&scraper), Failure::Status) > failures));
        *fails.lock().unwrap() = false;
        until("the version is read again", || Some(()).filter(|()| version().is_none()));
        r#"{"version": "1"}"#.clone_into(&mut body.lock().unwrap());
        *fails.lock().unwrap() = true;
        let failures = count(&measurements(&scraper), Failure::Status);
        until("a failure", || Some(()).filter(|()| count(&measurements(&scraper), Failure::Status) > failures));
        *fails.lock().unwrap() = false;
        until("the next version", || version().filter(|(_, version)| &**version == "1"));
    }
}

#[test]
fn listeners_with_the_same_server_share_its_state() {
    let server = Server::start(|_, out| response(out, "200 OK", "server: uvicorn\r\n", PAGE));
    let own = settings(Target::default());
    let settings = Settings { targets: vec![own.targets[0].clone(), None, None], servers: vec![0, 0, 2], ..own };
    let scraper = start(&settings, server.address);
    read(&scraper);
    let (engines, now) = (scraper.engines(), Instant::now());
    let running = |listener| engines.at(listener, now).and_then(|(state, _)| state.running);
    assert_eq!([0, 1, 2].map(running), [Some(3.0), Some(3.0), None]);
}

#[test]
fn page_in_arbitrary_chunks_is_parsed() {
    let server = Server::start(|_, out| {
        out.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").ok()?;
        for piece in PAGE.as_bytes().chunks(5) {
            out.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).ok()?;
            out.write_all(piece).and_then(|()| out.write_all(b"\r\n")).ok()?;
        }
        out.write_all(b"0\r\n\r\n").ok()
    });
    let scraper = start(&settings(Target::default()), server.address);
    assert_eq!(read(&scraper).state.unwrap().running, Some(3.0));
}

#[test]
fn tensorrt_llm_page_emptied_by_reads_is_never_read() {
    let server = Server::start(|asked, out| match asked {
        "OPTIONS /metrics" => response(out, "405 Method Not Allowed", "server: uvicorn\r\nallow: GET\r\n", "{}"),
        "GET /prometheus/metrics" => response(out, "200 OK", "", "trtllm_num_requests_running 9\n"),
        _ => response(out, "200 OK", "server: uvicorn\r\ncontent-type: application/json\r\n", "[]"),
    });
    for engine in [None, Some(Engine::TensorrtLlm)] {
        let scraper = start(&settings(Target { engine, ..Target::default() }), server.address);
        assert_eq!(read(&scraper).state.unwrap().running, Some(9.0));
    }
    assert!(!server.asked().contains(&"GET /metrics".to_owned()), "{:?}", server.asked());
}

#[test]
fn tensorrt_llm_without_prometheus_page_is_not_read() {
    let server = Server::start(|asked, out| match asked {
        "OPTIONS /metrics" => response(out, "405 Method Not Allowed", "server: uvicorn\r\nallow: GET\r\n", "{}"),
        "GET /prometheus/metrics" => response(out, "404 Not Found", "", ""),
        _ => response(out, "200 OK", "content-type: application/json\r\n", "[]"),
    });
    let scraper = start(&settings(Target::default()), server.address);
    until("three failures", || Some(()).filter(|()| count(&measurements(&scraper), Failure::Status) >= 3));
    assert!(!server.asked().contains(&"GET /metrics".to_owned()), "{:?}", server.asked());
}

#[test]
fn json_page_is_read_only_once() {
    let server = Server::start(|_, out| response(out, "200 OK", "content-type: application/json\r\n", "[]"));
    let scraper = start(&settings(Target { path: Some("/metrics".to_owned()), ..Target::default() }), server.address);
    assert_eq!(failed(&scraper), Failure::Json);
    // A repeated request would have been sent by the time another scraper has made five attempts.
    let other = start(&settings(Target::default()), Server::start(|_, out| response(out, "503 Busy", "", "")).address);
    until("five failures of another", || Some(()).filter(|()| measurements(&other).attempts >= 5));
    assert_eq!((server.asked(), measurements(&scraper).attempts), (vec!["GET /metrics".to_owned()], 1));
}

#[test]
fn llama_cpp_page_is_read_only_if_enabled() {
    let llama = || {
        Server::start(|asked, out| {
            let page = if asked.starts_with("GET") { "llamacpp:requests_processing 2\n" } else { "" };
            response(out, "200 OK", "Server: llama.cpp\r\n", page)
        })
    };
    let server = llama();
    let scraper = start(&settings(Target::default()), server.address);
    until("a look", || Some(()).filter(|()| !server.asked().is_empty()));
    let asked = llama();
    let reading = start(&settings(Target { draining: true, ..Target::default() }), asked.address);
    assert_eq!(read(&reading).state.unwrap().running, Some(2.0));
    until("more readings of the other", || Some(()).filter(|()| measurements(&reading).attempts >= 5));
    assert_eq!(server.asked(), ["OPTIONS /metrics"]);
    assert_eq!(measurements(&scraper), Measurements::default(), "a page that is not requested has not failed");
}

#[test]
fn mounted_page_is_found_through_its_redirect() {
    let server = Server::start(|asked, out| match asked {
        "GET /metrics/" => response(out, "200 OK", "", PAGE),
        _ => response(out, "307 Temporary Redirect", "server: uvicorn\r\nlocation: http://x/metrics/\r\n", ""),
    });
    let scraper = start(&settings(Target::default()), server.address);
    assert_eq!(read(&scraper).state.unwrap().running, Some(3.0));
    let asked = until("five requests", || Some(server.asked()).filter(|asked| asked.len() >= 5));
    assert_eq!(asked[..5], ["OPTIONS /metrics", "GET /metrics", "GET /metrics/", "GET /version", "GET /metrics/"]);
}

#[test]
fn reading_a_huge_page_stops_at_the_limit() {
    const MEGABYTE: usize = 1 << 20;
    let sent = Arc::new(Mutex::new(VecDeque::new()));
    let count = Arc::clone(&sent);
    let server = Server::start(move |asked, out| {
        if asked.starts_with("OPTIONS") {
            return response(out, "200 OK", "", "");
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 50 * MEGABYTE);
        out.write_all(head.as_bytes()).ok()?;
        let lines = "x{a=\"b\"} 1\n".repeat(MEGABYTE / 11);
        let taken = (0..50).take_while(|_| out.write_all(lines.as_bytes()).is_ok()).count();
        count.lock().unwrap().push_back(taken);
        Some(())
    });
    let settings = Settings { page_bytes: 2 * MEGABYTE, ..settings(Target::default()) };
    let scraper = start(&settings, server.address);
    assert_eq!(failed(&scraper), Failure::TooLarge);
    // The server can send more than the limit, because socket buffers accept more data.
    let taken = until("the server sees the end", || sent.lock().unwrap().front().copied());
    assert!(taken < 25, "{taken} MB of 50 were taken");
}

#[test]
fn hanging_server_times_out_without_delaying_others() {
    let hanging = Server::start(|_, _| None);
    let good = Server::start(|_, out| response(out, "200 OK", "", PAGE));
    let addresses = [hanging.address, good.address];
    let settings = Settings {
        timeout: Duration::from_millis(300),
        targets: vec![Some(Target::default()), None, Some(Target::default())],
        ..settings(Target::default())
    };
    let dial = |listener: usize, _: &Target| Some(Arc::new(To(addresses[listener / 2])) as Arc<dyn Dial>);
    let scraper = Scraper::start(&settings, dial).unwrap();
    let all = || scraper.engines().measurements(Instant::now());
    until("the third is read", || all()[2].clone()?.state);
    assert_eq!(all()[1], None, "the second is not read");
    assert_eq!(failed(&scraper), Failure::Timeout);
    let hung = measurements(&scraper);
    assert!(hung.state.is_none() && hung.duration.unwrap() >= Duration::from_millis(300), "{hung:?}");
}

#[test]
fn each_failure_has_its_reason() {
    let table: [(&str, &str, &str, Failure); 6] = [
        ("503 Service Unavailable", "", PAGE, Failure::Status),
        ("204 No Content", "", "", Failure::Status),
        ("200 OK", "content-type: text/html\r\n", "<html></html>", Failure::NotMetrics),
        ("200 OK", "", "", Failure::NotMetrics),
        ("200 OK", "", "python_info 1\n", Failure::UnknownNames),
        ("200 OK", "content-type: application/json; charset=utf-8\r\n", "[]", Failure::Json),
    ];
    for (status, fields, body, want) in table {
        let server = Server::start(move |asked, out| {
            let fields = if asked.starts_with("GET") { fields } else { "" };
            response(out, status, fields, body)
        });
        assert_eq!(failed(&start(&settings(Target::default()), server.address)), want, "{status} {body}");
    }
    let cut = Server::start(|_, out| out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nup 1").ok());
    assert_eq!(
        failed(&start(&settings(Target { path: Some("/m".to_owned()), ..Target::default() }), cut.address)),
        Failure::Broken
    );
    let garbage = Server::start(|_, out| out.write_all(b"SSH-2.0-x\r\n\r\n").ok());
    assert_eq!(failed(&start(&settings(Target::default()), garbage.address)), Failure::Broken);
    let gone = reserved();
    assert_eq!(failed(&start(&settings(Target::default()), gone)), Failure::Connect);
}

#[test]
fn configured_path_is_used_unchanged() {
    let server = Server::start(|_, out| response(out, "200 OK", "", PAGE));
    let target = Target { path: Some("/stats?format=prometheus".to_owned()), ..Target::default() };
    let scraper = start(&settings(target), server.address);
    read(&scraper);
    assert_eq!(server.asked()[0], "GET /stats?format=prometheus");
}

#[test]
fn dropping_the_scraper_stops_a_pending_request() {
    let server = Server::start(|_, _| None);
    let settings = Settings { timeout: Duration::from_secs(3600), ..settings(Target::default()) };
    let scraper = start(&settings, server.address);
    until("it asks", || Some(()).filter(|()| !server.asked().is_empty()));
    let begun = Instant::now();
    drop(scraper);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
