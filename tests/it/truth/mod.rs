//! Real recordings through observe and measure, against the engines' own counters and a naive reading of the same bytes.

mod counts;
mod naive;
mod splits;
mod times;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokometer::observe::Settings;
use tokometer::replay::{Line, Recording, Replayed, replay};

/// Where the recordings lie.
pub(crate) fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captures")
}

/// A recording and what is known of it.
struct Case {
    engine: String,
    name: String,
    meta: Value,
    recording: Recording,
}

/// Every recording of the two routes that are read.
fn cases() -> Vec<Case> {
    let paths = Recording::find(&captures()).expect("recordings are there");
    let cases: Vec<Case> = paths
        .iter()
        .map(|path| {
            let meta = fs::read_to_string(path.with_extension("meta.json")).expect("meta is readable");
            let meta: Value = serde_json::from_str(&meta).expect("meta is JSON");
            let text = |key: &str| meta[key].as_str().unwrap_or_default().to_owned();
            Case {
                engine: text("engine"),
                name: text("case"),
                recording: Recording::read(path).expect("a recording"),
                meta,
            }
        })
        .filter(|case| {
            let path = case.meta["request"]["path"].as_str().unwrap_or_default();
            path.ends_with("/v1/chat/completions") || path.ends_with("/v1/completions")
        })
        .collect();
    assert!(cases.len() > 150, "only {} recordings found", cases.len());
    cases
}

fn run(recording: &Recording) -> Replayed {
    replay(recording, &Settings::default())
}

fn line(case: &Case) -> Option<Line> {
    let replayed = run(&case.recording);
    assert!(replayed.detached.is_empty(), "{} {}: detached {:?}", case.engine, case.name, replayed.detached);
    assert!(replayed.records.len() <= 1, "{} {}: one exchange, one record", case.engine, case.name);
    replayed.records.first().map(Line::from)
}
