//! Finds the end of the headers, even if they arrive in pieces, and splits them into fields.

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::time::Instant;

use httparse::{Error, Header, ParserConfig, Request, Response, Status};
use memchr::memchr_iter;

use crate::message::{Fault, RequestHead, ResponseHead};

/// Maximum number of header fields split on the stack; real messages have fewer.
const USUAL_FIELDS: usize = 128;

/// Maximum number of header fields.
const MAX_FIELDS: usize = 512;

/// Why the headers cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    /// More bytes or fields than the limit.
    TooLarge,
    /// Not allowed by RFC 9112.
    Malformed,
}

impl BadHead {
    /// The fault of the connection; malformed headers cause `malformed`.
    pub(super) fn fault(self, malformed: Fault) -> Fault {
        match self {
            BadHead::TooLarge => Fault::HeadTooLarge,
            BadHead::Malformed => malformed,
        }
    }
}

/// The pieces of incomplete headers.
#[derive(Clone, Debug)]
struct Pieces {
    bytes: Vec<u8>,
    /// When the first piece was read.
    first: Instant,
}

impl Pieces {
    /// Adds a piece. The buffer doubles like a `Vec`, but its capacity never exceeds `cap`. The caller ensures that all
    /// pieces together fit into `cap`.
    fn add(&mut self, piece: &[u8], cap: usize) {
        let needed = self.bytes.len() + piece.len();
        if needed > self.bytes.capacity() {
            let capacity = needed.max(2 * self.bytes.len()).min(cap);
            self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(piece);
    }
}

/// Collects the headers of one message. Holds memory only between the pieces of split headers.
#[derive(Clone, Debug, Default)]
pub(super) struct Gather(Option<Box<Pieces>>);

/// Complete headers, including the empty line.
pub(super) struct Whole<'a> {
    /// Borrowed from the input slice, or assembled from pieces.
    pub(super) head: Cow<'a, [u8]>,
    /// The bytes after the headers.
    pub(super) rest: &'a [u8],
}

impl Gather {
    /// The pieces received so far.
    pub(super) fn gathered(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |pieces| &pieces.bytes)
    }

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        self.0.as_ref().map_or(0, |pieces| size_of::<Pieces>() + pieces.bytes.capacity())
    }

    /// Number of bytes received so far.
    pub(super) fn len(&self) -> usize {
        self.gathered().len()
    }

    /// When the first byte of the headers was read; `at` if it is among the current bytes.
    pub(super) fn first(&self, at: Instant) -> Instant {
        self.0.as_ref().map_or(at, |pieces| pieces.first)
    }

    /// True when the collected bytes followed by `bytes` start with `prefix`.
    pub(super) fn starts_with(&self, bytes: &[u8], prefix: &[u8]) -> bool {
        self.gathered().iter().chain(bytes).take(prefix.len()).eq(prefix)
    }

    /// True if the collected bytes followed by `bytes` begin a TLS record: a handshake message or an alert, version 3.x
    /// (RFC 8446, section 5.1). `None` while one more byte is needed.
    pub(super) fn is_tls(&self, bytes: &[u8]) -> Option<bool> {
        let mut start = self.gathered().iter().chain(bytes);
        match (start.next(), start.next()) {
            (Some(0x15 | 0x16), None) => None,
            (Some(0x15 | 0x16), Some(3)) => Some(true),
            _ => Some(false),
        }
    }

    /// The part of `bytes` that headers of at most `cap` bytes may extend into.
    pub(super) fn window<'a>(&self, bytes: &'a [u8], cap: usize) -> &'a [u8] {
        bytes.get(..cap.saturating_sub(self.len())).unwrap_or(bytes)
    }

    /// Adds `bytes`. `None` when they do not contain the end of the headers.
    pub(super) fn add<'a>(&mut self, bytes: &'a [u8], at: Instant, cap: usize) -> Result<Option<Whole<'a>>, BadHead> {
        let window = self.window(bytes, cap);
        let Some(end) = end_of_head(self.gathered(), window) else {
            if self.len() + window.len() >= cap {
                return Err(BadHead::TooLarge);
            }
            let pieces = self.0.get_or_insert_with(|| Box::new(Pieces { bytes: Vec::new(), first: at }));
            pieces.add(window, cap);
            return Ok(None);
        };
        let (last, rest) = bytes.split_at_checked(end).ok_or(BadHead::Malformed)?;
        let head = match self.0.take() {
            None => Cow::Borrowed(last),
            Some(mut pieces) => {
                pieces.add(last, cap);
                Cow::Owned(pieces.bytes)
            }
        };
        Ok(Some(Whole { head, rest }))
    }

    /// Frees the collected bytes.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

