//! A naive parser for complete frames: slow and simple, for comparison with the real parser.
//!
//! It supports only header blocks of plain literals, and only the rules needed for well-formed traffic.

use std::collections::BTreeMap;

use tokometer_wire::Reset;

use crate::wire::http2::frames::*;
use crate::wire::http2::trace::{Call, note};
use crate::wire::traffic::{Fields, Reported};

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// The frames of one direction, without padding and priority, and with header blocks joined.
fn frames(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    while bytes.len() >= 9 {
        let length = bytes[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let (kind, flags) = (bytes[3], bytes[4]);
        let stream = u32::from_be_bytes(bytes[5..9].try_into().unwrap());
        let mut payload = bytes[9..9 + length].to_vec();
        bytes = &bytes[9 + length..];
        if [DATA, HEADERS, PUSH_PROMISE].contains(&kind) && flags & PADDED != 0 {
            let padding = usize::from(payload.remove(0));
            payload.truncate(payload.len() - padding);
        }
        if kind == HEADERS && flags & WITH_PRIORITY != 0 {
            payload.drain(..5);
        }
        match frames.last_mut() {
            Some(open) if kind == CONTINUATION => open.payload.extend(payload),
            _ => frames.push(Frame { kind, flags, stream, payload }),
        }
    }
    frames
}

/// The fields of a block of literals without indexing whose strings are shorter than 127 bytes.
fn fields(mut block: &[u8]) -> Fields {
    let mut fields = Vec::new();
    let string = |block: &mut &[u8]| {
        let (string, rest) = block[1..].split_at(usize::from(block[0]));
        *block = rest;
        string.to_vec()
    };
    while let [0, rest @ ..] = block {
        block = rest;
        let name = String::from_utf8(string(&mut block)).unwrap();
        fields.push((name, string(&mut block)));
    }
    assert!(block.is_empty(), "unsupported kind of block");
    fields
}

fn text(fields: &Fields, name: &str) -> Option<String> {
    let value = fields.iter().find(|(other, _)| other == name)?.1.clone();
    Some(String::from_utf8(value).unwrap())
}

/// The expected visitor calls for all client bytes, followed by all server bytes.
pub(crate) fn reported(requests: &[u8], responses: &[u8]) -> Vec<Call> {
    let mut reported = Vec::new();
    // Open streams, and whether their response headers were received.
    let mut open: BTreeMap<u32, bool> = BTreeMap::new();
    for Frame { kind, flags, stream, payload } in frames(&requests[PREFACE.len()..]) {
        let number = u64::from(stream / 2);
        let is_new = kind == HEADERS && !open.contains_key(&stream);
        if is_new {
            open.insert(stream, false);
            let fields = fields(&payload);
            note(&mut reported, number, Reported::RequestBegin);
            let (method, target) = (text(&fields, ":method").unwrap(), text(&fields, ":path").unwrap());
            note(&mut reported, number, Reported::RequestHead { method, target, minor: 0, fields });
        }
        if !open.contains_key(&stream) {
            continue;
        }
        if kind == DATA && !payload.is_empty() {
            note(&mut reported, number, Reported::RequestBody(payload.clone()));
        }
        if [DATA, HEADERS].contains(&kind) && flags & END_STREAM != 0 {
            note(&mut reported, number, Reported::RequestEnd);
        }
        if kind == RST_STREAM {
            open.remove(&stream);
            note(
                &mut reported,
                number,
                Reported::Reset(Reset::ByClient(u32::from_be_bytes(payload.try_into().unwrap()))),
            );
        }
    }
    for Frame { kind, flags, stream, payload } in frames(responses) {
        let number = u64::from(stream / 2);
        if kind == GOAWAY {
            let last = u32::from_be_bytes(payload[..4].try_into().unwrap());
            for (stream, _) in open.split_off(&(last + 1)) {
                note(&mut reported, u64::from(stream / 2), Reported::Reset(Reset::NotTaken));
            }
        }
        let Some(response_complete) = open.get_mut(&stream) else { continue };
        if kind == HEADERS {
            let fields = fields(&payload);
            match text(&fields, ":status").map(|status| status.parse().unwrap()) {
                Some(status @ 100..200) => note(&mut reported, number, Reported::Interim(status)),
                Some(status) => {
                    *response_complete = true;
                    note(&mut reported, number, Reported::ResponseHead { status, minor: 0, fields });
                }
                None => note(&mut reported, number, Reported::Trailers(fields)),
            }
        }
        if kind == DATA && !payload.is_empty() {
            note(&mut reported, number, Reported::ResponseBody(payload.clone()));
        }
        if [DATA, HEADERS].contains(&kind) && flags & END_STREAM != 0 {
            open.remove(&stream);
            note(&mut reported, number, Reported::ResponseEnd);
        } else if kind == RST_STREAM {
            open.remove(&stream);
            note(
                &mut reported,
                number,
                Reported::Reset(Reset::ByServer(u32::from_be_bytes(payload.try_into().unwrap()))),
            );
        }
    }
    reported
}
