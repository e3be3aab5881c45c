//! Passes a request and its response to an observer, as HTTP/1.1 messages with their original framing.
//!
//! The observer sees what the client sent and what the server responded, before anything is removed: token counts come
//! from the server's `usage` even if the client does not get them. An HTTP/2 message is passed as the equivalent
//! HTTP/1.1 message.
//!
//! Bytes are forwarded first and passed to the observer afterwards ([`deferred`](super::deferred)). Until then, they are
//! pending, with their arrival time.

use std::io::Write as _;
use std::time::Instant;

use pingora::http::{RequestHeader, ResponseHeader};

use crate::relay::{Guard, lateness};
use tokometer_observe::input::{Close, Direction, TraceParent};

/// One request and its response, which the observer sees as a separate connection.
pub(crate) struct Messages {
    guard: Guard,
    request: Side,
    response: Side,
    /// Not passed to the observer yet, in order.
    pending: Vec<Pending>,
    /// The bytes of the pending items.
    bytes: Vec<u8>,
    /// The pending items will be passed by [`Deferred`](super::deferred::Deferred).
    is_deferred: bool,
    /// How and when the connection ended.
    close: Option<(Close, Instant)>,
    ended: bool,
}

/// An item for the observer.
struct Pending {
    at: Instant,
    /// Lateness of the thread when the item arrived; the thread may be late again before the item is passed.
    late_ms: u32,
    what: Item,
}

enum Item {
    /// This many bytes of a message.
    Bytes(Direction, usize),
    Trace(TraceParent),
    /// The server closed the connection.
    Finished,
}

/// Maximum number of pending items and of their bytes; limits the memory per connection.
const PENDING: usize = 16;
const PENDING_BYTES: usize = 4 * 1024;

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

