//! Both directions of one HTTP/1.1 connection.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use crate::body::{BadBody, Body, items, request_body, response_body};
use crate::head;
use crate::head::Gather;
use crate::message::{Fault, ResponseHead, Visitor};
use crate::websocket::Extensions;

/// The first part of the HTTP/2 connection preface (RFC 9113, section 3.4), which parses as the headers of a request.
/// The method PRI has no other use (RFC 7540, section 11.6), so the parser need not wait for the `SM` that follows.
pub(super) const HTTP2_PREFACE_HEAD: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

/// The start of every HTTP/1 response (RFC 9112, section 2.3).
const RESPONSE_START: &[u8] = b"HTTP/1.";

/// Limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of the headers of a message, including the empty line.
    pub head_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { head_bytes: 64 * 1024 }
    }
}

/// The properties of a request that determine where its response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Head,
    Connect,
    /// Any other method, or a request with incomplete headers.
    Other,
}

#[derive(Clone, Debug)]
enum RequestAt {
    /// Before a request line; empty lines are skipped (RFC 9112, section 2.2).
    Between,
    /// In the method.
    Method,
    /// In headers whose method is complete. `begun` is false while the bytes may still be the HTTP/2 preface.
    Head {
        begun: bool,
    },
    Body(Body),
}

#[derive(Clone, Debug)]
enum ResponseAt {
    /// Before a status line, or in headers.
    Head,
    Body(Body),
}

/// Parses one connection as a passive observer. Feed the bytes of each direction in the order in which they were read.
///
/// Ambiguous input ends in a [`Fault`]: the connection cannot be parsed further, and the parser must not be used again.
/// If the first bytes are not an HTTP/1 request (`NotHttp`, `Tls`, `Http2`), no request is reported. A request is
/// reported once its method is complete. Its start time is the time of its first byte, which may be earlier than the
/// time in the previous call to the visitor.
///
/// Holds memory only for pieces of split headers and, after the first request, a few bytes for the queue.
#[derive(Clone, Debug)]
pub struct Http1 {
    limits: Limits,
    /// Requests that have begun and have no complete response, oldest first. The request being sent is the last of
    /// these. If its response is already complete, the queue is empty.
    waiting: VecDeque<RequestKind>,
    request_at: RequestAt,
    response_at: ResponseAt,
    request_head: Gather,
    response_head: Gather,
    /// Requests begun so far.
    begun: u64,
    /// No request has been read yet.
    fresh: bool,
    /// See [`Http1::left`].
    left: u32,
}

impl Http1 {
    /// A connection without any bytes yet.
    pub fn new(limits: Limits) -> Http1 {
        Http1 {
            limits,
            waiting: VecDeque::new(),
            request_at: RequestAt::Between,
            response_at: ResponseAt::Head,
            request_head: Gather::default(),
            response_head: Gather::default(),
            begun: 0,
            fresh: true,
            left: 0,
        }
    }

    /// Prefetches the memory that the next bytes of a response need.
    pub(super) fn warm(&self) {
        let in_head = matches!(self.response_at, ResponseAt::Head);
        black_box((in_head, self.waiting.len(), self.begun));
    }

