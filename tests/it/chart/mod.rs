//! The Helm chart: what of it is made from elsewhere, and that it speaks of this version. What it renders is looked at by
//! `tests/live/chart.py`, with the real engine.

mod files;
mod readme;

use std::path::Path;
use std::path::PathBuf;

/// Place in this repository.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Text of a committed file.
fn text(name: &str) -> String {
    std::fs::read_to_string(place(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
