//! Compares queue times with the engine's durations, for every recording of an engine's own routes. The module `truth`
//! covers the other values.

use serde_json::Value;
use tokometer::replay::{Recording, replay};
use tokometer_observe::observer::Settings;

use super::only;
use crate::truth::captures;

const PATHS: [&str; 5] = ["/generate", "/completion", "/infill", "/api/chat", "/api/generate"];

/// Each recording with its name and metadata.
fn cases() -> Vec<(String, Recording, Value)> {
    let mut cases = Vec::new();
    for path in Recording::find(&captures()).unwrap() {
        let meta: Value = serde_json::from_slice(&std::fs::read(path.with_extension("meta.json")).unwrap()).unwrap();
        if PATHS.contains(&meta["request"]["path"].as_str().unwrap()) {
            cases.push((path.display().to_string(), Recording::read(&path).unwrap(), meta));
        }
    }
    assert!(cases.len() >= 25, "only {} recordings", cases.len());
    cases
}

#[test]
fn queue_times_match_the_engine() {
    let mut reported = 0;
    for (name, recording, meta) in cases() {
        let record = only(&replay(&recording, &Settings::default())).clone();
        let queue = record.engine.queue.map(|queue| (queue.value.as_nanos() as i128, queue.source.as_str()));
        if let Some(remainder) = meta["ollama_ns"]["remainder"].as_i64() {
            let (nanos, source) = queue.unwrap();
            assert!((nanos - i128::from(remainder)).abs() <= 1, "{name}: {nanos}, not {remainder}");
            assert_eq!(source, "remainder", "{name}");
            reported += 1;
        } else if name.contains("generate") && name.contains("sglang") {
            assert_eq!(queue.map(|(_, source)| source), Some("in_band"), "{name}");
            reported += 1;
        }
    }
    assert!(reported >= 15, "{reported}");
}
