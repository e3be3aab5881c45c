//! A tap that is stopped, killed, or starved of CPU while requests are in flight. The traffic must not be affected, and
//! records must never be wrong.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use tokometer_sim::load;

use super::command::{Server, requests, tap, tap_by, until};
use super::is_permitted;
use crate::program::value;

#[test]
fn stopped_and_killed_tap_does_not_affect_the_traffic() {
    if !is_permitted() {
        return;
    }
    let server = Server::start();
    let (process, admin) = tap(&[server.address().port()], &["--set=tap.buffer=2MiB"]);
    server.load(16);
    until(admin, "/metrics", |page| requests(page, &["outcome=\"ok\""]) == 16);
    thread::scope(|scope| {
        let loaded = scope.spawn(|| server.load(32));
        process.signal(Signal::STOP);
        // All requests complete while the tap is stopped.
        loaded.join().unwrap();
    });
    // Sends more bytes than the capture buffer holds.
    let (big, sink) = transfer(&server, 16 << 20);
    assert_eq!(big, sink);
    process.signal(Signal::CONT);
    let page = until(admin, "/metrics", |page| value(page, &["tokometer_capture_packets_lost_total"]) > Some(0.0));
    assert!(value(&page, &["tokometer_capture_ring_full_total"]) > Some(0.0), "{page}");
    assert_eq!(value(&page, &["tokometer_capture_ring_used_ratio"]), Some(1.0), "{page}");
    // The tap measures new requests again.
    let before = requests(&page, &["outcome=\"ok\""]);
    server.load(8);
    until(admin, "/metrics", |page| requests(page, &["outcome=\"ok\""]) >= before + 8);
    thread::scope(|scope| {
        let loaded = scope.spawn(|| server.load(32));
        process.signal(Signal::KILL);
        loaded.join().unwrap();
    });
}

#[test]
fn requests_during_a_loss_are_marked_and_never_wrong() {
    if !is_permitted() {
        return;
    }
    let server = Server::start();
    let log = Log::create();
    let [enabled, format, path] = &log.settings();
    let (process, admin) = tap(&[server.address().port()], &[enabled, format, path, "--set=tap.buffer=2MiB"]);
    let streams = load::Settings {
        url: format!("http://{}", server.address()),
        requests: Some(8),
        max_tokens: 400,
        ignore_eos: true,
        ..load::Settings::default()
    };
    let summary = thread::scope(|scope| {
        let loaded = scope.spawn(|| server.runtime.block_on(load::run(streams, |_| {})).unwrap());
        until(admin, "/metrics", |page| value(page, &["tokometer_in_flight", "streaming"]) == Some(8.0));
        process.signal(Signal::STOP);
        transfer(&server, 16 << 20);
        process.signal(Signal::CONT);
        loaded.join().unwrap()
    });
    assert_eq!(summary.tokens_from_usage, 8 * 400, "the clients received everything");
    server.load(8);
    let records = log.records(admin, 16);
    assert_eq!(records.len(), 16);
    for record in records {
        let is_later = record["max_tokens"] == 20;
        assert_eq!(record["capture_loss"], !is_later, "{record}");
        assert!(is_exact(&record) || !is_later, "{record}");
    }
}

/// The access log of a tap.
struct Log(tempfile::NamedTempFile);

impl Log {
    fn create() -> Log {
        Log(tempfile::NamedTempFile::new().unwrap())
    }

    /// Settings that enable the log.
    fn settings(&self) -> [String; 3] {
        let path = format!("--set=access_log.path={}", self.0.path().display());
        ["--set=access_log.enabled=true".to_owned(), "--set=access_log.format=json".to_owned(), path]
    }

    /// Waits for at least `n` records of chat requests; returns them.
    fn records(&self, admin: SocketAddr, n: usize) -> Vec<Value> {
        let recorded = || -> Vec<Value> {
            let lines = std::fs::read_to_string(self.0.path()).unwrap();
            let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            records.filter(|record| record["operation"] == "chat").collect()
        };
        until(admin, "/metrics", |_| recorded().len() >= n);
        recorded()
    }
}

/// True if the whole request was observed. Otherwise asserts that the record is marked as incomplete.
fn is_exact(record: &Value) -> bool {
    match record["outcome"].as_str().unwrap() {
        "ok" => {
            assert_eq!(record["output_tokens"], record["max_tokens"], "{record}");
            true
        }
        outcome => {
            assert_eq!((outcome, &record["capture_loss"]), ("unobserved", &Value::Bool(true)), "{record}");
            false
        }
    }
}

/// Sends a request with a body of this many bytes to the server. Returns `bytes`, and the number of bytes accepted.
fn transfer(server: &Server, bytes: usize) -> (usize, usize) {
    let mut client = TcpStream::connect(server.address()).unwrap();
    let head = format!("POST /other HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {bytes}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    let body = vec![b'x'; bytes];
    // The server may respond and close before it has read the whole body.
    let sent = client.write_all(&body).map_or(0, |()| bytes);
    client.read_to_end(&mut Vec::new()).ok();
    (bytes, sent)
}

/// Processes that use all time of the first core until they are dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn start() -> Busy {
        let busy = || {
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", "0", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
            command.spawn().unwrap()
        };
        Busy(vec![busy(), busy()])
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[test]
fn starved_tap_loses_packets_and_the_traffic_nothing() {
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if !is_permitted() || !has("taskset") || !has("chrt") {
        return eprintln!("SKIP: needs the capability NET_RAW, taskset and chrt");
    }
    let server = Server::start();
    let log = Log::create();
    // Runs the tap with idle priority, on the core that the busy processes use.
    let mut command = Command::new("chrt");
    command.args(["--idle", "0", "taskset", "--cpu-list", "0", env!("CARGO_BIN_EXE_tokometer")]);
    let [enabled, format, path] = &log.settings();
    let (_process, admin) =
        tap_by(command, &[server.address().port()], &[enabled, format, path, "--set=tap.buffer=2MiB"]);
    let busy = Busy::start();
    server.load(64);
    for _ in 0..8 {
        let (bytes, sent) = transfer(&server, 16 << 20);
        assert_eq!(bytes, sent);
    }
    server.load(64);
    drop(busy);
    let page = until(admin, "/metrics", |page| value(page, &["tokometer_capture_packets_lost_total"]) > Some(0.0));
    assert_eq!(value(&page, &["tokometer_capture_ring_used_ratio"]), Some(1.0), "{page}");
    // There may be fewer records than requests: a request whose connection was lost has no record.
    let exact =
        || log.records(admin, 0).iter().filter(|record| is_exact(record) && record["capture_loss"] == false).count();
    let before = exact();
    // Retries, because the buffer may still be full.
    until(admin, "/metrics", |_| {
        server.load(8);
        exact() >= before + 8
    });
}
