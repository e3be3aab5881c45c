//! Hand-written bytes of requests, frames and messages, which client libraries would not send.

use std::sync::atomic::Ordering::Relaxed;

use crate::options::REWRITES;

/// The HTTP/2 connection preface (RFC 9113, section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames (section 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Flags; `ACK` is for SETTINGS and PING.
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// An unknown setting. If a connection starts with it, the upstream responds like a server without HTTP/2.
pub(crate) const UNSUPPORTED_SETTING: [u8; 6] = [0xf0, 0x01, 0, 0, 0, 1];

/// `:method: POST`, `:scheme: http` and `:status: 200` in HPACK's static table (RFC 7541, appendix A).
pub(crate) const POST: u8 = 0x83;
pub(crate) const HTTP: u8 = 0x86;
/// The name `:authority` of a field that is not added to the dynamic table.
pub(crate) const AUTHORITY: u8 = 0x01;
pub(crate) const STATUS_200: u8 = 0x88;

/// The newest entry of HPACK's dynamic table, as an indexed field.
pub(crate) const NEWEST: u8 = 0x80 | 62;

/// An update of HPACK's dynamic table to the largest size that is decoded, 64 KiB (RFC 7541, section 6.3).
pub(crate) const LARGE_TABLE: [u8; 4] = [0x3f, 0xe1, 0xff, 0x03];

/// Largest payload of a frame (RFC 9113, section 6.5.2, SETTINGS_MAX_FRAME_SIZE).
const FRAME_BYTES: usize = 16_384;

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The start of a connection; `settings` is the payload of its first SETTINGS.
pub(crate) fn opening(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, settings)].concat()
}

/// A field that is added to the dynamic table.
pub(crate) fn added(name: &str, value: &str) -> Vec<u8> {
    [&[0x40][..], &text(name), &text(value)].concat()
}

/// A field that is not added to the dynamic table.
pub(crate) fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0][..], &text(name), &text(value)].concat()
}

/// A string without Huffman coding.
fn text(text: &str) -> Vec<u8> {
    [&integer(text.len()), text.as_bytes()].concat()
}

/// An integer with a 7-bit prefix (RFC 7541, section 5.1).
fn integer(value: usize) -> Vec<u8> {
    if value < 127 {
        return vec![value as u8];
    }
    let mut bytes = vec![127];
    let mut rest = value - 127;
    while rest >= 128 {
        bytes.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes
}

/// The header block of a connection's `at`-th request: the first request adds `fields` to the table, later ones refer
/// to each with one byte.
pub(crate) fn block(at: usize, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![POST, HTTP];
    if REWRITES.load(Relaxed) {
        // pingora would reject a request without `:authority` before any work that the attack measures.
        block.extend([&[AUTHORITY][..], &text("x")].concat());
    }
    if at == 0 {
        block.extend(fields.iter().flat_map(|(name, value)| added(name, value)));
    } else {
        block.extend((0..fields.len()).map(|field| NEWEST + (fields.len() - 1 - field) as u8));
    }
    block
}

/// The header block of the `at`-th request, which begins with `:method` and `:scheme`.
pub(crate) fn headers(at: usize, fields: &[u8]) -> Vec<u8> {
    split_block(stream(at), &[&[POST, HTTP][..], fields].concat())
}

/// The frames of a header block that does not end its stream.
pub(crate) fn split_block(stream: u32, block: &[u8]) -> Vec<u8> {
    let frames: Vec<&[u8]> = block.chunks(FRAME_BYTES).collect();
    let frame = |(at, part): (usize, &&[u8])| {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let flags = if at + 1 == frames.len() { END_HEADERS } else { 0 };
        frame(kind, flags, stream, part)
    };
    frames.iter().enumerate().flat_map(frame).collect()
}

/// The id of the `at`-th stream that a client opens.
pub(crate) fn stream(at: usize) -> u32 {
    2 * at as u32 + 1
}

/// One compressed gRPC message.
pub(crate) fn grpc(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[1][..], &length, message].concat()
}

/// An HTTP/1.1 request with a body.
pub(crate) fn post(path: &str, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in fields {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// A client's WebSocket frame (RFC 6455, section 5.2), masked with zeros; `first` is its first byte.
pub(crate) fn websocket(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..=125 => frame.push(0x80 | length as u8),
        length @ 126..=0xffff => {
            frame.push(0x80 | 126);
            frame.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}
