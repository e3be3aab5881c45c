//! Server-sent events: the framer returns the same events at any split of the stream, whether or not the caller takes
//! lines early with `peek`. The events match those of a naive parser of the whole stream. JSON Lines: the lines match
//! those of `split`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use memchr::memchr2;
use tokometer_decode::framing::{Piece, SseFramer, next_piece};
use tokometer_fuzz::cut::Cut;
use tokometer_fuzz::work::Work;

/// The data of each event. `ahead`: takes the lines that the framer offers with `peek` before feeding them, as the
/// decoder's predictions do.
fn read(pieces: &[&[u8]], ahead: bool) -> Vec<Vec<u8>> {
    let mut framer = SseFramer::default();
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
                    assert!(!part.is_empty(), "parts are never empty");
                    data.extend_from_slice(part);
                }
                Some(Piece::Join) => data.push(b'\n'),
                Some(Piece::End) => events.push(std::mem::take(&mut data)),
                None => break,
            }
        }
        assert!(rest.is_empty(), "all bytes are consumed");
    }
    if framer.finish() {
        events.push(data);
    } else {
        assert!(data.is_empty(), "data without an event");
    }
    events
}

/// The data of each event, parsed from the whole stream according to the standard.
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
            byte => lines.last_mut().expect("never empty").push(byte),
        }
    }
    // An incomplete line at the end: a name that could continue is not a field yet. The line feed before a further data
    // line is reported together with that line's first byte.
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

/// The lines, joined from the parts that `next_piece` returns.
fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut lines = vec![Vec::new()];
    for piece in pieces {
        let mut rest = *piece;
        while let Some(piece) = next_piece(&mut rest) {
            match piece {
                Piece::Part(part) => {
                    assert!(!part.is_empty(), "parts are never empty");
                    lines.last_mut().expect("never empty").extend_from_slice(part);
                }
                Piece::End => lines.push(Vec::new()),
                other => panic!("{other:?} in a line"),
            }
        }
        assert!(rest.is_empty(), "all bytes are consumed");
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
