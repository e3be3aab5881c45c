//! Replays each recording without state from earlier ones: its engine must be detected correctly or not at all.

use std::collections::BTreeMap;

use tokometer::replay::{Recording, replay};
use tokometer_decode::Engine;
use tokometer_observe::measure::Record;
use tokometer_observe::observer::{ConfiguredEngine, Settings};

use crate::truth::captures;

/// Folder of recordings, its engine, and the minimum share of status-200 responses whose engine must be detected.
const ENGINES: [(&str, &str, f64); 5] = [
    ("llamacpp-0.5.0-dev", "llama_cpp", 1.0),
    ("ollama-0.17.4", "ollama", 0.8),
    ("sglang-0.5.23", "sglang", 0.8),
    ("vllm-0.32.0", "vllm", 1.0),
    ("vllm-0.32.0-rustfe", "vllm", 0.9),
];

fn record_of(recording: &Recording, settings: &Settings) -> Option<Record> {
    replay(recording, settings).records.into_iter().next()
}

#[test]
fn engine_is_detected_correctly_or_not_at_all() {
    for (folder, engine, least) in ENGINES {
        let mut table: BTreeMap<(&str, bool, &str), u32> = BTreeMap::new();
        let (mut named, mut responses) = (0, 0);
        for path in Recording::find(&captures().join(folder)).expect("recordings") {
            let recording = Recording::read(&path).expect("a recording");
            let settings = Settings { probes: true, ..Settings::default() };
            let Some(record) = record_of(&recording, &settings) else { continue };
            let seen = record.labels.engine;
            assert!(seen.is_none_or(|seen| seen == engine), "{}: {seen:?}", path.display());
            let ok = record.response.status == Some(200);
            *table.entry((record.labels.route.name(), ok, seen.unwrap_or("-"))).or_default() += 1;
            if ok && record.labels.route.is_read() {
                responses += 1;
                named += u32::from(seen.is_some());
            }
        }
        for ((route, ok, seen), count) in table {
            println!("{folder:<20} {route:<18} {:<6} {seen:<12} {count}", if ok { "200" } else { "other" });
        }
        assert!(f64::from(named) >= least * f64::from(responses), "{folder}: {named} of {responses}");
    }
}

#[test]
fn configured_engine_overrides_detection() {
    let path = captures().join("vllm-0.32.0/chat-stream-usage.jsonl");
    let recording = Recording::read(&path).expect("a recording");
    let settings = Settings { engine: ConfiguredEngine(Some(Engine::Triton)), ..Settings::default() };
    assert_eq!(record_of(&recording, &settings).expect("a record").labels.engine, Some("triton"));
}
