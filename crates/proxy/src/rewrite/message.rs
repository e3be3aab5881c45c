//! Passes a request and its response to an observer, as HTTP/1.1 messages with their original framing.
//!
//! The observer sees what the client sent and what the server responded, before anything is removed: token counts come
//! from the server's `usage` even if the client does not get them. An HTTP/2 message is passed as the equivalent
//! HTTP/1.1 message.
//!
//! Bytes are forwarded first and passed to the observer afterwards. Until they are sent, they are pending, with their
//! arrival time.

use std::io::Write as _;
use std::time::Instant;

use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};

use crate::relay::Guard;
use tokometer_observe::input::{Close, Direction, TraceParent};

/// One request and its response, which the observer sees as a separate connection.
pub(crate) struct Messages {
    guard: Guard,
    request: Side,
    response: Side,
    /// Not passed to the observer yet, in order.
    pending: Vec<(Instant, Pending)>,
    /// Bytes of the bodies in `pending`.
    pending_bytes: usize,
    /// A chunk with its framing; kept to reuse its memory.
    scratch: Vec<u8>,
    ended: bool,
}

/// An item for the observer.
enum Pending {
    /// The headers of a message.
    Head(Direction, Vec<u8>),
    Trace(TraceParent),
    /// A piece of a body; true at its end.
    Body(Direction, Bytes, bool),
}

/// Maximum number of pending items and of their bytes; limits the memory per connection.
const PENDING: usize = 8;
const PENDING_BYTES: usize = 16 * 1024;

/// One direction.
#[derive(Debug, Default)]
struct Side {
    framing: Framing,
    /// Bytes that are not yet added to the totals.
    unreported: u64,
    ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Framing {
    /// `Content-Length`, no body, or after an upgrade.
    #[default]
    Plain,
    Chunked,
    /// The end of the connection delimits the body.
    Close,
}

/// Bytes after which the totals are updated.
const REPORT_BYTES: u64 = 256 * 1024;

/// Initial capacity for headers.
const HEAD_BYTES: usize = 512;

/// Maximum capacity of `scratch` kept between chunks.
const SCRATCH_BYTES: usize = 2 * 1024;

impl Messages {
    pub(crate) fn new(guard: Guard) -> Messages {
        Messages {
            guard,
            request: Side::default(),
            response: Side::default(),
            pending: Vec::new(),
            pending_bytes: 0,
            scratch: Vec::new(),
            ended: false,
        }
    }

    /// The observer of the request, once it has seen all pending items.
    pub(crate) fn guard(&mut self) -> &mut Guard {
        self.show();
        &mut self.guard
    }

    /// Passes the pending items to the observer.
    pub(crate) fn show(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        for (at, what) in pending.drain(..) {
            match what {
                Pending::Head(direction, head) => self.pass(direction, &head, at),
                Pending::Trace(sent) => self.guard.sent_trace(sent),
                Pending::Body(direction, bytes, end) => self.show_body(direction, &bytes, end, at),
            }
        }
        self.pending = pending;
    }

    fn push(&mut self, what: Pending) {
        if let Pending::Body(_, bytes, _) = &what {
            self.pending_bytes += bytes.len();
        }
        self.pending.push((Instant::now(), what));
        if self.pending.len() >= PENDING || self.pending_bytes > PENDING_BYTES {
            self.show();
        }
    }

    /// The headers of the request; `added` are the headers that the server gets in addition. `has_body`: a body follows
    /// even if no header announces it, as in HTTP/2.
    pub(crate) fn request_head(&mut self, head: &RequestHeader, added: &[(&str, &str)], has_body: bool) {
        let mut text = Vec::with_capacity(HEAD_BYTES);
        text.extend_from_slice(head.method.as_str().as_bytes());
        text.push(b' ');
        text.extend_from_slice(head.raw_path());
        text.extend_from_slice(b" HTTP/1.1\r\n");
        let mut announced = false;
        for (name, value) in &head.headers {
            announced |= matches!(name.as_str(), "content-length" | "transfer-encoding");
            line(&mut text, name.as_str(), value.as_bytes());
        }
        let authority = head.uri.authority().filter(|_| !head.headers.contains_key("host"));
        if let Some(authority) = authority {
            line(&mut text, "host", authority.as_str().as_bytes());
        }
        added.iter().for_each(|(name, value)| line(&mut text, name, value.as_bytes()));
        let chunked = head.headers.contains_key("transfer-encoding");
        if has_body && !announced {
            line(&mut text, "transfer-encoding", b"chunked");
        }
        text.extend_from_slice(b"\r\n");
        self.request.framing = if chunked || (has_body && !announced) { Framing::Chunked } else { Framing::Plain };
        self.request.ended = false;
        self.push(Pending::Head(Direction::Request, text));
    }

