//! Records of requests to the engines' own routes. The test data follows recordings, or the engine's source if there is
//! no recording.

// The whole module is tests.
#![allow(clippy::unwrap_used)]

mod generate;
mod llama_cpp;
mod ollama;
mod recordings;
mod tgi;

use tokometer::replay::Replayed;
use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::Record;

use crate::endings::Wire;

const LAST: &[u8] = b"0\r\n\r\n";

/// A connection with this request.
fn asked(path: &str, body: &str) -> Wire {
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
    Wire::open().client(format!("{head}{body}").as_bytes())
}

/// The headers of a streamed response.
fn stream_head(content_type: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes()
}

/// Replays a whole stream of these events, one millisecond apart. The first event arrives 2 ms after the request.
fn streamed(path: &str, body: &str, events: &[&str]) -> Replayed {
    let events: Vec<String> = events.iter().map(|event| format!("data: {event}")).collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    asked(path, body).server(&stream_head("text/event-stream")).events(&events).server(LAST).close(CLOSE)
}

/// Replays a whole stream of these JSON lines, with the timing of `streamed`.
fn lines(path: &str, body: &str, lines: &[&str]) -> Replayed {
    let mut wire = asked(path, body).server(&stream_head("application/x-ndjson"));
    for line in lines {
        wire = wire.server(format!("{:x}\r\n{line}\n\r\n", line.len() + 1).as_bytes());
    }
    wire.server(LAST).close(CLOSE)
}

/// Replays a whole response with these header fields.
fn response_complete(path: &str, body: &str, headers: &str, response: &str) -> Replayed {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        response.len()
    );
    asked(path, body).server(format!("{head}{response}").as_bytes()).close(CLOSE)
}

const CLOSE: Close = Close::Finished { first: Side::Client };

fn only(replayed: &Replayed) -> &Record {
    assert!(replayed.detached.is_empty());
    assert_eq!((replayed.records.len(), replayed.in_flight), (1, 0), "one record per request");
    &replayed.records[0]
}

/// The output tokens and the source of the count.
fn output(record: &Record) -> Option<(u64, &'static str)> {
    record.tokens.output.map(|count| (count.tokens, count.source.as_str()))
}

fn input(record: &Record) -> Option<u64> {
    record.tokens.input.map(|count| count.tokens)
}

/// The token count of each recorded gap.
fn gap_tokens(replayed: &Replayed) -> Vec<Option<u32>> {
    replayed.gaps.iter().map(|gap| gap.tokens).collect()
}

fn finishes(record: &Record) -> Vec<&'static str> {
    record.response.finish_reasons.iter().map(|reason| reason.as_str()).collect()
}
