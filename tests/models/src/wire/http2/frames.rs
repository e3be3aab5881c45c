//! Builds HTTP/2 frames.

/// The client's connection preface (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
pub const PADDED: u8 = 0x8;
pub const WITH_PRIORITY: u8 = 0x20;

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// One frame with this much padding.
pub fn padded(kind: u8, flags: u8, stream: u32, padding: u8, payload: &[u8]) -> Vec<u8> {
    let zeros = vec![0; usize::from(padding)];
    frame(kind, flags | PADDED, stream, &[&[padding], payload, &zeros].concat())
}

pub fn settings() -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100])
}

/// The first bytes of a client: preface and SETTINGS.
pub fn opening() -> Vec<u8> {
    [PREFACE, &settings()].concat()
}

fn string(text: &str) -> Vec<u8> {
    // Encodes the length as in RFC 7541, section 5.1, with a prefix of 7 bits.
    let mut length = text.len();
    let mut bytes = vec![length.min(127) as u8];
    if length >= 127 {
        length -= 127;
        while length >= 128 {
            bytes.push((length % 128) as u8 | 0x80);
            length /= 128;
        }
        bytes.push(length as u8);
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

/// A header block of literals without indexing (RFC 7541, section 6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| [vec![0], string(name), string(value)].concat()).collect()
}

/// A HEADERS frame with a complete header block.
pub fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags | END_HEADERS, stream, &block(fields))
}

/// The headers of a POST.
pub fn post(stream: u32, flags: u8) -> Vec<u8> {
    headers(stream, flags, &[(":method", "POST"), (":scheme", "http"), (":path", "/x"), (":authority", "a")])
}

/// The headers of a GET, which end its stream.
pub fn get(stream: u32) -> Vec<u8> {
    headers(stream, END_STREAM, &[(":method", "GET"), (":scheme", "http"), (":path", "/x"), (":authority", "a")])
}

/// The headers of a final response.
pub fn ok(stream: u32, flags: u8) -> Vec<u8> {
    headers(stream, flags, &[(":status", "200"), ("content-type", "text/event-stream")])
}

pub fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, bytes)
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub fn go_away(last: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[&last.to_be_bytes()[..], &code.to_be_bytes(), b"debug"].concat())
}
