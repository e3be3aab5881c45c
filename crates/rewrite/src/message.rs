//! Passes a request and its response to an observer, as HTTP/1.1 messages with their original framing.
//!
//! The observer sees what the client sent and what the server responded, before anything is removed: token counts come
//! from the server's `usage` even if the client does not get them. An HTTP/2 message is passed as the equivalent
//! HTTP/1.1 message.
//!
//! Bytes are forwarded first and passed to the observer afterwards ([`deferred`](super::deferred)).

use std::io::Write as _;
use std::sync::Arc;

use pingora::http::{RequestHeader, ResponseHeader};

use crate::deferred::{DeferredInput, Input};
use tokometer_observe::input::{Close, Direction, TraceParent};
use tokometer_proxy::relay::{Guard, OpenRequest};

/// The messages of one request and its response.
pub(crate) struct Messages {
    deferred: Arc<DeferredInput>,
    /// Identifies the request.
    id: u64,
    /// The request, among those of its connection.
    open: OpenRequest,
    request: Side,
    response: Side,
    ended: bool,
}

/// One direction.
#[derive(Debug, Default)]
struct Side {
    framing: Framing,
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

impl Messages {
    pub(crate) fn new(deferred: &Arc<DeferredInput>, guard: Guard, open: OpenRequest) -> Messages {
        let id = deferred.begin(guard);
        Messages {
            deferred: Arc::clone(deferred),
            id,
            open,
            request: Side::default(),
            response: Side::default(),
            ended: false,
        }
    }

    /// Identifies the request in [`DeferredInput`].
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn push(&self, input: Input) {
        self.deferred.push(self.id, input);
    }

    fn push_bytes(&self, direction: Direction, write: impl FnOnce(&mut Vec<u8>)) {
        self.deferred.push_bytes(self.id, direction, write);
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
    pub(crate) fn sent_trace(&self, sent: TraceParent) {
        self.push(Input::Trace(sent));
    }

    /// Headers of a response, including informational responses. `to_head`: the request was HEAD.
    pub(crate) fn response_head(&mut self, head: &ResponseHeader, to_head: bool) {
        let code = head.status.as_u16();
        if code == 101 || code >= 200 {
            self.open.set_in_progress();
        }
        if code == 101 {
            // After an upgrade, the client sends more bytes.
            self.request.ended = false;
        }
        let bodiless = to_head || code < 200 || code == 204 || code == 304;
        let length = head.headers.contains_key("content-length");
        let is_chunked = head.headers.contains_key("transfer-encoding");
        // HTTP/2 marks the end of a body. A body without a length is therefore passed as chunks, so that the observer
        // recognizes a close before the end as a truncation.
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
        if end {
            match direction {
                Direction::Request => self.open.set_in_progress(),
                // The server does not wait for the rest of the request, but pingora does.
                Direction::Response if !self.request.ended => self.open.set_incomplete(),
                Direction::Response => {}
            }
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
            self.push(Input::Finished);
        }
    }

    /// The server closed the connection after an upgrade.
    pub(crate) fn finished(&self) {
        self.push(Input::Finished);
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

    /// Ends both messages; only the first call has an effect.
    pub(crate) fn close(&mut self, close: Close) {
        if !std::mem::replace(&mut self.ended, true) {
            self.push(Input::Closed(close));
        }
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
    /// The drain, or a stopping runtime, drops requests that have not ended.
    fn drop(&mut self) {
        self.close(Close::Drained);
    }
}
