//! The Helm chart: its generated parts and its version. `tests/live/chart.py` checks the rendered output with real
//! Helm.

mod files;
mod readme;

use std::path::{Path, PathBuf};

/// A path in this repository.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Text of a committed file.
fn text(name: &str) -> String {
    std::fs::read_to_string(place(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}
