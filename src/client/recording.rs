//! A recorded response: its bytes, the time of each read, and the positions of its headers, chunks and events.

use std::ops::Range;
use std::time::Duration;

/// How the end of the body is determined (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    /// The end of the connection.
    Close,
}

/// State of the response after a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    More,
    Whole,
    /// Not valid HTTP/1.1.
    Malformed,
}

/// A response as received so far.
#[derive(Clone, Debug)]
pub struct Recording {
    bytes: Vec<u8>,
    /// For each read: the total number of bytes after it, and the time since the start of the request.
    reads: Vec<(usize, Duration)>,
    head: Option<Head>,
    /// Position of the data of each chunk; one range for a body that is not chunked.
    chunks: Vec<Range<usize>>,
    /// Start of the part that is not parsed yet: the headers, the body, or the next chunk.
    at: usize,
}

#[derive(Clone, Debug)]
struct Head {
    status: u16,
    framing: Framing,
    close: bool,
    range: Range<usize>,
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
    pub(crate) fn new() -> Recording {
        Recording { bytes: Vec::new(), reads: Vec::new(), head: None, chunks: Vec::new(), at: 0 }
    }

    /// Adds the bytes of a read; `at` is the time since the start of the request.
    pub(crate) fn take(&mut self, bytes: &[u8], at: Duration) -> State {
        self.bytes.extend_from_slice(bytes);
        self.reads.push((self.bytes.len(), at));
        while self.head.is_none() {
            match parse_head(&self.bytes, self.at) {
                Some(Ok((head, informational))) => {
                    self.at = head.range.end;
                    self.head = (!informational).then_some(head);
                }
                Some(Err(())) => return State::Malformed,
                None => return State::More,
            }
        }
        match self.head.as_ref().map(|head| head.framing) {
            Some(Framing::Length(length)) => match self.bytes.len().cmp(&(self.at + length)) {
                std::cmp::Ordering::Less => State::More,
                std::cmp::Ordering::Equal => {
                    self.chunks.push(self.at..self.at + length);
                    State::Whole
                }
                std::cmp::Ordering::Greater => State::Malformed,
            },
            Some(Framing::Chunked) => self.parse_chunks(),
            Some(Framing::Close) | None => State::More,
        }
    }

    /// Handles the end of the connection; returns whether the response is complete.
    pub(crate) fn end(&mut self) -> bool {
        let closes = self.head.as_ref().is_some_and(|head| head.framing == Framing::Close);
        if closes {
            self.chunks.push(self.at..self.bytes.len());
        }
        closes
    }

    /// Records the chunks received so far.
    fn parse_chunks(&mut self) -> State {
        loop {
            let rest = self.bytes.get(self.at..).unwrap_or_default();
            let Some(line) = memchr::memmem::find(rest, b"\r\n") else { return State::More };
            let digits = rest.get(..line).and_then(|line| line.split(|byte| *byte == b';').next()).unwrap_or_default();
            let size = std::str::from_utf8(digits).ok().and_then(|text| usize::from_str_radix(text.trim(), 16).ok());
            let Some(size) = size.filter(|size| *size < usize::MAX / 2) else { return State::Malformed };
            let begin = self.at + line + 2;
            if size == 0 {
                // The trailer section ends with an empty line, like the headers.
                let trailers = self.bytes.get(begin - 2..).unwrap_or_default();
                return match memchr::memmem::find(trailers, b"\r\n\r\n") {
                    Some(at) if begin + at + 2 == self.bytes.len() => State::Whole,
                    Some(_) => State::Malformed,
                    None => State::More,
                };
            }
            if self.bytes.len() < begin + size + 2 {
                return State::More;
            }
            self.chunks.push(begin..begin + size);
            self.at = begin + size + 2;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All received bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The status; 0 until the headers are complete.
    pub fn status(&self) -> u16 {
        self.head.as_ref().map_or(0, |head| head.status)
    }

    /// Whether the connection closes after this response.
    pub(crate) fn closes(&self) -> bool {
        self.head.as_ref().is_none_or(|head| head.close || head.framing == Framing::Close)
    }

    /// The header lines, without line breaks.
    pub(crate) fn head(&self) -> impl Iterator<Item = &[u8]> {
        let range = self.head.as_ref().map_or(0..0, |head| head.range.clone());
        let head = self.bytes.get(range).unwrap_or_default();
        head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).filter(|l| !l.is_empty())
    }

    pub(crate) fn is_chunked(&self) -> bool {
        self.head.as_ref().is_some_and(|head| head.framing == Framing::Chunked)
    }

    /// Number of bytes received after the headers, chunk framing included.
    pub(crate) fn body_bytes(&self) -> usize {
        self.head.as_ref().map_or(0, |head| self.bytes.len() - head.range.end)
    }

    /// The body without chunk framing.
    pub fn body(&self) -> Vec<u8> {
        self.chunks.iter().filter_map(|range| self.bytes.get(range.clone())).flatten().copied().collect()
    }

    /// The offset in the body of the end of each chunk.
    pub(crate) fn chunk_ends(&self) -> Vec<usize> {
        let mut end = 0;
        let ends = self.chunks.iter().map(|range| {
            end += range.len();
            end
        });
        ends.collect()
    }

    /// Arrival time of the first byte.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        self.reads.first().map(|(_, at)| *at)
    }

