//! Both directions of one HTTP/1.1 connection.

mod body;
mod follows;
mod head;
mod lenient;

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use crate::http1::body::{BadBody, Body, items, request_body};
use crate::http1::follows::{Follows, RequestKind, is_close};
use crate::http1::head::Gather;
use crate::http1::lenient::is_token;
use crate::message::{Activity, Fault, ResponseHead, Visitor};

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
    /// The start of the next request is unknown. See [`Http1`].
    Lost,
}

#[derive(Clone, Debug)]
enum ResponseAt {
    /// Before a status line, or in headers.
    Head,
    Body(Body),
    /// The start of the next response is unknown. See [`Http1`].
    Lost,
}

/// Parses one connection as a passive observer. Feed the bytes of each direction in the order in which they were read.
///
/// A request is reported once its method is complete. Its start time is the time of its first byte, which may be earlier
/// than the time in the previous call to the visitor.
///
/// Parses what servers accept, if it has only one meaning. Otherwise, a [`Fault`] is returned: the affected requests are
/// reported as unobserved, and the rest of that direction is ignored until the parser finds a message boundary again.
/// Keep passing bytes in both directions after these faults. `Http2`, `WebSocket` and `Upgraded` are final.
///
/// - The next request begins where the client sends after the server has responded to everything before, if its headers
///   form a request. The request is reported once its headers are complete.
/// - The next response begins where the server sends after the client, if its bytes are those of a response.
/// - A response without a request belongs to a request that was not recognised; it is reported as unread.
///
/// After a message whose end is unclear (see `body::Framing`), the parser resumes in the same way, without a fault.
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
    /// No request has been read yet; after a TLS handshake or an incomplete method, none that begins there.
    fresh: bool,
    /// The start of the current request is certain. If not, the request is reported after its headers.
    request_certain: bool,
    /// The start of the current response is certain.
    response_certain: bool,
    /// The last bytes were sent by the server.
    server_sent: bool,
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
            request_certain: true,
            response_certain: true,
            server_sent: false,
            left: 0,
        }
    }

    /// A connection without any bytes yet, on which the client does not switch to HTTP/2.
    pub(super) fn without_http2(limits: Limits) -> Http1 {
        Http1 { fresh: false, ..Http1::new(limits) }
    }

    /// A connection whose server responds to an HTTP/2 preface in HTTP/1. The next request has the index `begun`; the
    /// first response belongs to the one before.
    pub(super) fn after_preface(limits: Limits, begun: u64) -> Http1 {
        let waiting = VecDeque::from([RequestKind::Other]);
        let request_at = RequestAt::Lost;
        Http1 { waiting, request_at, begun, fresh: false, request_certain: false, ..Http1::new(limits) }
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

    /// The client's bytes so far, while they do not form a request yet and the server has not sent any.
    pub(super) fn partial_request(&self) -> Option<&[u8]> {
        let is_first = self.begun == 0 && self.response_head.len() == 0;
        (is_first && self.is_certain()).then(|| self.request_head.gathered())
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

    /// True while the start of the next message of both directions is unknown: requests are not found.
    pub(super) fn is_blind(&self) -> bool {
        matches!((&self.request_at, &self.response_at), (RequestAt::Lost, ResponseAt::Lost))
    }

    /// True while every request is found.
    pub(super) fn is_certain(&self) -> bool {
        !matches!(self.request_at, RequestAt::Lost) && self.request_certain && self.response_certain
    }

    /// What the connection waits for. After a request that could not be parsed, the connection is idle once its response
    /// is complete.
    pub(super) fn activity(&self) -> Activity {
        let answered = matches!(self.response_at, ResponseAt::Head) && self.response_head.len() == 0;
        // A server that understands TLS responds to the first bytes of a handshake at once.
        let is_handshake = self.fresh && !self.server_sent;
        let found = match self.request_at {
            RequestAt::Lost => self.server_sent || is_handshake,
            _ => self.request_certain,
        };
        let between = match self.request_at {
            RequestAt::Lost => !is_handshake,
            _ => matches!(self.request_at, RequestAt::Between),
        };
        match self.waiting.len() {
            _ if !(answered && found && self.response_certain) => Activity::InProgress,
            0 if between => Activity::Idle,
            0 => Activity::Incomplete,
            1 if self.request_open() => Activity::Incomplete,
            _ => Activity::InProgress,
        }
    }

    /// Frees the pieces of incomplete headers. Their message is lost.
    pub(super) fn free(&mut self, at: Instant, visitor: &mut impl Visitor) {
        if self.request_head.holds() > 0 {
            self.lose_request(at, visitor);
        }
        if self.response_head.holds() > 0 {
            self.lose_responses(at, visitor);
        }
    }

    /// Takes the bytes that the client sent after asking for a switch to WebSocket, and the time of the first one.
    /// `None` if they were too many.
    pub(super) fn take_held(&mut self, at: Instant) -> Option<(Vec<u8>, Instant)> {
        let is_lost = matches!(self.request_at, RequestAt::Lost);
        (!is_lost).then(|| self.request_head.take().unwrap_or_else(|| (Vec::new(), at)))
    }

    /// Parses `bytes`, sent by the client and read at `at`.
    ///
    /// # Errors
    /// Why the start of the next request is unknown, or the next protocol.
    pub fn request(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let turned = std::mem::take(&mut self.server_sent);
        if matches!(self.request_at, RequestAt::Lost) {
            if !(turned && self.may_resume()) {
                return Ok(());
            }
            (self.request_at, self.request_certain) = (RequestAt::Between, false);
        }
        self.read_requests(bytes, at, visitor)
    }

    /// True if the server has responded to all requests.
    fn may_resume(&self) -> bool {
        match self.response_at {
            ResponseAt::Head => self.waiting.is_empty() && self.response_head.len() == 0,
            ResponseAt::Body(_) => false,
            ResponseAt::Lost => true,
        }
    }

    fn read_requests(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let result = self.parse_requests(bytes, at, visitor);
        match result {
            Err(Fault::Http2) | Ok(()) => result,
            Err(_) => {
                let is_news = self.request_certain && self.response_certain;
                self.fresh &= matches!(result, Err(Fault::Tls));
                self.lose_request(at, visitor);
                if is_news { result } else { Ok(()) }
            }
        }
    }

    fn parse_requests(&mut self, mut bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let cap = self.limits.head_bytes;
        while !bytes.is_empty() {
            let number = self.newest_request();
            match &mut self.request_at {
                RequestAt::Lost => return Ok(()),
                RequestAt::Body(body) => {
                    let read = body.read(bytes, |data| visitor.request_body(number, data, at));
                    let Some(rest) = read.map_err(|BadBody| Fault::MalformedRequest)? else { return Ok(()) };
                    bytes = rest;
                    let unclear = body.is_unclear();
                    self.end_request(unclear, at, visitor);
                }
                RequestAt::Between => {
                    if self.waiting.back() == Some(&RequestKind::WebSocket) {
                        return self
                            .request_head
                            .hold(bytes, at, cap)
                            .map_err(|bad| bad.fault(Fault::MalformedRequest));
                    }
                    let line_ends = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                    bytes = bytes.get(line_ends..).unwrap_or_default();
                    if !bytes.is_empty() {
                        self.request_at = RequestAt::Method;
                    }
                }
                RequestAt::Method => {
                    if self.method_ends(bytes)? {
                        let may_be_preface = self.fresh && self.request_head.starts_with(bytes, b"PRI ");
                        let begun = self.request_certain && !may_be_preface;
                        self.fresh = false;
                        if begun {
                            self.begin_request(self.request_head.first(at), visitor);
                        }
                        self.request_at = RequestAt::Head { begun };
                    } else {
                        return self
                            .request_head
                            .hold(bytes, at, cap)
                            .map_err(|bad| bad.fault(Fault::MalformedRequest));
                    }
                }
                RequestAt::Head { begun } => {
                    let begun = *begun;
                    let first = self.request_head.first(at);
                    let keeps = &|name: &str| visitor.needs(name);
                    let whole = self
                        .request_head
                        .add(bytes, at, cap, keeps)
                        .map_err(|bad| bad.fault(Fault::MalformedRequest))?;
                    let Some(whole) = whole else { return Ok(()) };
                    if !begun && *whole.head == *HTTP2_PREFACE_HEAD {
                        self.left = whole.rest.len() as u32;
                        return Err(Fault::Http2);
                    }
                    self.read_request_head(&whole.head, Some(first).filter(|_| !begun), at, visitor)?;
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

    /// `first`: the time of the first byte, if the request has not begun yet.
    fn read_request_head(
        &mut self,
        head: &[u8],
        first: Option<Instant>,
        at: Instant,
        visitor: &mut impl Visitor,
    ) -> Result<(), Fault> {
        let mut unbegun = first;
        let mut visitor = visitor;
        let split = head::split_request(head, &mut visitor, needs, |visitor, head| {
            if let Some(first) = unbegun.take() {
                self.begin_request(first, *visitor);
            }
            let number = self.newest_request();
            // Reported even if the end of the request is unclear, because the headers name its tenant.
            visitor.request_head(number, head, at);
            (RequestKind::of(head), request_body(head.minor, head.headers))
        })
        .map_err(|bad| bad.fault(Fault::MalformedRequest))?;
        let (kind, framing) = split.seen;
        // `None` if the response was complete before the request headers.
        if let Some(newest) = self.waiting.back_mut() {
            *newest = kind;
        }
        self.request_at = RequestAt::Head { begun: true };
        let framing = framing.map_err(|BadBody| Fault::MalformedRequest)?;
        self.request_certain = true;
        let unclear = split.lenient || framing.unclear;
        match framing.body {
            Some(body) if unclear => self.request_at = RequestAt::Body(body.into_unclear()),
            Some(body) => self.request_at = RequestAt::Body(body),
            None => self.end_request(unclear, at, visitor),
        }
        Ok(())
    }

    fn end_request(&mut self, unclear: bool, at: Instant, visitor: &mut impl Visitor) {
        // A server that disagrees on the end of this request reads other requests in the next bytes.
        self.request_at = if unclear { RequestAt::Lost } else { RequestAt::Between };
        visitor.request_end(self.newest_request(), at);
    }

    /// Ignores the client until its next request can be found.
    fn lose_request(&mut self, at: Instant, visitor: &mut impl Visitor) {
        if self.request_open() && !self.waiting.is_empty() {
            visitor.unobserved(self.newest_request(), at);
        }
        self.request_head.clear();
        (self.request_at, self.request_certain) = (RequestAt::Lost, false);
    }

    /// Parses `bytes`, sent by the server and read at `at`.
    ///
    /// # Errors
    /// Why the start of the next response is unknown, or the next protocol. `UnexpectedResponse`: the responses do not
    /// match the requests.
    pub fn response(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        if bytes.is_empty() {
            return Ok(());
        }
        let turned = !std::mem::replace(&mut self.server_sent, true);
        if matches!(self.response_at, ResponseAt::Lost) {
            if !turned {
                return Ok(());
            }
            (self.response_at, self.response_certain) = (ResponseAt::Head, false);
        }
        let mut unexpected = false;
        let result = self.parse_responses(bytes, at, visitor, &mut unexpected);
        let is_news = match result {
            Err(fault) if fault.is_switch() => return result,
            Err(_) => {
                // As of the fault, not of the start of the read, which may have found the responses again.
                let is_news = self.request_certain && self.response_certain;
                self.lose_responses(at, visitor);
                is_news
            }
            Ok(()) => false,
        };
        match result {
            _ if unexpected => Err(Fault::UnexpectedResponse),
            result if is_news => result,
            _ => Ok(()),
        }
    }

    /// Ignores the server until its next response can be found.
    fn lose_responses(&mut self, at: Instant, visitor: &mut impl Visitor) {
        (self.current_response()..self.begun).for_each(|number| visitor.unobserved(number, at));
        self.waiting.clear();
        self.response_head.clear();
        (self.response_at, self.response_certain) = (ResponseAt::Lost, false);
    }

    /// Sets `unexpected` at a response without a request, if the requests and responses matched before.
    fn parse_responses(
        &mut self,
        mut bytes: &[u8],
        at: Instant,
        visitor: &mut impl Visitor,
        unexpected: &mut bool,
    ) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let number = self.current_response();
            match &mut self.response_at {
                ResponseAt::Lost => return Ok(()),
                ResponseAt::Body(body) => {
                    let is_known = !self.waiting.is_empty();
                    let read = body.read(bytes, |data| {
                        if is_known {
                            visitor.response_body(number, data, at);
                        }
                    });
                    let Some(rest) = read.map_err(|BadBody| Fault::MalformedResponse)? else { return Ok(()) };
                    bytes = rest;
                    self.end_response(at, visitor);
                }
                ResponseAt::Head => {
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
                    let whole = self
                        .response_head
                        .add(bytes, at, cap, &|_| false)
                        .map_err(|bad| bad.fault(Fault::MalformedResponse))?;
                    let Some(whole) = whole else { return Ok(()) };
                    self.left = whole.rest.len() as u32;
                    *unexpected |= self.read_response_head(&whole.head, at, visitor)?;
                    bytes = whole.rest;
                }
            }
        }
        Ok(())
    }

    /// Returns true if the response has no request, and the requests and responses matched before.
    fn read_response_head(&mut self, head: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<bool, Fault> {
        let matched = self.request_certain && self.response_certain;
        let mut unexpected = false;
        let kind = self.waiting.front().copied().unwrap_or(RequestKind::Other);
        // After an upgrade in the middle of a request or with pipelined requests, it is ambiguous which bytes belong to
        // which protocol.
        let may_upgrade = !self.request_open() && self.waiting.len() <= 1;
        let follows = head::split_response(head, |head| {
            let follows = Follows::of(kind, head, may_upgrade)?;
            if self.waiting.is_empty() && !matches!(follows, Follows::Response) && !self.is_farewell(head) {
                unexpected = true;
                self.add_unread(head.status, at, visitor);
            }
            let number = self.current_response();
            match follows {
                _ if self.waiting.is_empty() => {}
                Follows::Response | Follows::Http2 => visitor.interim(number, head.status, at),
                Follows::Nothing | Follows::Body(_) | Follows::WebSocket(_) | Follows::Protocol => {
                    visitor.response_head(number, head, at)
                }
            }
            Ok(follows)
        })
        .map_err(|bad| bad.fault(Fault::MalformedResponse))?;
        self.response_certain = !unexpected;
        match follows.map_err(|BadBody| Fault::MalformedResponse)? {
            Follows::Response => {}
            Follows::Nothing => self.end_response(at, visitor),
            Follows::Body(body) => self.response_at = ResponseAt::Body(body),
            Follows::Http2 => return Err(Fault::Http2),
            Follows::WebSocket(extensions) => return Err(Fault::WebSocket(extensions)),
            Follows::Protocol => return Err(Fault::Upgraded),
        }
        Ok(unexpected && matched)
    }

    /// True for a response to no request: before a server closes a connection on which the client is idle, it may send
    /// 408 (RFC 9110, section 15.5.9) or another error. It generates nothing.
    fn is_farewell(&self, head: &ResponseHead<'_>) -> bool {
        let closes = || head.header("connection").is_some_and(|options| items(options).any(is_close));
        matches!(self.request_at, RequestAt::Between) && (head.status == 408 || head.status >= 400 && closes())
    }

    /// Handles a response without a request: reports a request that was not recognised, and searches for the next one.
    fn add_unread(&mut self, status: u16, at: Instant, visitor: &mut impl Visitor) {
        let has_sent = self.begun > 0 || !matches!(self.request_at, RequestAt::Between);
        if has_sent {
            self.lose_request(at, visitor);
        }
        // Servers send 408 without a request, when a client is idle for too long (RFC 9110, section 15.5.9).
        if has_sent && status != 408 {
            self.waiting.push_back(RequestKind::Other);
            self.begun += 1;
            visitor.unread(self.newest_request(), at);
        }
    }

    fn end_response(&mut self, at: Instant, visitor: &mut impl Visitor) {
        let number = self.current_response();
        self.response_at = ResponseAt::Head;
        let Some(kind) = self.waiting.pop_front() else { return };
        visitor.response_end(number, at);
        if kind == RequestKind::WebSocket
            && matches!(self.request_at, RequestAt::Between)
            && let Some((held, first)) = self.request_head.take()
        {
            // The server did not switch, so the held bytes are requests. A fault in them is not one of the response.
            self.read_requests(&held, first, visitor).ok();
        }
    }
}

/// [`Visitor::needs`] of a borrowed visitor.
fn needs<V: Visitor>(visitor: &&mut V, name: &str) -> bool {
    visitor.needs(name)
}
