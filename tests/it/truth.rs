//! Real recordings through observe and measure, against the engines' own counters and a naive reading of the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

#[test]
fn counts_equal_the_engines_own_counters_or_are_marked_as_lower_bounds() {
    let mut wrong = Vec::new();
    let mut exact = BTreeMap::new();
    println!(
        "{:<22} {:<46} {:<20} {:>7} {:>7} {:>7} {:>7}",
        "engine", "case", "source", "counted", "true", "prompt", "true"
    );
    for case in cases() {
        let truth = &case.meta["truth"];
        let (Some(output), Some(line)) = (truth["completion_tokens"].as_u64(), line(&case)) else { continue };
        let answered = case.recording.reads.iter().any(|(_, bytes)| !bytes.is_empty());
        let n = case.meta["request"]["body"]["n"].as_u64().unwrap_or(1);
        // With n over 1 the engines' counters hold the prompt once per sequence, and while traced not at all.
        let usage_prompt = case.meta["usage_seen"]["prompt_tokens"].as_u64();
        let input = usage_prompt.or(truth["prompt_tokens"].as_u64().filter(|p| *p > 0 && n == 1));
        println!(
            "{:<22} {:<46} {:<20} {:>7} {:>7} {:>7} {:>7}",
            case.engine,
            case.name,
            line.output_tokens_source.unwrap_or("-"),
            line.output_tokens.map_or("-".into(), |n| n.to_string()),
            output,
            line.input_tokens.map_or("-".into(), |n| n.to_string()),
            input.map_or("-".into(), |n| n.to_string()),
        );
        let place = format!("{} {}: {line:?}", case.engine, case.name);
        match (line.output_tokens, line.output_tokens_source) {
            (Some(counted), Some("deltas_lower_bound")) if counted <= output => {}
            (Some(counted), Some(source)) if source != "deltas_lower_bound" && counted == output => {
                *exact.entry(source).or_insert(0) += 1;
            }
            (None, None) if !answered => {}
            _ => wrong.push(format!("output, true {output}: {place}")),
        }
        if line.input_tokens.is_some() && line.input_tokens != input {
            wrong.push(format!("input, true {input:?}: {place}"));
        }
        // Where the stream carried usage, nothing less will do.
        let usage = &case.meta["usage_seen"];
        let complete = case.meta["complete"].as_bool() == Some(true);
        let whole = usage["completion_tokens"].as_u64() == Some(output) && complete;
        if whole && line.output_tokens_source != Some("usage") {
            wrong.push(format!("usage was there: {place}"));
        }
    }
    println!("exact by source: {exact:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(exact.get("usage").is_some_and(|n| *n > 100) && exact.contains_key("native_counter"), "{exact:?}");
}

/// What a person with a pencil reads out of the same reads.
#[derive(Debug, Default, PartialEq)]
struct Naive {
    headers: Option<Duration>,
    first_event: Option<Duration>,
    first_token: Option<Duration>,
    first_visible: Option<Duration>,
    last_token: Option<Duration>,
    chunks: u64,
    longest_gap: Option<Duration>,
    finishes: Vec<String>,
}

fn naive(case: &Case) -> Option<Naive> {
    let mut all = Vec::new();
    let mut naive = Naive::default();
    let (mut body, mut events) = (Vec::new(), 0);
    let mut last_of: BTreeMap<u64, Duration> = BTreeMap::new();
    for (at, bytes) in &case.recording.reads {
        all.extend_from_slice(bytes);
        let Some(end) = find(&all, b"\r\n\r\n") else { continue };
        naive.headers.get_or_insert(*at);
        let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
        if !head.contains("text/event-stream") || !head.contains("transfer-encoding: chunked") {
            return None;
        }
        body.clear();
        dechunk(&all[end + 4..], &mut body);
        let complete: Vec<&[u8]> = split_events(&body);
        for event in complete.iter().skip(events) {
            let data = event.split(|b| *b == b'\n').filter_map(|l| l.strip_prefix(b"data: "));
            let data: Vec<u8> = data.collect::<Vec<_>>().concat();
            if data.is_empty() {
                continue;
            }
            naive.first_event.get_or_insert(*at);
            let Ok(json) = serde_json::from_slice::<Value>(&data) else { continue };
            let vllm_python = String::from_utf8_lossy(&all).contains("prompt_token_ids")
                || String::from_utf8_lossy(&all).contains("\"vllm-");
            for choice in json["choices"].as_array().into_iter().flatten() {
                let delta = &choice["delta"];
                let full = |v: &Value| v.as_str().is_some_and(|s| !s.is_empty());
                let visible = full(&delta["content"]) || full(&choice["text"]);
                let tool = delta["tool_calls"].as_array().into_iter().flatten();
                let tool = tool.map(|t| &t["function"]).any(|f| full(&f["name"]) || full(&f["arguments"]));
                let thinks = full(&delta["reasoning"]) || full(&delta["reasoning_content"]);
                // In vLLM's Python front end every chunk but the role's is an engine step: at least one token.
                let held_back = vllm_python && !full(&delta["role"]);
                let ids = choice["token_ids"].as_array().is_some_and(|ids| !ids.is_empty());
                if full(&choice["finish_reason"]) {
                    naive.finishes.push(choice["finish_reason"].as_str().unwrap_or_default().to_owned());
                }
                if !(visible || tool || thinks || held_back || ids) {
                    continue;
                }
                naive.chunks += 1;
                naive.first_token.get_or_insert(*at);
                naive.last_token = Some(*at);
                if visible {
                    naive.first_visible.get_or_insert(*at);
                }
                let index = choice["index"].as_u64().unwrap_or(0);
                if let Some(before) = last_of.insert(index, *at) {
                    naive.longest_gap = naive.longest_gap.max(Some(*at - before));
                }
            }
        }
        events = complete.len();
    }
    naive.headers.is_some().then_some(naive)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// The data of chunks, as far as it came.
fn dechunk(mut rest: &[u8], body: &mut Vec<u8>) {
    while let Some(end) = find(rest, b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..end]).into_owned();
        let size = usize::from_str_radix(size.split(';').next().unwrap_or("").trim(), 16).unwrap_or(0);
        rest = &rest[end + 2..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        if size == 0 || rest.len() < size + 2 {
            return;
        }
        rest = &rest[size + 2..];
    }
}

/// The events that came to their blank line.
fn split_events(body: &[u8]) -> Vec<&[u8]> {
    let (mut events, mut rest) = (Vec::new(), body);
    while let Some(end) = find(rest, b"\n\n") {
        events.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    events
}

#[test]
fn times_and_chunks_equal_a_naive_reading_of_the_recordings_own_times() {
    let mut compared = 0;
    let mut wrong = Vec::new();
    for case in cases() {
        let (Some(naive), Some(record)) = (naive(&case), run(&case.recording).records.into_iter().next()) else {
            continue;
        };
        let ours = Naive {
            headers: record.headers,
            first_event: record.first_event,
            first_token: record.first_token,
            first_visible: record.first_visible,
            last_token: record.last_token,
            chunks: record.chunks,
            longest_gap: record.longest_gap,
            finishes: record.finish_reasons.iter().map(|r| r.as_str().to_owned()).collect(),
        };
        compared += 1;
        if ours != naive {
            wrong.push(format!("{} {}:\n  ours  {ours:?}\n  naive {naive:?}", case.engine, case.name));
        }
        let rate = || {
            let span = (naive.last_token? - naive.first_token?).as_secs_f64();
            let output = record.output_tokens.filter(|n| n.source.is_exact())?.tokens;
            let after = output.checked_sub(record.first_tokens.unwrap_or(1)).filter(|n| *n > 0)?;
            (span >= 0.001).then(|| after as f64 / span)
        };
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
        let same = match (record.decode_rate, rate()) {
            (Some(a), Some(b)) => close(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        if !same {
            wrong.push(format!("{} {}: rate {:?}, naive {:?}", case.engine, case.name, record.decode_rate, rate()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 80, "only {compared} streams compared");
}

/// The recording with every read cut in two at `offset` (both halves at the read's time).
fn cut_at(recording: &Recording, offset: usize) -> Recording {
    let halves = recording.reads.iter().flat_map(|(at, bytes)| {
        let (a, b) = bytes.split_at(offset.min(bytes.len()));
        [(*at, a.to_vec()), (*at, b.to_vec())]
    });
    Recording { reads: halves.filter(|(_, bytes)| !bytes.is_empty()).collect(), ..recording.clone() }
}

#[test]
fn every_split_of_the_bytes_gives_the_same_record() {
    let mut random = fastrand::Rng::with_seed(7);
    for case in cases() {
        let whole = format!("{:?}", line(&case));
        let longest = case.recording.reads.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(0);
        // Reads of the same shape follow each other: the first kilobyte holds every position that differs.
        let offsets = (1..longest.min(1024)).chain((0..32).map(|_| random.usize(1..longest.max(2))));
        for offset in offsets {
            let split = run(&cut_at(&case.recording, offset)).records.first().map(Line::from);
            assert_eq!(format!("{split:?}"), whole, "{} {} cut at {offset}", case.engine, case.name);
        }
        let bytes = case.recording.reads.iter().flat_map(|(at, b)| b.iter().map(|b| (*at, vec![*b])));
        let single = Recording { reads: bytes.collect(), ..case.recording.clone() };
        let split = run(&single).records.first().map(Line::from);
        assert_eq!(format!("{split:?}"), whole, "{} {} byte by byte", case.engine, case.name);
        for _ in 0..4 {
            let pieces = case.recording.reads.iter().flat_map(|(at, bytes)| {
                let mut rest = bytes.as_slice();
                let mut pieces = Vec::new();
                while !rest.is_empty() {
                    let (a, b) = rest.split_at(random.usize(1..=rest.len().min(40)));
                    pieces.push((*at, a.to_vec()));
                    rest = b;
                }
                pieces
            });
            let split = Recording { reads: pieces.collect(), ..case.recording.clone() };
            let split = run(&split).records.first().map(Line::from);
            assert_eq!(format!("{split:?}"), whole, "{} {} cut at random", case.engine, case.name);
        }
    }
}

#[test]
fn live_tokens_come_to_the_exact_count_and_never_over_it() {
    for case in cases() {
        let replayed = run(&case.recording);
        let Some(record) = replayed.records.first() else { continue };
        let Some(exact) = record.output_tokens.filter(|n| n.source.is_exact()) else { continue };
        assert_eq!(replayed.live_tokens, exact.tokens, "{} {}", case.engine, case.name);
    }
}