    /// The server sent its FIN at `at`: ends a body that is delimited by the end of the connection. A truncated
    /// response stays open (see [`Http1::open`]).
    pub fn response_finished(&mut self, at: Instant, visitor: &mut impl Visitor) {
        self.response_head.clear();
        if let ResponseAt::Body(Body::UntilClose) = self.response_at {
            self.end_response(at, visitor);
        }
    }

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        self.request_head.holds() + self.response_head.holds() + self.waiting.capacity()
    }

    /// The limits.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Number of bytes that belong to the next protocol, at the end of the slice that caused [`Fault::Http2`] or
    /// [`Fault::Upgraded`]. For an HTTP/2 preface this includes the bytes after its headers (`SM`).
    pub fn left(&self) -> usize {
        self.left as usize
    }

    /// The client's bytes so far, while they do not form a request yet.
    pub(super) fn partial_request(&self) -> Option<&[u8]> {
        (self.begun == 0).then(|| self.request_head.gathered())
    }

    /// Index of the request that the next response belongs to; the first request of the connection is 0.
    pub fn current_response(&self) -> u64 {
        self.begun - self.waiting.len() as u64
    }

    /// Index of the newest request.
    fn newest_request(&self) -> u64 {
        self.begun.saturating_sub(1)
    }

    /// Number of requests that have begun without a complete response.
    pub fn open(&self) -> usize {
        self.waiting.len()
    }

    /// True while a request has begun and is not fully sent.
    pub fn request_open(&self) -> bool {
        matches!(self.request_at, RequestAt::Head { begun: true } | RequestAt::Body(_))
    }

    /// True after the headers of a final response, until its body is complete.
    pub fn response_open(&self) -> bool {
        matches!(self.response_at, ResponseAt::Body(_))
    }

    /// Parses `bytes`, sent by the client and read at `at`.
    ///
    /// # Errors
    /// Why the connection cannot be parsed; final.
    pub fn request(&mut self, mut bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let cap = self.limits.head_bytes;
        while !bytes.is_empty() {
            let number = self.newest_request();
            match &mut self.request_at {
                RequestAt::Body(body) => {
                    let read = body.read(bytes, |data| visitor.request_body(number, data, at));
                    let Some(rest) = read.map_err(|BadBody| Fault::MalformedRequest)? else { return Ok(()) };
                    bytes = rest;
                    self.end_request(at, visitor);
                }
                RequestAt::Between => {
                    let line_ends = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                    bytes = bytes.get(line_ends..).unwrap_or_default();
                    if !bytes.is_empty() {
                        self.request_at = RequestAt::Method;
                    }
                }
                RequestAt::Method => {
                    if self.method_ends(bytes)? {
                        let begun = !(self.fresh && self.request_head.starts_with(bytes, b"PRI "));
                        self.fresh = false;
                        if begun {
                            self.begin_request(self.request_head.first(at), visitor);
                        }
                        self.request_at = RequestAt::Head { begun };
                    } else {
                        return self
                            .request_head
                            .add(bytes, at, cap)
                            .map(drop)
                            .map_err(|bad| bad.fault(Fault::MalformedRequest));
                    }
                }
                RequestAt::Head { begun } => {
                    let begun = *begun;
                    let first = self.request_head.first(at);
                    let whole =
                        self.request_head.add(bytes, at, cap).map_err(|bad| bad.fault(Fault::MalformedRequest))?;
                    let Some(whole) = whole else { return Ok(()) };
                    if !begun {
                        if *whole.head == *HTTP2_PREFACE_HEAD {
                            self.left = whole.rest.len() as u32;
                            return Err(Fault::Http2);
                        }
                        self.begin_request(first, visitor);
                    }
                    self.read_request_head(&whole.head, at, visitor)?;
                    bytes = whole.rest;
                }
            }
        }
        Ok(())
    }

    /// True when the method of the current request ends within `bytes`, that is, with a space.
    fn method_ends(&self, bytes: &[u8]) -> Result<bool, Fault> {
        if self.fresh {
            match self.request_head.is_tls(bytes) {
                Some(true) => return Err(Fault::Tls),
                Some(false) if self.request_head.gathered().first().is_none_or(|byte| is_token(*byte)) => {}
                Some(false) => return Err(Fault::NotHttp),
                None => return Ok(false),
            }
        }
        let window = self.request_head.window(bytes, self.limits.head_bytes);
        match window.iter().enumerate().find(|(_, byte)| !is_token(**byte)) {
            None => Ok(false),
            Some((index, b' ')) if index > 0 || self.request_head.len() > 0 => Ok(true),
            Some(_) if self.fresh => Err(Fault::NotHttp),
            Some(_) => Err(Fault::MalformedRequest),
        }
    }

    fn begin_request(&mut self, first: Instant, visitor: &mut impl Visitor) {
        self.waiting.push_back(RequestKind::Other);
        self.begun += 1;
        // The return value is ignored: the end of the response has to be found even if the visitor does not follow the
        // request.
        visitor.request_begin(self.newest_request(), first);
    }

    fn read_request_head(&mut self, head: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let number = self.newest_request();
        let (kind, body) = head::split_request(head, |head| {
            let body = request_body(head.minor, head.headers)?;
            visitor.request_head(number, head, at);
            // Methods are case-sensitive (RFC 9110, section 9.1).
            let kind = match head.method {
                "HEAD" => RequestKind::Head,
                "CONNECT" => RequestKind::Connect,
                _ => RequestKind::Other,
            };
            Ok((kind, body))
        })
        .map_err(|bad| bad.fault(Fault::MalformedRequest))?
        .map_err(|BadBody| Fault::MalformedRequest)?;
        // `None` if the response was complete before the request headers.
        if let Some(newest) = self.waiting.back_mut() {
            *newest = kind;
        }
        match body {
            Some(body) => self.request_at = RequestAt::Body(body),
            None => self.end_request(at, visitor),
        }
        Ok(())
    }

    fn end_request(&mut self, at: Instant, visitor: &mut impl Visitor) {
        self.request_at = RequestAt::Between;
        visitor.request_end(self.newest_request(), at);
    }

    /// Parses `bytes`, sent by the server and read at `at`.
    ///
    /// # Errors
    /// Why the connection cannot be parsed; final.
    pub fn response(&mut self, mut bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let number = self.current_response();
            match &mut self.response_at {
                ResponseAt::Body(body) => {
                    let read = body.read(bytes, |data| visitor.response_body(number, data, at));
                    let Some(rest) = read.map_err(|BadBody| Fault::MalformedResponse)? else { return Ok(()) };
                    bytes = rest;
                    self.end_response(at, visitor);
                }
                ResponseAt::Head => {
                    let Some(kind) = self.waiting.front().copied() else { return Err(Fault::UnexpectedResponse) };
                    let cap = self.limits.head_bytes;
                    let window = self.response_head.window(bytes, cap);
                    let start = self.response_head.gathered().iter().chain(window);
                    match self.response_head.is_tls(window) {
                        Some(true) => return Err(Fault::Tls),
                        Some(false) if start.zip(RESPONSE_START).any(|(byte, expected)| byte != expected) => {
                            return Err(Fault::MalformedResponse);
                        }
                        _ => {}
                    }
                    let whole =
                        self.response_head.add(bytes, at, cap).map_err(|bad| bad.fault(Fault::MalformedResponse))?;
                    let Some(whole) = whole else { return Ok(()) };
                    self.left = whole.rest.len() as u32;
                    self.read_response_head(kind, &whole.head, at, visitor)?;
                    bytes = whole.rest;
                }
            }
        }
        Ok(())
    }

    fn read_response_head(
        &mut self,
        kind: RequestKind,
        head: &[u8],
        at: Instant,
        visitor: &mut impl Visitor,
    ) -> Result<(), Fault> {
        let number = self.current_response();
        // After an upgrade in the middle of a request or with pipelined requests, it is ambiguous which bytes belong to
        // which protocol.
        let may_upgrade = !self.request_open() && self.waiting.len() == 1;
        let follows = head::split_response(head, |head| {
            let follows = Follows::of(kind, head, may_upgrade)?;
            match follows {
                Follows::Response | Follows::Http2 => visitor.interim(number, head.status, at),
                Follows::Nothing | Follows::Body(_) | Follows::WebSocket(_) | Follows::Protocol => {
                    visitor.response_head(number, head, at)
                }
            }
            Ok(follows)
        })
        .map_err(|bad| bad.fault(Fault::MalformedResponse))?
        .map_err(|BadBody| Fault::MalformedResponse)?;
        match follows {
            Follows::Response => {}
            Follows::Nothing => self.end_response(at, visitor),
            Follows::Body(body) => self.response_at = ResponseAt::Body(body),
            Follows::Http2 => return Err(Fault::Http2),
            Follows::WebSocket(extensions) => return Err(Fault::WebSocket(extensions)),
            Follows::Protocol => return Err(Fault::Upgraded),
        }
        Ok(())
    }

    fn end_response(&mut self, at: Instant, visitor: &mut impl Visitor) {
        let number = self.current_response();
        self.response_at = ResponseAt::Head;
        self.waiting.pop_front();
        visitor.response_end(number, at);
    }
}