impl Messages {
    pub(crate) fn new(guard: Guard) -> Messages {
        Messages {
            guard,
            request: Side::default(),
            response: Side::default(),
            pending: Vec::new(),
            bytes: Vec::new(),
            is_deferred: false,
            close: None,
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
        self.is_deferred = false;
        if self.pending.is_empty() {
            return;
        }
        let (mut pending, mut bytes) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.bytes));
        let mut rest = &bytes[..];
        for Pending { at, late_ms, what } in pending.drain(..) {
            self.guard.late_until(late_ms);
            match what {
                Item::Bytes(direction, length) => {
                    let (these, others) = rest.split_at(length);
                    self.pass(direction, these, at);
                    rest = others;
                }
                Item::Trace(sent) => self.guard.sent_trace(sent),
                Item::Finished => self.guard.finished(Direction::Response, at),
            }
        }
        self.pending = pending;
        // A long prompt must not occupy memory during the response.
        if bytes.capacity() <= PENDING_BYTES {
            bytes.clear();
            self.bytes = bytes;
        }
    }

    /// True once if items are pending: they must be passed later.
    pub(crate) fn must_defer(&mut self) -> bool {
        !self.pending.is_empty() && !std::mem::replace(&mut self.is_deferred, true)
    }

    fn push(&mut self, what: Item) {
        let at = Instant::now();
        self.pending.push(Pending { at, late_ms: lateness(at).total_ms, what });
        if self.pending.len() >= PENDING || self.bytes.len() > PENDING_BYTES {
            self.show();
        }
    }

    /// Pushes the bytes that `write` adds.
    fn push_bytes(&mut self, direction: Direction, write: impl FnOnce(&mut Vec<u8>)) {
        let before = self.bytes.len();
        write(&mut self.bytes);
        self.push(Item::Bytes(direction, self.bytes.len() - before));
    }

    /// The headers of the request; `added` are the headers that the server gets in addition. `has_body`: a body follows
    /// even if no header announces it, as in HTTP/2.
    pub(crate) fn request_head(&mut self, head: &RequestHeader, added: &[(&str, &str)], has_body: bool) {
        let chunked = head.headers.contains_key("transfer-encoding");
        let announced = chunked || head.headers.contains_key("content-length");
        self.request.framing = if chunked || (has_body && !announced) { Framing::Chunked } else { Framing::Plain };
        self.request.ended = false;
        self.push_bytes(Direction::Request, |text| {
            text.extend_from_slice(head.method.as_str().as_bytes());
            text.push(b' ');
            text.extend_from_slice(head.raw_path());
            text.extend_from_slice(b" HTTP/1.1\r\n");
            for (name, value) in &head.headers {
                line(text, name.as_str(), value.as_bytes());
            }
            let authority = head.uri.authority().filter(|_| !head.headers.contains_key("host"));
            if let Some(authority) = authority {
                line(text, "host", authority.as_str().as_bytes());
            }
            added.iter().for_each(|(name, value)| line(text, name, value.as_bytes()));
            if has_body && !announced {
                line(text, "transfer-encoding", b"chunked");
            }
            text.extend_from_slice(b"\r\n");
        });
    }

    /// The server received this trace context.
    pub(crate) fn sent_trace(&mut self, sent: TraceParent) {
        self.push(Item::Trace(sent));
    }

    /// Headers of a response, including informational responses. `to_head`: the request was HEAD.
    pub(crate) fn response_head(&mut self, head: &ResponseHeader, to_head: bool) {
        let code = head.status.as_u16();
        if code == 101 {
            // The client's bytes after the upgrade follow.
            self.request.ended = false;
        }
        let bodiless = to_head || code < 200 || code == 204 || code == 304;
        let length = head.headers.contains_key("content-length");
        let is_chunked = head.headers.contains_key("transfer-encoding");
        // HTTP/2 marks the end of a body; a close alone does not.
        let http2 = head.version == http::Version::HTTP_2;
        let adds_chunks = !bodiless && !is_chunked && !length && http2;
        self.response.framing = match (bodiless, is_chunked || adds_chunks, length) {
            (true, ..) | (_, false, true) => Framing::Plain,
            (_, true, _) => Framing::Chunked,
            _ => Framing::Close,
        };
        self.push_bytes(Direction::Response, |text| {
            text.extend_from_slice(b"HTTP/1.1 ");
            text.extend_from_slice(head.status.as_str().as_bytes());
            text.extend_from_slice(b" \r\n");
            for (name, value) in &head.headers {
                line(text, name.as_str(), value.as_bytes());
            }
            if adds_chunks {
                line(text, "transfer-encoding", b"chunked");
            }
            text.extend_from_slice(b"\r\n");
        });
    }

    /// A piece of a body, or bytes after an upgrade. `end`: the message is complete.
    pub(crate) fn body(&mut self, direction: Direction, bytes: &[u8], end: bool) {
        let side = self.side(direction);
        if side.ended {
            return;
        }
        side.ended = end;
        let framing = side.framing;
        if bytes.len() > PENDING_BYTES {
            self.show();
        }
        if framing != Framing::Chunked {
            if !bytes.is_empty() {
                self.push_bytes(direction, |text| text.extend_from_slice(bytes));
            }
        } else if !bytes.is_empty() || end {
            self.push_bytes(direction, |text| {
                if !bytes.is_empty() {
                    write!(text, "{:x}\r\n", bytes.len()).ok();
                    text.extend_from_slice(bytes);
                    text.extend_from_slice(b"\r\n");
                }
                if end {
                    text.extend_from_slice(b"0\r\n\r\n");
                }
            });
        }
        if end && direction == Direction::Response && framing == Framing::Close {
            self.push(Item::Finished);
        }
    }

    /// The server closed the connection after an upgrade.
    pub(crate) fn finished(&mut self) {
        self.push(Item::Finished);
    }

    /// The trailers of the response, which end it.
    pub(crate) fn trailers<'a>(&mut self, trailers: impl Iterator<Item = (&'a str, &'a [u8])>) {
        if self.response.ended || self.response.framing != Framing::Chunked {
            return;
        }
        self.response.ended = true;
        self.push_bytes(Direction::Response, |text| {
            text.extend_from_slice(b"0\r\n");
            for (name, value) in trailers {
                line(text, name, value);
            }
            text.extend_from_slice(b"\r\n");
        });
    }

    /// The connection ended now; the observer learns it with the next call of [`close`](Messages::close).
    pub(crate) fn end(&mut self, close: Close) {
        self.close.get_or_insert((close, Instant::now()));
    }

    /// Ends both messages; only the first call has an effect.
    pub(crate) fn close(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.show();
        for direction in [Direction::Request, Direction::Response] {
            self.report(direction);
        }
        // A stopping runtime drops its tasks.
        let (close, at) = self.close.unwrap_or_else(|| (Close::Drained, Instant::now()));
        self.guard.closed(close, at);
    }

    fn pass(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
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
    fn drop(&mut self) {
        self.close();
    }
}
