//! `tokometer top`: exact screens of every size, and the output without a terminal.
//!
//! The screens are in `tests/fixtures/top`; `UPDATE=1 cargo test --test it top::` rewrites them for review.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io, thread};

use crate::listener::reserved;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::widgets::Widget;
use tokometer::top::{Display, Glyphs, Screen, Settings, Sort, View, run};
use tokometer_telemetry::live::snapshot::{
    Distribution, Engine, InFlight, Listener, Objective, Rates, Recent, Second, Slow, Snapshot, Stream,
};

/// A snapshot with this many streams. Later streams are younger, and have fewer tokens and lower rates.
fn busy(streams: u64) -> Snapshot {
    let stream = |number: u64| {
        let waits = number % 5 == 4;
        Stream {
            id: format!("{number}-1"),
            route: "chat_completions".into(),
            model: Some((number % 2) as usize),
            doing: if waits {
                "prefill"
            } else if number % 7 == 6 {
                "blocked"
            } else {
                "decode"
            }
            .into(),
            age_ms: 9000u64.saturating_sub(number * 350).max(40),
            waited_ms: Some(if waits { 900u64.saturating_sub(number * 10) } else { 21 }),
            ttft_ms: (!waits).then_some(180 + number),
            tokens: if waits { 0 } else { 400u64.saturating_sub(number * 17).max(1) },
            max_tokens: (number % 3 != 2).then_some(512),
            tokens_per_second: (!waits).then_some(48.0 - number as f64 / 100.0),
            ..Stream::default()
        }
    };
    let all: Vec<Stream> = (0..streams).map(stream).collect();
    let waiting = all.iter().filter(|stream| stream.tokens == 0).count() as u64;
    let edge = |place: i32| (f64::from(place) / 4.0).exp2();
    let buckets = |list: &[(i32, u64)]| -> Vec<(f64, Option<f64>, u64)> {
        list.iter().map(|(place, count)| (edge(*place), Some(edge(place + 1)), *count)).collect()
    };
    let second =
        |number: u64| Second { seconds: 1.0, tokens: 400 + 35 * (number % 13), ok: 3, aborted: 0, failed: number % 2 };
    Snapshot {
        version: "1.2.3".to_owned(),
        made_unix_ms: 1_795_262_584_000,
        uptime_seconds: 7384.0,
        draining: false,
        listeners: vec![Listener {
            name: "vllm".to_owned(),
            engine: Some("vllm".to_owned()),
            state: if streams == 0 { "idle" } else { "working" }.to_owned(),
            listening: "open".to_owned(),
            silent_seconds: (streams > 0).then_some(0.02),
            bound_seconds: (streams > 0).then_some(30.0),
            own: Some(Engine {
                age_seconds: Some(1.5),
                running: Some((streams - waiting) as f64),
                waiting: Some(waiting as f64),
                kv_usage: Some(0.634),
                cache_ratio: Some(0.41),
                preemptions: Some(2.0),
                queue_seconds: Some(0.12),
            }),
        }],
        models: vec!["meta-llama/Llama-3.1-8B-Instruct".to_owned(), "sim".to_owned()],
        in_flight: InFlight {
            requests: streams,
            waiting,
            unstreamed: 0,
            streaming: streams - waiting,
            blocked: streams.min(1),
            stalled: 0,
            oldest_seconds: (streams > 0).then_some(9.0),
            longest_wait_seconds: (waiting > 0).then_some(0.86),
            left_out: 0,
            streams: all,
        },
        rates: Rates {
            tokens_per_second: 1203.6,
            requests_per_second: 3.12,
            failed_per_second: [("truncated".to_owned(), 0.1), ("rejected_busy".to_owned(), 0.2)].into(),
            history: (0..60).map(second).collect(),
        },
        ttft_seconds: Distribution {
            window_seconds: 60.0,
            count: 181,
            at_least: 0,
            p10: Some(0.17),
            p50: Some(0.21),
            p90: Some(0.48),
            p99: Some(1.2),
            buckets: buckets(&[(-11, 20), (-10, 61), (-9, 52), (-8, 31), (-6, 12), (-4, 4), (0, 1)]),
        },
        decode_tokens_per_second: Distribution {
            window_seconds: 60.0,
            count: 178,
            at_least: 3,
            p10: Some(31.0),
            p50: Some(47.6),
            p90: Some(50.0),
            p99: Some(51.0),
            buckets: buckets(&[(18, 2), (19, 9), (20, 11), (21, 60), (22, 96)]),
        },
        objectives: vec![
            objective("availability", 0.999, 1800, 0, Some(0.0), "ok"),
            objective("ttft", 0.95, 1500, 300, Some(3.33), "over"),
            objective("decode_rate", 0.99, 900, 900, Some(50.0), "burning"),
            objective("stall", 0.99, 0, 0, None, "idle"),
        ],
        slowest: vec![
            Slow {
                id: "7-3".to_owned(),
                route: "chat_completions".into(),
                model: Some("sim".to_owned()),
                outcome: "truncated".to_owned(),
                ended_seconds_ago: 42.0,
                longest_wait_ms: 2310.0,
                queue_ms: Some(900.0),
                headers_ms: Some(3.0),
                ttft_ms: Some(2310.0),
                last_token_ms: Some(7800.0),
                duration_ms: 8000.0,
                longest_gap_ms: Some(1500.0),
                blocked_ms: 12.0,
                input_tokens: Some(900),
                output_tokens: Some(212),
                points: vec![(2310.0, 1, 0.0), (4000.0, 80, 30.0), (5500.0, 1, 1500.0), (7800.0, 130, 40.0)],
                ..Slow::default()
            },
            Slow {
                outcome: "client_abort_before_first_token".to_owned(),
                longest_wait_ms: 2100.0,
                duration_ms: 2100.0,
                ..Slow::default()
            },
        ],
        ..Snapshot::default()
    }
}

