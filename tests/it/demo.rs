//! The demo without a terminal.

use std::process::Command;
use std::time::Duration;

use tokometer::app::{DemoSettings, demo};
use tokometer::top::Display;
use tokometer_telemetry::live::snapshot::Snapshot;

use crate::pod_end::{Process, ask, until};

#[test]
fn short_demo_records_every_request_and_exits() {
    let settings = DemoSettings {
        duration: Some(Duration::from_secs(3)),
        streams: 6,
        display: Display { colour: false, ascii: true, plain: true },
        admin: Some(([127, 0, 0, 1], 0).into()),
    };
    let mut out = Vec::new();
    // `demo` returns an error if the record and request counts differ.
    demo(&settings, &mut out).expect("the demo succeeds");
    let text = String::from_utf8(out).expect("plain text");
    println!("{text}");
    for word in ["/metrics", "/live", "tok/s", "TTFT p50", "ok ", "tokometer run --listen"] {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    assert!(!text.contains('\x1b'), "no terminal codes in plain lines");
}

fn started(arguments: &[&str]) -> (Process, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tokometer"));
    command.arg("demo").args(arguments);
    Process::of(command, |text| text.contains("/v1/chat/completions").then(|| text.to_owned()))
}

#[test]
fn engine_of_the_demo_reports_every_value_of_the_live_page() {
    let (_demo, text) = started(&["--for", "2m", "--admin", "127.0.0.1:0"]);
    let admin = port(&text).expect("the address is printed");
    until("every value is known", || {
        let response = ask(admin, "/live/snapshot").unwrap_or_default();
        let Some((_, body)) = response.split_once("\r\n\r\n") else { return false };
        let snapshot: Snapshot = serde_json::from_str(body).expect("a snapshot");
        let Some(own) = &snapshot.listeners[0].own else { return false };
        let values = [own.running, own.waiting, own.kv_usage, own.cache_ratio, own.preemptions, own.queue_seconds];
        values.iter().all(Option::is_some) && own.kv_usage > Some(0.05) && own.cache_ratio > Some(0.2)
    });
}

#[test]
fn busy_port_of_the_demo_is_an_error_only_if_it_was_chosen() {
    let (_first, text) = started(&["--for", "2m", "--admin", "127.0.0.1:0"]);
    let taken = format!("127.0.0.1:{}", port(&text).expect("the address is printed"));
    let second = Command::new(env!("CARGO_BIN_EXE_tokometer")).args(["demo", "--admin", &taken]).output();
    let second = second.expect("the program starts");
    let error = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.code() == Some(2) && error.contains(&taken) && error.contains("--admin"), "{error}");
}

/// The port of the live page.
fn port(text: &str) -> Option<u16> {
    let page = text.split_whitespace().find(|word| word.ends_with("/live"))?;
    page.strip_suffix("/live")?.rsplit(':').next()?.parse().ok()
}
