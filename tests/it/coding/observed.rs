//! Observer records of compressed requests and responses.

use std::time::Duration;

use tokometer::replay::Replayed;
use tokometer_observe::input::{Close, Side};
use tokometer_observe::measure::{CountSource, Message, Outcome, Unread};

use super::encode::{ENCODINGS, encode, encoded_parts};
use crate::endings::{DELTA, DONE, FINISH, LAST, ROLE, Wire};

const CLIENT_LEFT: Close = Close::Finished { first: Side::Client };
const USAGE: &str = r#"data: {"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7}}"#;

fn head(fields: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
    format!("{head}transfer-encoding: chunked\r\n{fields}\r\n\r\n").into_bytes()
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// The encoded events, each in a separate chunk.
fn chunks(name: &str, events: &[&str]) -> Vec<Vec<u8>> {
    let events: Vec<String> = events.iter().map(|event| format!("{event}\n\n")).collect();
    let parts: Vec<&[u8]> = events.iter().map(|event| event.as_bytes()).collect();
    encoded_parts(name, &parts).iter().filter(|part| !part.is_empty()).map(|part| chunk(part)).collect()
}

fn response_complete(head: &[u8], chunks: &[Vec<u8>]) -> Wire {
    let mut wire = Wire::asked().server(head);
    for chunk in chunks {
        wire = wire.server(chunk);
    }
    wire
}

/// The record without its times and sizes.
fn comparable(replayed: &Replayed) -> String {
    let [record] = replayed.records.as_slice() else { panic!("one request, one record: {replayed:?}") };
    let mut record = record.clone();
    record.response.bytes = 0;
    (record.times.ended, record.times.closed) = (Duration::ZERO, Duration::ZERO);
    record.started = std::time::Instant::now();
    format!("{record:?}").split_once("requested").map(|(_, rest)| rest.to_owned()).unwrap_or_default()
}

#[test]
fn compressed_stream_is_measured_like_a_plain_one() {
    let events = [ROLE, DELTA, DELTA, FINISH, USAGE, DONE];
    let plain: Vec<Vec<u8>> = events.iter().map(|event| chunk(format!("{event}\n\n").as_bytes())).collect();
    let expected = comparable(&response_complete(&head("x-a: b"), &plain).server(LAST).close(CLIENT_LEFT));
    for (name, coding) in ENCODINGS {
        let wire = response_complete(&head(&format!("Content-Encoding: {coding}")), &chunks(name, &events));
        let replayed = wire.server(LAST).close(CLIENT_LEFT);
        assert_eq!(comparable(&replayed), expected, "{name}");
        assert_eq!(replayed.unread, [], "{name}");
        assert_eq!(replayed.records[0].tokens.output.map(|n| (n.tokens, n.source)), Some((7, CountSource::Usage)));
        assert_eq!(
            replayed.records[0].times.first_token,
            Some(Duration::from_millis(3)),
            "{name}: the read's own time"
        );
    }
}

#[test]
fn transfer_coding_is_decoded_before_the_content_coding() {
    let inner = encode("br", &[format!("{DELTA}\n\n{FINISH}\n\n{DONE}\n\n").as_bytes()]);
    let body = encode("gzip", &[&inner]);
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: br\r\n\
        transfer-encoding: gzip, chunked\r\n\r\n";
    let replayed = response_complete(head, &[chunk(&body)]).server(LAST).close(CLIENT_LEFT);
    assert_eq!(replayed.records[0].outcome, Outcome::Ok);
    assert_eq!(replayed.records[0].tokens.chunks, 1);
}

#[test]
fn parameters_of_a_compressed_request_are_recorded() {
    let json = br#"{"model":"m","stream":true,"max_tokens":77,"n":2,"messages":[{"role":"user","content":"x"}]}"#;
    for (name, coding) in ENCODINGS {
        let field = if name == "zstd" { "x-body-compressed" } else { "content-encoding" };
        let body = encode(name, &[json]);
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{field}: {coding}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let replayed = Wire::open().client(head.as_bytes()).client(&body).close(CLIENT_LEFT);
        let record = &replayed.records[0];
        assert_eq!((record.request.max_tokens, record.request.choices), (Some(77), 2), "{name}");
        assert_eq!(record.labels.request_model.as_deref(), Some("m"), "{name}");
        assert_eq!(record.labels.streaming, Some(true), "{name}");
        assert_eq!(record.request.bytes, body.len() as u64, "{name}: compressed bytes");
    }
}

#[test]
fn body_with_an_unknown_coding_is_counted_but_not_parsed() {
    for (codings, why) in [("compress", Unread::UnknownCoding), ("gzip, br, zstd", Unread::TooManyCodings)] {
        let head = head(&format!("content-encoding: {codings}"));
        let replayed = response_complete(&head, &[chunk(b"whatever it is")]).server(LAST).close(CLIENT_LEFT);
        assert_eq!(replayed.unread, [(Message::Response, why)], "{codings}");
        assert_eq!(replayed.detached, []);
        let record = &replayed.records[0];
        assert_eq!((record.outcome, record.tokens.output, record.unread), (Outcome::Ok, None, true), "{codings}");
        assert_eq!((record.times.first_event, record.times.first_token, record.rate.exact), (None, None, None));
    }
}

#[test]
fn leaving_an_unreadable_response_is_an_abort_mid_stream() {
    let wire = response_complete(&head("content-encoding: compress"), &[chunk(b"whatever it is")]);
    assert_eq!(wire.close(CLIENT_LEFT).records[0].outcome, Outcome::ClientAbortMidStream);
    let wire = response_complete(&head("content-encoding: compress"), &[]);
    assert_eq!(wire.close(CLIENT_LEFT).records[0].outcome, Outcome::ClientAbortBeforeFirstToken);
}

#[test]
fn count_before_a_fault_is_a_lower_bound() {
    for (name, coding) in ENCODINGS {
        let mut chunks = chunks(name, &[ROLE, DELTA, DELTA, FINISH, USAGE, DONE]);
        // 0x0e bytes are invalid at the start of a deflate block, brotli meta-block or zstd block.
        chunks.truncate(3);
        chunks.push(chunk(&[0x0e; 40]));
        let replayed =
            response_complete(&head(&format!("content-encoding: {coding}")), &chunks).server(LAST).close(CLIENT_LEFT);
        assert_eq!(replayed.unread, [(Message::Response, Unread::Corrupt)], "{name}");
        let record = &replayed.records[0];
        let count = record.tokens.output.map(|n| (n.tokens, n.source.is_exact()));
        assert_eq!((record.outcome, count, record.unread), (Outcome::Ok, Some((2, false)), true), "{name}");
        assert_eq!(record.times.first_token, Some(Duration::from_millis(3)), "{name}");
    }
}

/// Bytes after the end mark of the event stream do not change the record.
#[test]
fn fault_after_the_end_mark_is_counted_and_keeps_the_record() {
    let mut chunks = chunks("gzip", &[ROLE, DELTA, FINISH, USAGE, DONE]);
    chunks.truncate(5);
    chunks.push(chunk(&[0xff; 40]));
    let replayed = response_complete(&head("content-encoding: gzip"), &chunks).server(LAST).close(CLIENT_LEFT);
    let record = &replayed.records[0];
    assert_eq!(replayed.unread, [(Message::Response, Unread::Corrupt)]);
    assert_eq!((record.outcome, record.unread), (Outcome::Ok, false));
    assert_eq!(record.tokens.output.map(|n| (n.tokens, n.source)), Some((7, CountSource::Usage)));
}

#[test]
fn incomplete_compressed_stream_is_truncated() {
    let chunks = chunks("gzip", &[ROLE, DELTA, DELTA, FINISH]);
    let head = head("content-encoding: gzip");
    let replayed = response_complete(&head, &chunks[..3]).server(LAST).close(CLIENT_LEFT);
    assert_eq!((replayed.records[0].outcome, replayed.unread.len()), (Outcome::Truncated, 0));
    let replayed = response_complete(&head, &chunks[..3]).close(Close::Finished { first: Side::Server });
    assert_eq!(replayed.records[0].outcome, Outcome::Truncated);
}

/// A malformed body does not affect the next message on the same connection.
#[test]
fn request_after_an_unreadable_response_is_observed() {
    let wire = response_complete(&head("content-encoding: gzip"), &[chunk(b"not gzip")]).server(LAST);
    let wire = wire.client(crate::endings::REQUEST).server(crate::endings::HEAD);
    let replayed = wire.events(&[ROLE, DELTA, FINISH, DONE]).server(LAST).close(CLIENT_LEFT);
    assert_eq!(replayed.records.len(), 2);
    assert_eq!(replayed.records[1].tokens.chunks, 1);
    assert!(!replayed.records[1].unread);
}
