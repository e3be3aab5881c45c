//! A recorded response: its bytes as they were received, and when they were received.

use std::ops::Range;
use std::time::Duration;

use http::{HeaderMap, header};
use memchr::memmem;

/// A complete response.
#[derive(Clone, Debug)]
pub struct Recording {
    status: u16,
    headers: HeaderMap,
    raw: Vec<u8>,
    /// Position of the headers in `raw`, after informational responses.
    head: Range<usize>,
    body: Vec<u8>,
    /// For each part of the body: the number of bytes up to its end, and their arrival time since the start of the
    /// request.
    parts: Vec<(usize, Duration)>,
    first_byte: Duration,
}

/// An event of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Event<'a> {
    /// The event's `data`, without surrounding spaces.
    pub(crate) data: &'a [u8],
    /// Arrival time of the event's last byte, since the start of the request.
    pub(crate) at: Duration,
}

impl Recording {
    /// A response without its body.
    pub(super) fn new(status: u16, headers: HeaderMap, first_byte: Duration) -> Recording {
        Recording { status, headers, raw: Vec::new(), head: 0..0, body: Vec::new(), parts: Vec::new(), first_byte }
    }

    /// Adds a part of the body.
    pub(super) fn push(&mut self, part: &[u8], at: Duration) {
        self.body.extend_from_slice(part);
        self.parts.push((self.body.len(), at));
    }

    /// Adds all received bytes; false if they contain more than the response.
    pub(super) fn end(&mut self, raw: Vec<u8>) -> bool {
        let is_interim = |head: &[u8]| head.starts_with(b"HTTP/1.1 1") && !head.starts_with(b"HTTP/1.1 101");
        while let Some(rest) = raw.get(self.head.end..)
            && let Some(length) = memmem::find(rest, b"\r\n\r\n")
        {
            self.head = self.head.end..self.head.end + length + 4;
            if !is_interim(rest) {
                break;
            }
        }
        self.raw = raw;
        if self.is_chunked() {
            self.raw.ends_with(b"\r\n\r\n")
        } else {
            self.raw.len() == self.head.end + self.body.len()
        }
    }

    /// All received bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.raw
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The value of a header.
    pub(super) fn header(&self, name: header::HeaderName) -> Option<&[u8]> {
        self.headers.get(name).map(header::HeaderValue::as_bytes)
    }

    /// The header lines, without line breaks.
    pub(crate) fn head(&self) -> impl Iterator<Item = &[u8]> {
        let head = self.raw.get(self.head.clone()).unwrap_or_default();
        head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end).filter(|line| !line.is_empty())
    }

    /// The body without chunk framing.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    fn is_chunked(&self) -> bool {
        self.header(header::TRANSFER_ENCODING).is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
    }

    /// The offset in the body of the end of each chunk; empty for a body that is not chunked.
    pub(crate) fn chunk_ends(&self) -> Vec<usize> {
        let mut rest = self.raw.get(self.head.end..).filter(|_| self.is_chunked()).unwrap_or_default();
        let (mut ends, mut end) = (Vec::new(), 0);
        while let Some((line, size @ 1..)) = chunk(rest) {
            end += size;
            ends.push(end);
            rest = rest.get(line + size + 2..).unwrap_or_default();
        }
        ends
    }

    /// Arrival time of the first byte.
    pub(crate) fn first_byte(&self) -> Duration {
        self.first_byte
    }

    /// The `data` lines of a stream of server-sent events; in every engine's streams each line is one event.
    pub(crate) fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let mut length = 0;
        self.body.split_inclusive(|byte| *byte == b'\n').filter_map(move |line| {
            length += line.len();
            let at = self.parts.iter().find(|(end, _)| *end >= length).map(|(_, at)| *at)?;
            Some(Event { data: line.strip_prefix(b"data:")?.trim_ascii(), at })
        })
    }
}

/// Length of the first line of a chunk, line break included, and size of the chunk (RFC 9112, 7.1).
fn chunk(bytes: &[u8]) -> Option<(usize, usize)> {
    let line = bytes.get(..memmem::find(bytes, b"\r\n")?)?;
    let digits = line.split(|byte| *byte == b';').next()?;
    let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?.trim(), 16).ok()?;
    Some((line.len() + 2, size))
}

/// Name and value of a header line.
pub(crate) fn header_of(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_at(memchr::memchr(b':', line)?);
    Some((name, value.get(1..).unwrap_or_default().trim_ascii()))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use http::{HeaderMap, HeaderValue, header};

    use super::Recording;

    /// A response with these header lines, in chunks if there are several parts of the body, each with its time in
    /// milliseconds.
    pub(crate) fn recorded(head: &str, body: &[(&str, u64)]) -> Recording {
        let is_chunked = head.contains("chunked");
        let coding = (header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        let headers: HeaderMap = Some(coding).into_iter().filter(|_| is_chunked).collect();
        let mut recording = Recording::new(200, headers, Duration::from_millis(1));
        let mut raw = format!("HTTP/1.1 200 OK\r\n{head}\r\n");
        for (part, at) in body {
            recording.push(part.as_bytes(), Duration::from_millis(*at));
            raw += &if is_chunked { format!("{:x}\r\n{part}\r\n", part.len()) } else { (*part).to_owned() };
        }
        raw += if is_chunked { "0\r\n\r\n" } else { "" };
        assert!(recording.end(raw.into_bytes()), "one response");
        recording
    }

    #[test]
    fn event_time_is_that_of_its_last_byte() {
        let recording = recorded("Transfer-Encoding: chunked\r\n", &[("data: a\n\ndat", 3), ("a: b\n\n", 8)]);
        let events: Vec<_> = recording.events().map(|e| (e.data.to_vec(), e.at.as_millis())).collect();
        assert_eq!(events, [(b"a".to_vec(), 3), (b"b".to_vec(), 8)]);
        assert_eq!(recording.chunk_ends(), [12, 18]);
    }
}
