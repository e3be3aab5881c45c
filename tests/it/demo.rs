//! The demo without a terminal.

use std::time::Duration;

use tokometer::app::{DemoSettings, demo};
use tokometer::top::Display;

#[test]
fn short_demo_records_every_request_and_exits() {
    let settings = DemoSettings {
        duration: Some(Duration::from_secs(3)),
        streams: 6,
        display: Display { colour: false, ascii: true, plain: true },
        admin: ([127, 0, 0, 1], 0).into(),
    };
    let mut out = Vec::new();
    // `demo` returns an error if the record and request counts differ.
    demo(&settings, &mut out).expect("the demo succeeds");
    let text = String::from_utf8(out).expect("plain text");
    println!("{text}");
    for word in ["/metrics", "/live", "tok/s", "TTFT p50", "ok ", "next: tokometer run"] {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    assert!(!text.contains('\x1b'), "no terminal codes in plain lines");
}
