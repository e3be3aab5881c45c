//! The demo, as somebody without a terminal sees it.

use std::time::Duration;

use tokometer::app::{DemoSettings, demo};

#[test]
fn a_short_demo_counts_every_exchange_and_ends_by_itself() {
    let settings = DemoSettings {
        duration: Some(Duration::from_secs(3)),
        streams: 6,
        plain: true,
        admin: ([127, 0, 0, 1], 0).into(),
    };
    let mut out = Vec::new();
    // It fails by itself when the relay's records and the client's requests differ in number.
    demo(&settings, &mut out).expect("every part starts");
    let text = String::from_utf8(out).expect("plain text");
    println!("{text}");
    for word in ["/metrics", "/live", "tok/s", "TTFT p50", "ok ", "next: tokometer run"] {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    assert!(!text.contains('\x1b'), "no terminal codes in plain lines");
}
