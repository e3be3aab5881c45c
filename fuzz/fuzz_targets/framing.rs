//! Server-sent events: the framer tells the same data however the bytes are cut and whether or not lines are taken ahead
//! of it, and the data that a naive reading of the whole stream finds. JSON lines: the same lines as a split finds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memchr::memchr2;
use tokometer_fuzz::cut::Cut;
use tokometer_fuzz::work::Work;

use crate::ndjson::next_piece;
use crate::sse::Piece;
use crate::sse::SseFramer;

// Private parts of `decode`, which name nothing else of it.
#[path = "../../crates/decode/src/framing/ndjson.rs"]
mod ndjson;
#[path = "../../crates/decode/src/framing/sse.rs"]
mod sse;

/// The data of each event. `ahead`: lines that the framer shows are taken before it reads them, as predictions do.
fn read(pieces: &[&[u8]], ahead: bool) -> Vec<Vec<u8>> {
    let mut framer = SseFramer::new();
    let mut events = Vec::new();
    let mut data = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        loop {
            if ahead
                && let Some(value) = framer.peek(rest)
                && let Some(end) = memchr2(b'\n', b'\r', value)
                && value[end] == b'\n'
            {
                framer.take_line();
                data.extend_from_slice(&value[..end]);
                rest = &value[end + 1..];
            }
            match framer.next(&mut rest) {
                Some(Piece::Line(line)) => {
                    assert!(data.is_empty(), "a first line after other data");
                    data.extend_from_slice(line);
                }
                Some(Piece::Part(part)) => {
                    assert!(!part.is_empty(), "an empty part says nothing");
                    data.extend_from_slice(part);
                }
                Some(Piece::Join) => data.push(b'\n'),
                Some(Piece::End) => events.push(std::mem::take(&mut data)),
                None => break,
            }
        }
        assert!(rest.is_empty(), "all bytes are taken");
    }
    if framer.finish() {
        events.push(data);
    } else {
        assert!(data.is_empty(), "data without an event");
    }
    events
}

/// The same by the standard's words, from the whole stream.
fn model(body: &[u8]) -> Vec<Vec<u8>> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut lines: Vec<Vec<u8>> = vec![Vec::new()];
    let mut bytes = body.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if_eq(&b'\n');
                lines.push(Vec::new());
            }
            b'\n' => lines.push(Vec::new()),
            byte => lines.last_mut().expect("it began with one").push(byte),
        }
    }
    // What is not complete at the end: a name that could go on is no field yet, and the line feed before a further line
    // of data is told with the line's first byte.
    let cut_off = lines.pop().filter(|line| line != b"data").unwrap_or_default();
    let mut events = Vec::new();
    let mut data: Option<Vec<Vec<u8>>> = None;
    for line in &lines {
        if line.is_empty() {
            events.extend(data.take());
        } else if line == b"data" {
            data.get_or_insert_default().push(Vec::new());
        } else if let Some(value) = line.strip_prefix(b"data:") {
            data.get_or_insert_default().push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
        }
    }
    if let Some(value) = cut_off.strip_prefix(b"data:") {
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if data.is_none() || !value.is_empty() {
            data.get_or_insert_default().push(value.to_vec());
        }
    }
    events.extend(data);
    events.into_iter().map(|lines| lines.join(&b'\n')).collect()
}

/// The lines.
fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut lines = vec![Vec::new()];
    for piece in pieces {
        let mut rest = *piece;
        while let Some(piece) = next_piece(&mut rest) {
            match piece {
                Piece::Part(part) => {
                    assert!(!part.is_empty(), "an empty part says nothing");
                    lines.last_mut().expect("it began with one").extend_from_slice(part);
                }
                Piece::End => lines.push(Vec::new()),
                other => panic!("{other:?} in a line"),
            }
        }
        assert!(rest.is_empty(), "all bytes are taken");
    }
    lines
}

fuzz_target!(|input: &[u8]| {
    let _work = Work::on(input);
    let cut = Cut::of(input);
    let expected = model(&cut.body);
    for pieces in cut.ways() {
        let split: Vec<Vec<u8>> = cut.body.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines(&pieces), split, "lines in {} reads", pieces.len());
        for ahead in [false, true] {
            assert_eq!(read(&pieces, ahead), expected, "{} reads, ahead: {ahead}", pieces.len());
        }
    }
});