fn objective(name: &str, target: f64, good: u64, bad: u64, burn_rate: Option<f64>, state: &str) -> Objective {
    let reasons = if bad > 0 { [("too_slow".to_owned(), bad)].into() } else { Default::default() };
    Objective {
        name: name.to_owned(),
        kind: name.to_owned(),
        target,
        recent: Recent { window_seconds: 300.0, good, bad, reasons, burn_rate },
        state: state.to_owned(),
        ..Objective::default()
    }
}

fn screen(snapshot: Option<&Snapshot>) -> Screen<'_> {
    let (admin, view, glyphs) = ("127.0.0.1:9464", View::default(), Glyphs::BLOCKS);
    Screen { snapshot, admin, error: None, view, glyphs, colour: true }
}

fn draw(screen: &Screen<'_>, width: u16, height: u16) -> Buffer {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    screen.render(area, &mut buffer);
    buffer
}

/// The lines of a screen without trailing spaces.
fn text(buffer: &Buffer) -> String {
    let rows = buffer.content.chunks(buffer.area.width.max(1).into());
    let lines = rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Compares a screen with its fixture.
fn assert_kept(name: &str, buffer: &Buffer) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/top").join(format!("{name}.txt"));
    let shown = text(buffer);
    if std::env::vars_os().any(|(name, _)| name == "UPDATE") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &shown).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(shown, kept, "{name} differs from its fixture:\n{shown}");
}

#[test]
fn screens_of_every_size_match_their_fixtures() {
    for (width, height) in [(80, 24), (40, 10), (200, 60)] {
        for streams in [0, 9, 2000] {
            let snapshot = busy(streams);
            assert_kept(&format!("{width}x{height}-{streams}"), &draw(&screen(Some(&snapshot)), width, height));
        }
    }
}

#[test]
fn ascii_screens_are_ascii() {
    let snapshot = busy(9);
    let shown = draw(&Screen { glyphs: Glyphs::ASCII, ..screen(Some(&snapshot)) }, 100, 30);
    assert!(text(&shown).is_ascii(), "{}", text(&shown));
    assert_kept("100x30-ascii", &shown);
}

#[test]
fn wedged_engine_and_lost_server_are_shown() {
    let mut snapshot = busy(9);
    let listener = &mut snapshot.listeners[0];
    (listener.state, listener.silent_seconds, listener.own) = ("wedged".to_owned(), Some(31.0), None);
    snapshot.draining = true;
    let error = Some("the admin server at 127.0.0.1:9464 cannot be reached: Connection refused");
    let view = View { paused: true, sort: Sort::Wait, offset: 2, slow: 1 };
    assert_kept("80x24-wedged", &draw(&Screen { error, view, ..screen(Some(&snapshot)) }, 80, 24));
    assert_kept("40x10-wedged", &draw(&screen(Some(&snapshot)), 40, 10));
    assert_kept("80x24-nothing", &draw(&screen(None), 80, 24));
}

