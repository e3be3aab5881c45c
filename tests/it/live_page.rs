//! The live page and its event stream over real sockets.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokometer::admin::{Pages, Server, Settings};

use crate::admin;
use crate::admin::{Program, ask, body, connect, status};

/// Maximum number of responses of `/live/events` in progress.
const MAX_WATCHERS: usize = 16;

/// An admin server whose snapshots are numbered from 1, and padded by `bytes` bytes.
struct Stage {
    server: Server,
    made: Arc<AtomicUsize>,
}

impl Stage {
    fn new(bytes: usize) -> Stage {
        Stage::with(bytes, admin::settings())
    }

    fn with(bytes: usize, settings: Settings) -> Stage {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let live = move || {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            format!(r#"{{"number":{number},"filled":"{}"}}"#, "x".repeat(bytes)).into_bytes()
        };
        let pages = Pages { live: Arc::new(live), ..admin::pages(Program::new(0)) };
        Stage { server: Server::start(&settings, pages).unwrap(), made }
    }

    fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }

    fn watch(&self) -> Watcher {
        let mut stream = connect(&self.server);
        stream.write_all(b"GET /live/events HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        Watcher::new(stream)
    }
}

/// Reads a response of server-sent events, line by line.
struct Watcher {
    lines: BufReader<TcpStream>,
    head: String,
}

impl Watcher {
    fn new(stream: TcpStream) -> Watcher {
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).unwrap(), 0, "{head}");
        }
        Watcher { lines, head }
    }

    /// The number of the next snapshot; `None` at the end of the response. Lines with chunk sizes are skipped.
    fn next(&mut self) -> Option<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).unwrap() == 0 || line == "0\r\n" {
                return None;
            }
            if let Some(json) = line.strip_prefix("data: ") {
                return serde_json::from_str::<serde_json::Value>(json).unwrap()["number"].as_u64();
            }
        }
    }
}

#[test]
fn snapshots_come_once_per_second_and_are_shared() {
    let stage = Stage::new(10);
    let began = Instant::now();
    let mut watchers: Vec<Watcher> = (0..3).map(|_| stage.watch()).collect();
    let reported: Vec<Vec<u64>> =
        watchers.iter_mut().map(|watcher| (0..3).map(|_| watcher.next().unwrap()).collect()).collect();
    assert_eq!(reported, [[1, 2, 3]; 3]);
    let seconds = began.elapsed().as_secs() as usize;
    assert!(seconds >= 1 && stage.made() <= seconds + 2, "{} in {seconds} s", stage.made());
    let head = &watchers[0].head;
    for part in ["HTTP/1.1 200", "content-type: text/event-stream\r\n", "cache-control: no-store\r\n"] {
        assert!(head.contains(part), "{head}");
    }
}

#[test]
fn snapshot_is_cached_for_a_second() {
    let stage = Stage::new(10);
    let began = Instant::now();
    for _ in 0..20 {
        let response = ask(&stage.server, "GET", "/live/snapshot");
        assert_eq!(status(&response), 200);
        assert!(
            response.contains("content-type: application/json\r\n") && body(&response).starts_with(r#"{"number":"#)
        );
    }
    assert!(stage.made() <= began.elapsed().as_secs() as usize + 1, "{}", stage.made());
}

#[test]
fn no_snapshots_are_made_without_watchers() {
    let stage = Stage::new(10);
    assert_eq!(status(&ask(&stage.server, "GET", "/live")), 200);
    assert_eq!(stage.made(), 0);
    let mut watcher = stage.watch();
    assert_eq!((watcher.next(), watcher.next()), (Some(1), Some(2)));
    drop(watcher);
    // The server may notice the disconnect only a second later. Probes work in the meantime.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(3500) {
        assert_eq!(status(&ask(&stage.server, "GET", "/livez")), 200);
    }
    assert!(stage.made() <= 4, "{}", stage.made());
    // A new watcher receives a snapshot immediately.
    assert!(stage.watch().next().is_some());
}

