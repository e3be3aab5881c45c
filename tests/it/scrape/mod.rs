//! The engine's own metrics: from a page to the exported values.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod configured;
mod counts;
mod docs;
mod engines;
mod exported;
mod exposition;
mod moments;
mod pages;
mod program;
pub(crate) mod reading;
mod servers;

use tokometer_engine::scrape::exposition::Parser;
use tokometer_engine::scrape::{Page, State, Tracker};

/// Parses a page from its text.
fn page(text: &str) -> Page {
    let (mut page, mut parser) = (Page::default(), Parser::default());
    parser.feed(text.as_bytes(), &mut |sample| page.take(sample));
    parser.finish(&mut |sample| page.take(sample));
    page
}

/// The same page with the value 0 in every sample.
fn zeros(text: &str) -> String {
    let zero = |line: &str| match line.rsplit_once(' ') {
        Some((series, _)) if !line.starts_with('#') => format!("{series} 0\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(zero).collect()
}

/// The state after a page of zeros followed by this page, so that counts equal the values on the page.
fn state(text: &str) -> State {
    let mut tracker = Tracker::default();
    tracker.take(&page(&zeros(text)));
    tracker.take(&page(text))
}