#[test]
fn any_size_works_and_nothing_exceeds_the_edge() {
    let (full, empty) = (busy(2000), Snapshot::default());
    for width in (0..=10).chain([40, 79, 80, 81, 111, 500]) {
        for height in (0..=12).chain([24, 33, 34, 90]) {
            for snapshot in [Some(&full), Some(&empty), None] {
                let shown = text(&draw(&screen(snapshot), width, height));
                let lines: Vec<&str> = shown.lines().collect();
                assert_eq!(lines.len(), if width == 0 { 0 } else { height.into() }, "{width}x{height}");
                assert!(lines.iter().all(|line| line.chars().count() <= width.into()), "{width}x{height}");
            }
        }
    }
}

#[test]
fn scrolling_and_sorting_show_other_streams() {
    let snapshot = busy(2000);
    let shown = |view: View| text(&draw(&Screen { view, ..screen(Some(&snapshot)) }, 100, 24));
    assert!(shown(View::default()).contains("of 2,000, by age"));
    let view = View { offset: 1_000_000, ..View::default() };
    assert!(shown(view).contains("-2000 of 2,000"), "{}", shown(view));
    let slowest = shown(View { sort: Sort::Rate, ..View::default() });
    // The slowest of 2,000 streams generates 48 - 19.99 tokens per second, shown as 28.
    assert!(slowest.contains(" 28 ") && slowest.contains("by slowest"), "{slowest}");
}

#[test]
fn colours_are_written_only_when_enabled() {
    let snapshot = busy(9);
    let with = draw(&screen(Some(&snapshot)), 80, 24);
    assert!(with.content.iter().any(|cell| cell.fg == Color::Green));
    let without = draw(&Screen { colour: false, ..screen(Some(&snapshot)) }, 80, 24);
    assert!(without.content.iter().all(|cell| (cell.fg, cell.bg) == (Color::Reset, Color::Reset)), "no colour at all");
    assert_eq!(text(&with), text(&without));
}

/// An admin server that sends these responses in order, each on a new connection.
fn server(responses: Vec<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for response in responses {
            let Ok((mut client, _)) = listener.accept() else { return };
            let mut request = Vec::new();
            let mut buffer = [0; 1024];
            while !request.ends_with(b"\r\n\r\n") {
                match client.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(length) => request.extend_from_slice(&buffer[..length]),
                }
            }
            assert!(request.starts_with(b"GET /live/snapshot HTTP/1.1\r\n"));
            client.write_all(response.as_bytes()).ok();
        }
    });
    address
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn settings(admin: SocketAddr, once: bool) -> Settings {
    let display = Display { colour: false, ascii: true, plain: true };
    Settings { admin: admin.into(), once, interval: Duration::from_millis(100), end: None, hangup_ends: true, display }
}

#[test]
fn single_snapshot_is_printed_without_escape_codes() {
    let body = serde_json::to_string(&busy(3)).unwrap();
    let mut out = Vec::new();
    run(&settings(server(vec![response("200 OK", &body)]), true), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for word in
        ["tokometer top", "12:03:04 UTC", "in flight", "decode_rate BURNING 50x", "~3.1-8B-Instruct", "slowest 1/2"]
    {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    assert!(!text.contains('\x1b') && !text.contains("q quit") && !text.ends_with("\n\n"), "{text}");
}

#[test]
fn missing_feed_error_explains_what_to_do() {
    let free = reserved();
    for (admin, words) in [
        (free, ["cannot be reached", "--admin"]),
        (server(vec![response("404 Not Found", "{}")]), ["status 404", "this tokometer version"]),
        (server(vec![response("200 OK", "{}")]), ["invalid snapshot", "missing field"]),
    ] {
        let error = run(&settings(admin, true), &mut Vec::new()).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

/// Forwards each line, and fails after the third.
struct Lines(mpsc::Sender<String>, u32);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.1 += 1;
        if self.1 == 3 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

#[test]
fn without_terminal_prints_lines_until_the_reader_closes() {
    let body = serde_json::to_string(&busy(3)).unwrap();
    let good = || response("200 OK", &body);
    let (sender, receiver) = mpsc::channel();
    // The second response is an error.
    let admin = server(vec![good(), response("503 Service Unavailable", ""), good()]);
    run(&settings(admin, false), &mut Lines(sender, 0)).unwrap();
    let text: String = receiver.iter().collect();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let words = "12:03:04 UTC  in flight 3 (0 waiting)  tok/s 1,204  req/s 3.1  TTFT p50 210 ms p99 1.20 s  decode p50 48  \
                 failed/s 0.30  decode_rate BURNING 50x  ttft OVER 3.3x";
    assert_eq!((lines[0], lines[2]), (words, words));
    assert!(lines[1].contains("status 503"), "{text}");
}