/// Number of bytes at the start of `bytes` that belong to the headers, up to and including the first empty line.
/// `bytes` continue `before`. Only `bytes` and the last two bytes of `before` are examined, so headers in small pieces
/// cost no more than in large pieces.
fn end_of_head(before: &[u8], bytes: &[u8]) -> Option<usize> {
    let straddling = match before {
        [.., b'\n', b'\r'] => bytes.starts_with(b"\n").then_some(1),
        [.., b'\n'] => empty_line(bytes),
        _ => None,
    };
    straddling.or_else(|| {
        memchr_iter(b'\n', bytes).find_map(|line_end| {
            let next = line_end + 1;
            empty_line(bytes.get(next..)?).map(|length| next + length)
        })
    })
}

/// Length of the empty line at the start of `bytes`. A bare LF counts as a line end (RFC 9112, section 2.2).
fn empty_line(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

/// Splits the headers of a request and passes them to `seen`.
pub(super) fn split_request<T>(head: &[u8], mut seen: impl FnMut(&RequestHead<'_>) -> T) -> Result<T, BadHead> {
    with_fields(|fields| {
        let mut request = Request::new(&mut []);
        whole(request.parse_with_uninit_headers(head, fields)?)?;
        let Request { method: Some(method), path: Some(target), version: Some(minor), headers } = request else {
            return Err(Error::NewLine);
        };
        Ok(seen(&RequestHead { method, target, minor, headers }))
    })
}

/// Splits the headers of a response and passes them to `seen`.
pub(super) fn split_response<T>(head: &[u8], mut seen: impl FnMut(&ResponseHead<'_>) -> T) -> Result<T, BadHead> {
    with_fields(|fields| {
        let mut response = Response::new(&mut []);
        whole(ParserConfig::default().parse_response_with_uninit_headers(&mut response, head, fields)?)?;
        let Response { code: Some(status), version: Some(minor), headers, .. } = response else {
            return Err(Error::NewLine);
        };
        Ok(seen(&ResponseHead { status, minor, headers }))
    })
}

/// Rejects headers that httparse considers incomplete, although they end with an empty line.
fn whole(status: Status<usize>) -> Result<(), Error> {
    if status.is_complete() { Ok(()) } else { Err(Error::NewLine) }
}

/// Runs `split` with room for the usual number of fields, and again with room for the maximum if needed.
fn with_fields<'b, T>(mut split: impl FnMut(&mut [MaybeUninit<Header<'b>>]) -> Result<T, Error>) -> Result<T, BadHead> {
    let mut usual = [const { MaybeUninit::uninit() }; USUAL_FIELDS];
    let result = match split(&mut usual) {
        Err(Error::TooManyHeaders) => split(&mut vec![MaybeUninit::uninit(); MAX_FIELDS]),
        result => result,
    };
    result.map_err(|error| match error {
        Error::TooManyHeaders => BadHead::TooLarge,
        _ => BadHead::Malformed,
    })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests may read the clock")]
mod tests {
    use super::*;

    const CAP: usize = 50;

    #[test]
    fn headers_within_one_slice_are_not_copied() {
        let bytes = b"HTTP/1.1 200 OK\r\n\r\nbody";
        let whole = Gather::default().add(bytes, Instant::now(), CAP).unwrap().unwrap();
        assert!(matches!(whole.head, Cow::Borrowed(b"HTTP/1.1 200 OK\r\n\r\n")));
        assert_eq!(whole.rest, b"body");
    }

    #[test]
    fn tls_record_is_recognized_by_two_bytes() {
        let mut gather = Gather::default();
        assert_eq!(gather.is_tls(b"GET"), Some(false));
        assert_eq!(gather.is_tls(b"\x16\x03\x01"), Some(true));
        assert_eq!(gather.is_tls(b"\x15\x03"), Some(true));
        assert_eq!(gather.is_tls(b"\x16\x02"), Some(false));
        assert_eq!(gather.is_tls(b"\x16"), None);
        gather.add(b"\x16", Instant::now(), CAP).unwrap();
        assert_eq!((gather.is_tls(b"\x03"), gather.is_tls(b" ")), (Some(true), Some(false)));
    }

    #[test]
    fn memory_is_held_only_between_pieces_of_headers() {
        let at = Instant::now();
        let mut gather = Gather::default();
        assert!(gather.add(b"HTTP/1.1 200 OK\r", at, CAP).unwrap().is_none());
        assert!(gather.0.is_some());
        assert!(gather.add(b"\n\r\n", at, CAP).unwrap().is_some());
        assert!(gather.0.is_none());
        assert!(gather.add(b"HTTP/1.1 200 OK\r", at, CAP).unwrap().is_none());
        gather.clear();
        assert!(gather.0.is_none());
    }

    #[test]
    fn collected_headers_never_exceed_the_cap() {
        let mut gather = Gather::default();
        for _ in 0..CAP - 1 {
            assert!(gather.add(b"x", Instant::now(), CAP).unwrap().is_none());
            assert!(gather.0.as_ref().unwrap().bytes.capacity() <= CAP);
        }
        assert_eq!(gather.len(), CAP - 1);
        assert_eq!(gather.add(&[b'x'; 1000], Instant::now(), CAP).err(), Some(BadHead::TooLarge));
        assert_eq!(gather.len(), CAP - 1);
    }
}