    /// Arrival time of the last of the first `length` bytes of the body.
    fn body_arrival(&self, length: usize) -> Duration {
        let mut left = length;
        let mut raw = self.bytes.len();
        for range in &self.chunks {
            if left <= range.len() {
                raw = range.start + left;
                break;
            }
            left -= range.len();
        }
        self.reads.iter().find(|(end, _)| *end >= raw).or(self.reads.last()).map_or(Duration::ZERO, |(_, at)| *at)
    }

    /// The `data` lines of a stream of server-sent events; in every engine's streams each line is one event.
    pub(crate) fn events<'a>(&self, body: &'a [u8]) -> Vec<Event<'a>> {
        let mut end = 0;
        let lines = body.split_inclusive(|byte| *byte == b'\n').filter_map(|line| {
            end += line.len();
            let data = line.strip_prefix(b"data:")?.trim_ascii();
            Some(Event { data, at: self.body_arrival(end) })
        });
        lines.collect()
    }
}

/// Name and value of a header line.
pub(crate) fn header_of(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = memchr::memchr(b':', line)?;
    let (name, value) = line.split_at(colon);
    Some((name, value.get(1..).unwrap_or_default().trim_ascii()))
}

/// Parses the headers at `from`; the flag marks an informational response. `None` while they are incomplete.
fn parse_head(bytes: &[u8], from: usize) -> Option<Result<(Head, bool), ()>> {
    let rest = bytes.get(from..).unwrap_or_default();
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(rest) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some(Err(())),
    };
    let status = response.code.unwrap_or(0);
    let mut head =
        Head { status, framing: Framing::Close, close: response.version == Some(0), range: from..from + length };
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let value = header.value.trim_ascii();
        if is("content-length") && head.framing != Framing::Chunked {
            match std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()) {
                Some(length) => head.framing = Framing::Length(length),
                None => return Some(Err(())),
            }
        } else if is("transfer-encoding") && value.eq_ignore_ascii_case(b"chunked") {
            head.framing = Framing::Chunked;
        } else if is("connection") {
            head.close |= value.eq_ignore_ascii_case(b"close");
        }
    }
    if matches!(status, 204 | 304) {
        head.framing = Framing::Length(0);
    }
    Some(Ok((head, (100..200).contains(&status) && status != 101)))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::{Recording, State};

    /// A recording of these bytes, each read with its time in milliseconds.
    pub(crate) fn recorded(reads: &[(&str, u64)]) -> Recording {
        let mut recording = Recording::new();
        let mut state = State::More;
        for (bytes, at) in reads {
            assert_eq!(state, State::More, "no bytes after the end");
            state = recording.take(bytes.as_bytes(), Duration::from_millis(*at));
        }
        assert!(state == State::Whole || recording.end(), "the response is complete");
        recording
    }

    const STREAM: &str = "HTTP/1.1 200 OK\r\nDate: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: a\n\n\r\n12;e=1\r\n\
                          data: b\n\ndata: c\n\n\r\n0\r\n\r\n";

    #[test]
    fn stream_split_at_any_read_has_the_same_chunks() {
        for cut in 1..STREAM.len() {
            let (head, tail) = STREAM.split_at(cut);
            let recording = recorded(&[(head, 1), (tail, 5)]);
            assert_eq!((recording.status(), recording.closes(), recording.is_chunked()), (200, false, true));
            assert_eq!(recording.body(), b"data: a\n\ndata: b\n\ndata: c\n\n", "cut at {cut}");
            assert_eq!(recording.chunk_ends(), [9, 27]);
        }
    }

    #[test]
    fn event_time_is_that_of_its_last_byte() {
        let at = STREAM.find("data: b").unwrap() + 4;
        let recording = recorded(&[(&STREAM[..at], 3), (&STREAM[at..], 8)]);
        let body = recording.body();
        let events: Vec<_> = recording.events(&body).iter().map(|e| (e.data.to_vec(), e.at.as_millis())).collect();
        assert_eq!(events, [(b"a".to_vec(), 3), (b"b".to_vec(), 8), (b"c".to_vec(), 8)]);
        assert_eq!(recording.first_byte(), Some(Duration::from_millis(3)));
    }

    #[test]
    fn bodies_end_according_to_their_framing() {
        let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno";
        assert_eq!((recorded(&[(interim, 1)]).status(), recorded(&[(interim, 1)]).body()), (404, b"no".to_vec()));
        let close = recorded(&[("HTTP/1.0 200 OK\r\n\r\nabc", 1)]);
        assert_eq!((close.closes(), close.body()), (true, b"abc".to_vec()));
        let trailers = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n";
        assert_eq!(recorded(&[(trailers, 1)]).body(), b"x");
    }

    #[test]
    fn malformed_response_is_reported() {
        let head = "HTTP/1.1 200 OK\r\n";
        for wrong in [
            "\x16\x03\x01 no HTTP\r\n".to_owned(),
            format!("{head}Content-Length: x\r\n\r\n"),
            format!("{head}Content-Length: 1\r\n\r\nab"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\nxyz\r\n"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore"),
        ] {
            assert_eq!(Recording::new().take(wrong.as_bytes(), Duration::ZERO), State::Malformed, "{wrong:?}");
        }
    }
}