#[test]
fn watcher_over_the_limit_is_refused_until_another_leaves() {
    let stage = Stage::new(10);
    let mut watchers: Vec<Watcher> = (0..MAX_WATCHERS).map(|_| stage.watch()).collect();
    assert!(watchers.iter_mut().all(|watcher| watcher.next().is_some()));
    let refused = ask(&stage.server, "GET", "/live/events");
    assert_eq!(status(&refused), 503);
    assert!(refused.contains("retry-after: ") && body(&refused).contains("/live/snapshot"), "{refused}");
    assert_eq!(status(&ask(&stage.server, "GET", "/live/snapshot")), 200, "snapshots are still served");
    watchers.pop();
    while stage.watch().head.starts_with("HTTP/1.1 503") {}
}

#[test]
fn head_request_does_not_count_as_watcher() {
    let stage = Stage::new(10);
    for _ in 0..2 * MAX_WATCHERS {
        let response = ask(&stage.server, "HEAD", "/live/events");
        assert!(status(&response) == 200 && response.contains("text/event-stream"), "{response}");
    }
}

/// Uses snapshots larger than any socket buffer.
#[test]
fn slow_watcher_misses_snapshots_and_delays_no_other() {
    let stage = Stage::new(8 << 20);
    let mut slow = stage.watch();
    let mut fast = stage.watch();
    let reported: Vec<u64> = (0..5).map(|_| fast.next().unwrap()).collect();
    assert!(reported.windows(2).all(|listener| listener[1] == listener[0] + 1), "{reported:?}");
    assert_eq!(status(&ask(&stage.server, "GET", "/livez")), 200);
    // Snapshots that the slow watcher missed are not sent later.
    let late: Vec<u64> = (0..4).map(|_| slow.next().unwrap()).collect();
    assert!(late.windows(2).all(|listener| listener[1] > listener[0]), "{late:?}");
    assert!(late.windows(2).any(|listener| listener[1] > listener[0] + 1), "{late:?}");
}

#[test]
fn event_stream_outlives_the_header_timeout() {
    let stage = Stage::with(10, Settings { header_timeout: Duration::from_millis(300), ..admin::settings() });
    let mut watcher = stage.watch();
    let reported: Vec<u64> = (0..3).map(|_| watcher.next().unwrap()).collect();
    assert_eq!(reported, [1, 2, 3]);
}

#[test]
fn event_stream_ends_with_the_server() {
    let stage = Stage::new(10);
    let mut watcher = stage.watch();
    assert_eq!(watcher.next(), Some(1));
    stage.server.stop();
    // The response ends properly, with the last chunk.
    while watcher.next().is_some() {}
    let mut rest = String::new();
    watcher.lines.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "\r\n");
}

#[test]
fn failing_snapshot_is_an_error_and_the_server_continues() {
    let made = AtomicUsize::new(0);
    let live = move || match made.fetch_add(1, Ordering::SeqCst) {
        0 => panic!("injected"),
        number => format!(r#"{{"number":{number}}}"#).into_bytes(),
    };
    let pages = Pages { live: Arc::new(live), ..admin::pages(Program::new(0)) };
    let server = Server::start(&admin::settings(), pages).unwrap();
    assert_eq!(status(&ask(&server, "GET", "/live/snapshot")), 500);
    assert_eq!(status(&ask(&server, "GET", "/live/snapshot")), 200);
}

#[test]
fn page_has_no_external_assets_and_only_its_own_script() {
    let stage = Stage::new(10);
    let response = ask(&stage.server, "GET", "/live");
    let (head, page) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: text/html; charset=utf-8\r\n"), "{head}");
    let between = |from: &str, to: &str| page.split_once(from).unwrap().1.split_once(to).unwrap().0;
    for (what, text) in [("script", between("<script>", "</script>")), ("style", between("<style>", "</style>"))] {
        let hash = BASE64_STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()));
        assert!(head.contains(&format!("{what}-src 'sha256-{hash}'")), "{head}");
    }
    assert!(head.contains("default-src 'none'") && head.contains("connect-src 'self'"), "{head}");
    // XML namespace names are URLs, but browsers do not request them.
    let own = page.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "//cdn", " src=", "@import", "url("] {
        assert!(!own.contains(outside), "{outside}");
    }
    // Model names come from clients, so the page must not insert text as markup.
    for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
        assert!(!page.contains(markup), "{markup}");
    }
    assert!(!page.contains("/*STYLE*/") && !page.contains("/*SCRIPT*/"), "every placeholder must be replaced");
}
