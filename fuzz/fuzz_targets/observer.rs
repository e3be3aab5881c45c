//! Connections from first to last byte: whatever happens on them, the observer records each request at most once and
//! decrements every gauge that it incremented. It makes the same calls to the sink, however the bytes that arrive at
//! one time are split into reads.
#![no_main]

use std::sync::Arc;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use tokometer_observe::observer::{Observers, Settings};
use tokometer_observe::input::{Connection, Observe, Observer};
use tokometer_fuzz::work::Work;

use tokometer_fuzz::observer::log::Log;
use tokometer_fuzz::observer::script::{Step, bytewise, joined, steps};

/// Limits that inputs of usual length reach.
fn settings() -> Settings {
    Settings {
        head_bytes: 1024,
        max_open_requests: 3,
        path_prefixes: vec!["/engine1".to_owned()],
        ..Settings::default()
    }
}

/// The calls to the sink for these connections, the first of which is accepted at `begin`.
fn play(steps: &[Step], begin: Instant) -> Vec<String> {
    let bytes: Vec<u8> =
        steps.iter().flat_map(|step| if let Step::Seen(_, read) = step { &read[..] } else { &[] }).copied().collect();
    let uses_http2 = bytes.windows(4).any(|word| word == b"PRI " || word.starts_with(b"h2c")) || bytes.contains(&0);
    let log = Arc::new(Log::new(uses_http2));
    let observers = Observers::new(settings(), 1, Arc::clone(&log) as _);
    let mut at = begin;
    let mut id = 0;
    let mut accept = |at| {
        id += 1;
        let connection = Connection { id, peer: None, listener: 0, upstream: "127.0.0.1:8001".into(), accepted: at };
        observers.accepted(&connection).expect("far below the maximum number of observed connections")
    };
    let mut observer: Box<dyn Observer> = accept(at);
    let mut finished = Vec::new();
    for step in steps {
        match step {
            // The relay reports no bytes from a sender after the end of its stream.
            Step::Seen(direction, bytes) if !finished.contains(direction) => observer.seen(*direction, bytes, at),
            Step::Finished(direction) if !finished.contains(direction) => {
                finished.push(*direction);
                observer.finished(*direction, at);
            }
            Step::Seen(..) | Step::Finished(_) => {}
            Step::Blocked(direction, time) => {
                at += *time;
                observer.blocked(*direction, at - *time, at);
            }
            Step::Passed(time) => at += *time,
            Step::Ended(close) => {
                if let Some(close) = close {
                    observer.closed(*close, at);
                }
                drop(std::mem::replace(&mut observer, accept(at)));
                finished.clear();
                assert_eq!((observers.open(), observers.observed()), (0, 1), "after the end of a connection");
            }
        }
        assert!(!observer.idle() || observers.open() == 0, "idle with a pending request");
    }
    drop(observer);
    assert_eq!((observers.open(), observers.observed()), (0, 0), "after the end of the last connection");
    let budget = observers.budget();
    assert_eq!(budget.held(), 0, "after the end of the last connection");
    // Each connection may decode 32 KiB plus the budget added by its bytes, and each coding may exceed that by one
    // slice.
    let most = id as usize * 56 * 1024 + bytes.len() * settings().coding_ratio as usize;
    assert!(budget.decoded() <= most as u64, "{} bytes decoded of {}", budget.decoded(), bytes.len());
    log.lines()
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let steps = steps(input);
    let begin = Instant::now() + Duration::from_secs(1);
    let reported = play(&steps, begin);
    let (joined, bytewise) = (play(&joined(&steps), begin), play(&bytewise(&steps), begin));
    // The moment at which a connection exhausts its budget depends on the reads.
    if [&reported, &joined, &bytewise].into_iter().flatten().any(|line| line.ends_with(" Ratio")) {
        return;
    }
    assert_eq!(reported, joined, "joined reads");
    assert_eq!(reported, bytewise, "bytewise reads");
});
