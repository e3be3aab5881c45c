//! Finds the end of the headers, even if they arrive in pieces, and splits them into fields.

use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::time::Instant;

use httparse::{Error, Header, ParserConfig, Request, Response, Status};
use memchr::{memchr, memchr_iter};

use crate::http1::lenient;
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
    /// Which of the next bytes are omitted.
    omits: Omits,
}

/// Bytes omitted from headers that exceed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Omits {
    Nothing,
    /// The rest of this line.
    Line,
    /// The next line, if it continues an omitted one.
    Continuation,
}

/// Maximum length of a name that may still be that of a needed field.
const MAX_NAME: usize = 256;

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

    /// Skips omitted bytes at the start of `bytes`.
    fn skip<'a>(&mut self, mut bytes: &'a [u8]) -> &'a [u8] {
        while let Some(first) = bytes.first() {
            match self.omits {
                Omits::Nothing => break,
                Omits::Continuation if matches!(first, b' ' | b'\t') => self.omits = Omits::Line,
                Omits::Continuation => self.omits = Omits::Nothing,
                Omits::Line => {
                    let Some(end) = memchr(b'\n', bytes) else { return &[] };
                    bytes = bytes.get(end + 1..).unwrap_or_default();
                    self.omits = Omits::Continuation;
                }
            }
        }
        bytes
    }

    /// Removes the fields that are not needed to find the end of the message and that `keeps` does not accept. Fails
    /// unless this frees half of the bytes, so that headers of any length cost two copies at most.
    fn compact(&mut self, keeps: &dyn Fn(&str) -> bool) -> Result<(), BadHead> {
        let all = std::mem::take(&mut self.bytes);
        let mut keeping = true;
        for (place, line) in all.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let is_whole = line.ends_with(b"\n");
            if place > 0 && !lenient::continues(line) {
                keeping = match lenient::name(line) {
                    Some(name) => lenient::frames(name) || keeps(name),
                    None => !is_whole && line.len() < MAX_NAME,
                };
            }
            keeping |= lenient::hides_framing(line);
            if keeping {
                if self.bytes.len() + line.len() > all.len() / 2 {
                    return Err(BadHead::TooLarge);
                }
                self.bytes.extend_from_slice(line);
            } else {
                self.omits = if is_whole { Omits::Continuation } else { Omits::Line };
            }
        }
        if keeping {
            self.omits = Omits::Nothing;
        }
        Ok(())
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

    /// Adds `bytes`. `None` when they do not contain the end of the headers. From headers of more than `cap` bytes, only
    /// needed fields are kept (see [`Pieces::compact`]).
    pub(super) fn add<'a>(
        &mut self,
        mut bytes: &'a [u8],
        at: Instant,
        cap: usize,
        keeps: &dyn Fn(&str) -> bool,
    ) -> Result<Option<Whole<'a>>, BadHead> {
        loop {
            if let Some(pieces) = &mut self.0 {
                bytes = pieces.skip(bytes);
            }
            let window = self.window(bytes, cap);
            if let Some(end) = end_of_head(self.gathered(), window) {
                let (last, rest) = bytes.split_at_checked(end).ok_or(BadHead::Malformed)?;
                let head = match self.0.take() {
                    None => Cow::Borrowed(last),
                    Some(mut pieces) => {
                        pieces.add(last, cap);
                        Cow::Owned(pieces.bytes)
                    }
                };
                return Ok(Some(Whole { head, rest }));
            }
            let is_full = self.len() + window.len() >= cap;
            let pieces = self.pieces(at);
            pieces.add(window, cap);
            if !is_full {
                return Ok(None);
            }
            pieces.compact(keeps)?;
            bytes = bytes.get(window.len()..).unwrap_or_default();
        }
    }

    /// Adds `bytes` that are not headers; fails if there are more than `cap`.
    pub(super) fn hold(&mut self, bytes: &[u8], at: Instant, cap: usize) -> Result<(), BadHead> {
        if self.len() + bytes.len() > cap {
            return Err(BadHead::TooLarge);
        }
        self.pieces(at).add(bytes, cap);
        Ok(())
    }

    /// Takes the bytes and the time of the first one.
    pub(super) fn take(&mut self) -> Option<(Vec<u8>, Instant)> {
        self.0.take().map(|pieces| (pieces.bytes, pieces.first))
    }

    fn pieces(&mut self, first: Instant) -> &mut Pieces {
        self.0.get_or_insert_with(|| Box::new(Pieces { bytes: Vec::new(), first, omits: Omits::Nothing }))
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

/// Headers that were split.
#[derive(Debug)]
pub(super) struct Split<T> {
    pub(super) seen: T,
    /// The headers violate RFC 9112, or have more than [`MAX_FIELDS`] fields, of which some were omitted.
    pub(super) lenient: bool,
}

/// Splits the headers of a request and passes them to `seen`. Of too many fields, those that `needs` accepts remain.
pub(super) fn split_request<C, T>(
    head: &[u8],
    context: &mut C,
    needs: fn(&C, &str) -> bool,
    mut seen: impl FnMut(&mut C, &RequestHead<'_>) -> T,
) -> Result<Split<T>, BadHead> {
    let mut split = |head: &[u8], context: &mut C| {
        with_fields(|fields| {
            let mut request = Request::new(&mut []);
            whole(request.parse_with_uninit_headers(head, fields)?)?;
            let Request { method: Some(method), path: Some(target), version: Some(minor), headers } = request else {
                return Err(Error::NewLine);
            };
            Ok(seen(context, &RequestHead { method, target, minor, headers }))
        })
    };
    let mut failure = match split(head, context) {
        Ok(seen) => return Ok(Split { seen, lenient: false }),
        Err(failure) => failure,
    };
    if failure == BadHead::Malformed {
        match split(&lenient::request(head, &|_| true).ok_or(BadHead::Malformed)?, context) {
            Ok(seen) => return Ok(Split { seen, lenient: true }),
            Err(again) => failure = again,
        }
    }
    if failure == BadHead::Malformed {
        return Err(failure);
    }
    let few = lenient::request(head, &|name| needs(context, name)).ok_or(BadHead::Malformed)?;
    Ok(Split { seen: split(&few, context)?, lenient: true })
}

/// Splits the headers of a response and passes them to `seen`.
pub(super) fn split_response<T>(head: &[u8], mut seen: impl FnMut(&ResponseHead<'_>) -> T) -> Result<T, BadHead> {
    let mut split = |head: &[u8]| {
        with_fields(|fields| {
            let mut response = Response::new(&mut []);
            whole(ParserConfig::default().parse_response_with_uninit_headers(&mut response, head, fields)?)?;
            let Response { code: Some(status), version: Some(minor), headers, .. } = response else {
                return Err(Error::NewLine);
            };
            Ok(seen(&ResponseHead { status, minor, headers }))
        })
    };
    match split(head) {
        Err(BadHead::Malformed) => split(&lenient::response(head).ok_or(BadHead::Malformed)?),
        result => result,
    }
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
    const NONE: &dyn Fn(&str) -> bool = &|_| false;

    #[test]
    fn headers_within_one_slice_are_not_copied() {
        let bytes = b"HTTP/1.1 200 OK\r\n\r\nbody";
        let whole = Gather::default().add(bytes, Instant::now(), CAP, NONE).unwrap().unwrap();
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
        gather.add(b"\x16", Instant::now(), CAP, NONE).unwrap();
        assert_eq!((gather.is_tls(b"\x03"), gather.is_tls(b" ")), (Some(true), Some(false)));
    }

    #[test]
    fn memory_is_held_only_between_pieces_of_headers() {
        let at = Instant::now();
        let mut gather = Gather::default();
        assert!(gather.add(b"HTTP/1.1 200 OK\r", at, CAP, NONE).unwrap().is_none());
        assert!(gather.0.is_some());
        assert!(gather.add(b"\n\r\n", at, CAP, NONE).unwrap().is_some());
        assert!(gather.0.is_none());
        assert!(gather.add(b"HTTP/1.1 200 OK\r", at, CAP, NONE).unwrap().is_none());
        gather.clear();
        assert!(gather.0.is_none());
    }

    #[test]
    fn collected_headers_never_exceed_the_cap() {
        let mut gather = Gather::default();
        for _ in 0..CAP - 1 {
            assert!(gather.add(b"x", Instant::now(), CAP, NONE).unwrap().is_none());
            assert!(gather.0.as_ref().unwrap().bytes.capacity() <= CAP);
        }
        assert_eq!(gather.len(), CAP - 1);
        assert_eq!(gather.add(&[b'x'; 1000], Instant::now(), CAP, NONE).err(), Some(BadHead::TooLarge));
        assert!(gather.len() <= CAP);
    }
}