/// What follows the headers of a response.
enum Follows {
    /// Another response to the same request: this one was interim.
    Response,
    /// The next message.
    Nothing,
    Body(Body),
    /// HTTP/2, with the response to the same request on stream 1 (RFC 7540, section 3.2).
    Http2,
    WebSocket(Extensions),
    /// Another protocol.
    Protocol,
}

impl Follows {
    fn of(kind: RequestKind, head: &ResponseHead<'_>, may_upgrade: bool) -> Result<Follows, BadBody> {
        match (head.status, kind) {
            // No status class is below 1xx (RFC 9110, section 15), so the length of such a message is undefined.
            (0..100, _) => Err(BadBody),
            (101, _) if may_upgrade && is_h2c(head) => Ok(Follows::Http2),
            (101, _) if may_upgrade && head.is_websocket() => {
                Ok(Follows::WebSocket(Extensions::of(head.values("sec-websocket-extensions"))))
            }
            (101, _) | (200..300, RequestKind::Connect) => Ok(Follows::Protocol),
            (100..200, _) => Ok(Follows::Response),
            (_, RequestKind::Head) => Ok(Follows::Nothing),
            (status, RequestKind::Connect | RequestKind::Other) => {
                Ok(response_body(status, head.headers)?.map_or(Follows::Nothing, Follows::Body))
            }
        }
    }
}

fn is_h2c(head: &ResponseHead<'_>) -> bool {
    head.header("upgrade").is_some_and(|protocols| items(protocols).eq([b"h2c"]))
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