    /// The server received this trace context.
    pub(crate) fn sent_trace(&mut self, sent: TraceParent) {
        self.push(Pending::Trace(sent));
    }

    /// Headers of a response, including informational responses. `to_head`: the request was HEAD.
    pub(crate) fn response_head(&mut self, head: &ResponseHeader, to_head: bool) {
        let mut text = Vec::with_capacity(HEAD_BYTES);
        text.extend_from_slice(b"HTTP/1.1 ");
        text.extend_from_slice(head.status.as_str().as_bytes());
        text.extend_from_slice(b" \r\n");
        for (name, value) in &head.headers {
            line(&mut text, name.as_str(), value.as_bytes());
        }
        let code = head.status.as_u16();
        if code == 101 {
            // The client's bytes after the upgrade follow.
            self.request.ended = false;
        }
        let bodiless = to_head || code < 200 || code == 204 || code == 304;
        let length = head.headers.contains_key("content-length");
        let is_chunked = head.headers.contains_key("transfer-encoding");
        let http2 = head.version == http::Version::HTTP_2;
        self.response.framing = match (bodiless, is_chunked, length) {
            (true, ..) | (_, false, true) => Framing::Plain,
            (_, true, _) => Framing::Chunked,
            // HTTP/2 marks the end of a body; a close alone does not.
            _ if http2 => {
                line(&mut text, "transfer-encoding", b"chunked");
                Framing::Chunked
            }
            _ => Framing::Close,
        };
        text.extend_from_slice(b"\r\n");
        self.push(Pending::Head(Direction::Response, text));
    }

    /// A piece of a body, or bytes after an upgrade. `end`: the message is complete.
    pub(crate) fn body(&mut self, direction: Direction, bytes: Bytes, end: bool) {
        self.push(Pending::Body(direction, bytes, end));
    }

    fn show_body(&mut self, direction: Direction, bytes: &[u8], end: bool, at: Instant) {
        let side = self.side(direction);
        if side.ended {
            return;
        }
        side.ended = end;
        if side.framing != Framing::Chunked {
            if !bytes.is_empty() {
                self.pass(direction, bytes, at);
            }
        } else if !bytes.is_empty() || end {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            if !bytes.is_empty() {
                write!(scratch, "{:x}\r\n", bytes.len()).ok();
                scratch.extend_from_slice(bytes);
                scratch.extend_from_slice(b"\r\n");
            }
            if end {
                scratch.extend_from_slice(b"0\r\n\r\n");
            }
            self.pass(direction, &scratch, at);
            // A long prompt in one piece must not occupy memory during the response.
            if scratch.capacity() <= SCRATCH_BYTES {
                self.scratch = scratch;
            }
        }
        if end && direction == Direction::Response && self.response.framing == Framing::Close {
            self.guard.finished(Direction::Response, at);
        }
    }

    /// The trailers of the response, which end it.
    pub(crate) fn trailers<'a>(&mut self, trailers: impl Iterator<Item = (&'a str, &'a [u8])>) {
        self.show();
        if self.response.ended || self.response.framing != Framing::Chunked {
            return;
        }
        let mut text = b"0\r\n".to_vec();
        for (name, value) in trailers {
            line(&mut text, name, value);
        }
        text.extend_from_slice(b"\r\n");
        self.response.ended = true;
        self.pass(Direction::Response, &text, Instant::now());
    }

    /// Ends both messages; only the first call has an effect.
    pub(crate) fn close(&mut self, close: Close) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.show();
        for direction in [Direction::Request, Direction::Response] {
            self.report(direction);
        }
        self.guard.closed(close, Instant::now());
    }

    fn pass(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        self.guard.late(at);
        self.guard.seen(direction, bytes, at);
        let side = self.side(direction);
        side.unreported += bytes.len() as u64;
        if side.unreported >= REPORT_BYTES {
            self.report(direction);
        }
    }

    fn report(&mut self, direction: Direction) {
        let bytes = std::mem::take(&mut self.side(direction).unreported);
        self.guard.stats().bytes(direction).add(bytes);
    }

    fn side(&mut self, direction: Direction) -> &mut Side {
        if direction == Direction::Request { &mut self.request } else { &mut self.response }
    }
}

fn line(into: &mut Vec<u8>, name: &str, value: &[u8]) {
    into.extend_from_slice(name.as_bytes());
    into.extend_from_slice(b": ");
    into.extend_from_slice(value);
    into.extend_from_slice(b"\r\n");
}

impl Drop for Messages {
    /// A stopping runtime drops its tasks: record the end then too.
    fn drop(&mut self) {
        self.close(Close::Drained);
    }
}
