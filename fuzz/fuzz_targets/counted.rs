//! Whole connections: every request that a reference parser finds is recorded by the observer, as observed or as
//! unobserved. The client sends requests and other bytes in any pieces; the server responds to each request, in order.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use tokometer_fuzz::work::Work;
use tokometer_observe::input::{Close, Connection, Direction, Observe, Side};
use tokometer_observe::measure::{Record, Sink};
use tokometer_observe::observer::{Observers, Settings};

/// The number of records.
#[derive(Default)]
struct Counts(AtomicUsize);

impl Sink for Counts {
    fn record(&self, _record: &Arc<Record>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

const ANSWERS: [&[u8]; 4] = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na",
    b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
];

/// The server: parses requests with httparse, as simply as possible, and skips bytes that do not form a request up to
/// the next line.
#[derive(Default)]
struct Server {
    bytes: Vec<u8>,
}

impl Server {
    /// True if a whole request was taken from the received bytes.
    fn take(&mut self) -> bool {
        loop {
            let mut fields = [httparse::EMPTY_HEADER; 64];
            let mut request = httparse::Request::new(&mut fields);
            match request.parse(&self.bytes) {
                Ok(httparse::Status::Complete(head)) => {
                    let value = |name: &str| {
                        let field = request.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
                        field.and_then(|field| std::str::from_utf8(field.value).ok())
                    };
                    let length = value("content-length").and_then(|length| length.parse().ok()).unwrap_or(0_usize);
                    let Some(end) = head.checked_add(length).filter(|end| *end <= self.bytes.len()) else {
                        return false;
                    };
                    self.bytes.drain(..end);
                    return true;
                }
                Ok(httparse::Status::Partial) => return false,
                Err(_) => {
                    let Some(line) = self.bytes.iter().position(|byte| *byte == b'\n') else { return false };
                    self.bytes.drain(..=line);
                }
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    // Excluded: a switch to HTTP/2, which this server does not support, and methods whose responses have other ends.
    if input.windows(4).any(|bytes| matches!(bytes, b"PRI " | b"HEAD" | b"CONN")) {
        return;
    }
    let counts = Arc::new(Counts::default());
    let settings = Settings { head_bytes: 1024, max_open_requests: 3, probes: true, ..Settings::default() };
    let observers = Observers::new(settings, 1, Arc::clone(&counts) as _);
    let at = Instant::now();
    let connection = Connection { id: 1, peer: None, listener: 0, upstream: "x".into(), accepted: at };
    let mut observer = observers.accepted(&connection).expect("observers are enabled");
    let mut server = Server::default();
    let mut found = 0;
    // `FF` and a value end a read of the client. The server then responds to as many requests as the value says.
    let mut answers = 0;
    for piece in input.split(|byte| *byte == 0xff) {
        let (limit, piece) = piece.split_first().map_or((0, piece), |(limit, rest)| (*limit, rest));
        if !piece.is_empty() {
            observer.seen(Direction::Request, piece, at);
            server.bytes.extend_from_slice(piece);
        }
        for _ in 0..limit % 8 {
            if !server.take() {
                break;
            }
            found += 1;
            observer.seen(Direction::Response, ANSWERS[answers % ANSWERS.len()], at);
            answers += usize::from(limit / 8);
        }
    }
    observer.closed(Close::Finished { first: Side::Client }, at);
    drop(observer);
    let recorded = counts.0.load(Ordering::Relaxed);
    assert!(recorded >= found, "{recorded} records of {found} requests");
});
