//! Every recording of an engine's own routes: counts against the engine's counters, times and tokens per event against a
//! naive reading, queue times against the engine's durations, and the same at every split.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokometer::measure::{Outcome, Record};
use tokometer::observe::Settings;
use tokometer::replay::{Recording, replay};

use super::{input, only, output};
use crate::truth::captures;

const PATHS: [&str; 5] = ["/generate", "/completion", "/infill", "/api/chat", "/api/generate"];

/// Each recording, its name and what is known of it.
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

fn record(recording: &Recording) -> Record {
    only(&replay(recording, &Settings::default())).clone()
}

#[test]
fn counts_are_the_engines_own_wherever_it_tells_them() {
    for (name, recording, meta) in cases() {
        let record = record(&recording);
        let truth = &meta["truth"];
        let Some(tokens) = truth["completion_tokens"].as_u64() else {
            assert!(record.outcome != Outcome::Ok || output(&record).is_none(), "{name}: {record:?}");
            continue;
        };
        if name.contains("ollama-chat-stream") {
            // SGLang's copy of the API has no counts.
            assert!(output(&record).is_some_and(|(n, source)| n <= tokens && source == "deltas_lower_bound"), "{name}");
            continue;
        }
        assert_eq!(output(&record), Some((tokens, "native_counter")), "{name}");
        assert_eq!(input(&record), truth["prompt_tokens"].as_u64(), "{name}");
        assert_eq!(record.outcome, Outcome::Ok, "{name}");
    }
}

#[test]
fn queue_times_are_the_engines_own() {
    let mut told = 0;
    for (name, recording, meta) in cases() {
        let record = record(&recording);
        let queue = record.queue.map(|queue| (queue.value.as_nanos() as i128, queue.source.as_str()));
        if let Some(remainder) = meta["ollama_ns"]["remainder"].as_i64() {
            let (nanos, source) = queue.unwrap();
            assert!((nanos - i128::from(remainder)).abs() <= 1, "{name}: {nanos}, not {remainder}");
            assert_eq!(source, "remainder", "{name}");
            told += 1;
        } else if name.contains("generate") && name.contains("sglang") {
            assert_eq!(queue.map(|(_, source)| source), Some("in_band"), "{name}");
            told += 1;
        }
    }
    assert!(told >= 15, "{told}");
}

/// What a person with a pencil reads out of the same reads.
#[derive(Debug, Default, PartialEq)]
struct Naive {
    headers: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Option<Duration>,
    chunks: u64,
    first_tokens: Option<u64>,
}

fn naive(recording: &Recording) -> Option<Naive> {
    let mut naive = Naive::default();
    let (mut all, mut seen, mut counted) = (Vec::new(), 0, 0);
    for (at, bytes) in &recording.reads {
        all.extend_from_slice(bytes);
        let text = String::from_utf8_lossy(&all).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        naive.headers.get_or_insert(*at);
        if !head.contains("event-stream") && !head.contains("ndjson") {
            return None;
        }
        // Sizes of chunks stand on lines of their own; no event has a line feed inside.
        let lines: Vec<&str> = body.split_inclusive('\n').filter(|line| line.ends_with('\n')).collect();
        for line in lines.iter().skip(seen) {
            let line = line.trim().strip_prefix("data: ").unwrap_or(line.trim());
            let Ok(event @ Value::Object(_)) = serde_json::from_str::<Value>(line) else { continue };
            let counter =
                event["meta_info"]["completion_tokens"].as_u64().or_else(|| event["tokens_predicted"].as_u64());
            let brought = match counter {
                Some(counter) => counter - std::mem::replace(&mut counted, counter),
                None => {
                    let full = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
                    let message = &event["message"];
                    let texts = [&message["content"], &message["thinking"], &event["response"], &event["thinking"]];
                    u64::from(texts.into_iter().any(full) || message["tool_calls"].is_array())
                }
            };
            if brought > 0 {
                naive.chunks += 1;
                naive.last_token = Some(*at);
                if naive.first_token.is_none() {
                    naive.first_token = Some(*at);
                    naive.first_tokens = counter;
                }
            }
        }
        seen = lines.len();
    }
    Some(naive)
}

#[test]
fn times_and_tokens_per_event_equal_a_naive_reading() {
    let mut compared = 0;
    for (name, recording, _) in cases() {
        let (Some(naive), record) = (naive(&recording), record(&recording)) else { continue };
        let ours = Naive {
            headers: record.headers,
            first_token: record.first_token,
            last_token: record.last_token,
            chunks: record.chunks,
            first_tokens: record.first_tokens,
        };
        assert_eq!(ours, naive, "{name}");
        compared += 1;
    }
    assert!(compared >= 15, "{compared}");
}

#[test]
fn every_split_gives_the_same_record() {
    let mut random = fastrand::Rng::with_seed(7);
    let epoch = Instant::now();
    for (name, recording, _) in cases() {
        let line = |recording: &Recording| format!("{:?}", Record { started: epoch, ..record(recording) });
        let whole = line(&recording);
        let cut = |length: &mut dyn FnMut() -> usize| {
            let mut reads = Vec::new();
            for (at, bytes) in &recording.reads {
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(length().min(rest.len()));
                    reads.push((*at, piece.to_vec()));
                    rest = after;
                }
            }
            Recording { reads, ..recording.clone() }
        };
        assert_eq!(line(&cut(&mut || 1)), whole, "{name} byte by byte");
        for longest in [3, 40, 400, 4000] {
            assert_eq!(line(&cut(&mut || random.usize(1..=longest))), whole, "{name} in pieces of up to {longest}");
        }
    }
}
