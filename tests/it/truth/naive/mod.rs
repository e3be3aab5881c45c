//! What a person with a pencil reads out of the same reads: no state machine, everything parsed anew.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::Case;

/// The figures of one stream, counted from the moment its request was sent.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Naive {
    pub(super) headers: Option<Duration>,
    pub(super) first_event: Option<Duration>,
    pub(super) first_token: Option<Duration>,
    pub(super) first_visible: Option<Duration>,
    pub(super) last_token: Option<Duration>,
    pub(super) chunks: u64,
    pub(super) longest_gap: Option<Duration>,
    pub(super) finishes: Vec<String>,
}

pub(super) fn naive(case: &Case) -> Option<Naive> {
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
