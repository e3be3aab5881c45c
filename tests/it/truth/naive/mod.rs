//! A naive parser of the recorded reads: it has no state machine, and parses the whole body again after every read.

mod stated;

use std::collections::BTreeMap;
use std::time::Duration;

use memchr::memmem::find;
use serde_json::Value;

use super::Case;
use stated::stated;

/// Measurements of one stream. Times are relative to the time at which the request was sent.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Naive {
    pub(super) headers: Option<Duration>,
    pub(super) first_event: Option<Duration>,
    pub(super) first_token: Option<Duration>,
    /// Number of tokens in the first event with a token; only if the engine sends a running counter.
    pub(super) first_tokens: Option<u64>,
    pub(super) first_visible: Option<Duration>,
    pub(super) last_token: Option<Duration>,
    pub(super) chunks: u64,
    pub(super) longest_gap: Option<Duration>,
    pub(super) finishes: Vec<String>,
}

/// Layout of a response on the wire.
struct Head {
    end: usize,
    chunked: bool,
    framing: Framing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    Sse,
    Ndjson,
    Json,
}

impl Head {
    fn of(bytes: &[u8]) -> Option<Head> {
        let end = find(bytes, b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let framing = if head.contains("text/event-stream") {
            Framing::Sse
        } else if head.contains("application/x-ndjson") {
            Framing::Ndjson
        } else {
            Framing::Json
        };
        Some(Head { end: end + 4, chunked: head.contains("transfer-encoding: chunked"), framing })
    }

    fn body(&self, bytes: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        match self.chunked {
            true => dechunk(&bytes[self.end..], &mut body),
            false => body.extend_from_slice(&bytes[self.end..]),
        }
        body
    }

    /// The data of all complete events.
    fn data(&self, body: &[u8]) -> Vec<Vec<u8>> {
        match self.framing {
            Framing::Sse => {
                let lines = String::from_utf8_lossy(body).replace("\r\n", "\n");
                let events = split(lines.as_bytes(), b"\n\n").into_iter();
                events.map(data_lines).filter(|data| !data.is_empty()).collect()
            }
            Framing::Ndjson => split(body, b"\n").into_iter().map(<[u8]>::to_vec).filter(|l| !l.is_empty()).collect(),
            Framing::Json => vec![body.to_vec()],
        }
    }
}

/// The content type and the decoded body; `None` without complete headers.
#[cfg(feature = "tokenizer")]
pub(super) fn body(case: &Case) -> Option<(&'static [u8], Vec<u8>)> {
    let all: Vec<u8> = case.recording.reads.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
    let head = Head::of(&all)?;
    let content_type: &[u8] = match head.framing {
        Framing::Sse => b"text/event-stream",
        Framing::Ndjson => b"application/x-ndjson",
        Framing::Json => b"application/json",
    };
    Some((content_type, head.body(&all)))
}

/// Every event that is JSON, with the time at which it was complete. A non-streamed body is one event.
pub(super) fn events(case: &Case) -> Vec<(Duration, Value)> {
    parsed(&data(case))
}

fn parsed(data: &[(Duration, Vec<u8>)]) -> Vec<(Duration, Value)> {
    data.iter().filter_map(|(at, data)| Some((*at, serde_json::from_slice(data).ok()?))).collect()
}

/// The data of every event, JSON or not.
fn data(case: &Case) -> Vec<(Duration, Vec<u8>)> {
    let (mut all, mut events) = (Vec::new(), Vec::new());
    for (at, bytes) in &case.recording.reads {
        all.extend_from_slice(bytes);
        let Some(head) = Head::of(&all) else { continue };
        let whole = head.data(&head.body(&all));
        let before = if head.framing == Framing::Json { 0 } else { events.len() };
        events.truncate(before);
        events.extend(whole.into_iter().skip(before).map(|data| (*at, data)));
    }
    events
}

/// Measurements of a stream; `None` for a non-streamed response.
pub(super) fn naive(case: &Case) -> Option<Naive> {
    let mut all = Vec::new();
    let headers = case.recording.reads.iter().find_map(|(at, bytes)| {
        all.extend_from_slice(bytes);
        Head::of(&all).map(|head| (*at, head.framing))
    });
    let (at, framing) = headers?;
    if framing == Framing::Json {
        return None;
    }
    let mut naive = Naive { headers: Some(at), ..Naive::default() };
    let data = data(case);
    naive.first_event = data.first().map(|(at, _)| *at);
    let events = parsed(&data);
    // These engines send one chunk per step, with or without text. Only the chunk with the role is not a step.
    let stepwise = case.engine == "vllm-0.32.0" || case.engine.starts_with("tensorrt-llm");
    let mut last_of: BTreeMap<u64, Duration> = BTreeMap::new();
    let mut counters = BTreeMap::new();
    for (at, json) in events {
        for stated in stated(case.api?, &json, stepwise, &mut counters) {
            naive.finishes.extend(stated.finish);
            if !stated.token {
                continue;
            }
            naive.chunks += 1;
            if naive.first_token.is_none() {
                (naive.first_token, naive.first_tokens) = (Some(at), stated.tokens);
            }
            naive.last_token = Some(at);
            if stated.visible {
                naive.first_visible.get_or_insert(at);
            }
            if let Some(before) = last_of.insert(stated.choice, at) {
                naive.longest_gap = naive.longest_gap.max(Some(at - before));
            }
        }
    }
    Some(naive)
}

/// The data of the chunks received so far.
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

/// The pieces terminated by `end`. An unterminated last piece is omitted.
fn split<'a>(body: &'a [u8], end: &[u8]) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), body);
    while let Some(at) = find(rest, end) {
        pieces.push(&rest[..at]);
        rest = &rest[at + end.len()..];
    }
    pieces
}

/// The joined `data:` lines of an event.
fn data_lines(event: &[u8]) -> Vec<u8> {
    let data = event.split(|b| *b == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    data.map(|data| data.strip_prefix(b" ").unwrap_or(data)).collect::<Vec<_>>().concat()
}
