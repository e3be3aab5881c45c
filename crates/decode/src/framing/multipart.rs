//! Incremental decoder for form data (RFC 7578, RFC 2046 section 5.1). Returns the names and values of short fields, in
//! fixed memory. Files are skipped.

use memchr::memchr;

use crate::framing::{CONTENT_TYPE_BYTES, essence};
use crate::scan::Capture;

/// Maximum length of a delimiter: CRLF, two dashes, and a boundary of at most 70 characters (RFC 2046 section 5.1.1).
const DELIMITER: usize = 4 + 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter or inside a part, searching for a delimiter.
    Content,
    /// After a delimiter and this many dashes.
    Delimited(u8),
    /// In the rest of a delimiter line.
    Padding,
    /// In the headers of a part.
    Header,
    /// After the last delimiter.
    Done,
}

/// Decodes the parts of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multipart {
    delimiter: [u8; DELIMITER],
    delimiter_len: u8,
    /// Bytes of the delimiter matched so far.
    matched: u8,
    state: State,
    line: Capture<128>,
    /// The name of the current part. Not settled if the part has no name, or if the name is too long.
    name: Capture<32>,
    value: Capture<128>,
}

impl Multipart {
    /// Decoder for a body with this `content-type`. `None` if it is not form data, or has no valid boundary.
    pub(crate) fn of_content_type(value: &[u8]) -> Option<Multipart> {
        if !essence(value)?.eq_ignore_ascii_case(b"multipart/form-data") {
            return None;
        }
        let boundary = parameter(value.get(..CONTENT_TYPE_BYTES).unwrap_or(value), b"boundary")?;
        if boundary.is_empty() {
            return None;
        }
        let mut delimiter = [0; DELIMITER];
        let (start, room) = delimiter.split_at_mut_checked(4)?;
        start.copy_from_slice(b"\r\n--");
        room.get_mut(..boundary.len())?.copy_from_slice(boundary);
        Some(Multipart {
            delimiter,
            delimiter_len: 4 + boundary.len() as u8,
            // The first delimiter has no line break if it starts the body.
            matched: 2,
            state: State::Content,
            line: Capture::default(),
            name: Capture::default(),
            value: Capture::default(),
        })
    }

    /// Processes the next bytes. Calls `each` with the name and value (truncated to 128 bytes) of every part that ends
    /// in these bytes and has a short name.
    pub(crate) fn feed(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8], &[u8])) {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            match self.state {
                State::Content => {
                    rest = self.content(rest, each);
                    continue;
                }
                State::Delimited(dashes) => match byte {
                    b'-' if dashes == 1 => self.state = State::Done,
                    b'-' => self.state = State::Delimited(dashes + 1),
                    b'\n' => self.begin_header(),
                    _ => self.state = State::Padding,
                },
                State::Padding if byte == b'\n' => self.begin_header(),
                State::Padding => {}
                State::Header if byte == b'\n' => self.end_line(),
                State::Header => self.line.push(&[byte]),
                State::Done => return,
            }
            rest = after;
        }
    }

    /// True after the last delimiter.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Processes bytes up to and including the next delimiter; returns the rest. A delimiter contains a carriage return
    /// only as its first byte. After a mismatch, the matched bytes are therefore content, and the next delimiter can
    /// only begin at another carriage return.
    fn content<'a>(&mut self, bytes: &'a [u8], each: &mut impl FnMut(&[u8], &[u8])) -> &'a [u8] {
        let mut rest = bytes;
        while let Some((&byte, after)) = rest.split_first() {
            let matched = usize::from(self.matched);
            if self.delimiter.get(matched) == Some(&byte) {
                rest = after;
                self.matched += 1;
                if self.matched == self.delimiter_len {
                    self.end_part(each);
                    return rest;
                }
            } else if matched > 0 {
                self.matched = 0;
                let held_back = self.delimiter.get(..matched).unwrap_or_default();
                self.value.push(held_back);
            } else {
                let plain = memchr(b'\r', rest).unwrap_or(rest.len());
                let (part, others) = rest.split_at_checked(plain).unwrap_or((rest, &[]));
                self.value.push(part);
                rest = others;
            }
        }
        rest
    }

    fn end_part(&mut self, each: &mut impl FnMut(&[u8], &[u8])) {
        if self.name.is_settled() {
            each(self.name.bytes(), self.value.bytes());
        }
        self.matched = 0;
        self.state = State::Delimited(0);
    }

    fn begin_header(&mut self) {
        self.line.clear();
        self.name.clear();
        self.state = State::Header;
    }

    fn end_line(&mut self) {
        let line = self.line.bytes();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            self.value.clear();
            self.state = State::Content;
            return;
        }
        let is_disposition = line
            .split_at_checked(b"content-disposition:".len())
            .is_some_and(|(field, _)| field.eq_ignore_ascii_case(b"content-disposition:"));
        if let Some(name) = parameter(line, b"name").filter(|name| is_disposition && name.len() <= 32) {
            self.name.clear();
            self.name.push(name);
            self.name.settle();
        }
        self.line.clear();
    }
}

/// The value of a header field parameter (RFC 9110 section 5.6.6), without quotes.
fn parameter<'a>(value: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    let mut rest = value.split_at_checked(memchr(b';', value)?)?.1;
    while let Some(after) = rest.strip_prefix(b";") {
        let end = after.iter().position(|byte| matches!(byte, b'=' | b';')).unwrap_or(after.len());
        let (name, tail) = after.split_at_checked(end)?;
        let Some(written) = tail.strip_prefix(b"=") else {
            rest = tail;
            continue;
        };
        let (found, tail) = match written.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted_len(quoted)?;
                (quoted.get(..end)?, quoted.get(end + 1..)?)
            }
            None => written.split_at_checked(memchr(b';', written).unwrap_or(written.len()))?,
        };
        if name.trim_ascii().eq_ignore_ascii_case(wanted) {
            return Some(found.trim_ascii());
        }
        rest = tail.trim_ascii_start();
    }
    None
}

/// The length of a quoted string whose opening quote was already removed.
fn quoted_len(bytes: &[u8]) -> Option<usize> {
    let mut escaped = false;
    bytes.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })
}
