//! One connection in any supported version of HTTP.

use std::time::Instant;

use crate::budget::Account;
use crate::http1::{HTTP2_PREFACE_HEAD, Http1, Limits};
use crate::http2::Http2;
use crate::message::{Activity, Fault, Visitor};
use crate::websocket::{Extensions, WebSocket};

/// Parses one connection: as HTTP/1 until a preface or a 101 switches it to HTTP/2 or WebSocket.
#[derive(Debug)]
pub enum Reader {
    /// HTTP/1, or no bytes yet.
    Http1(Http1),
    /// HTTP/2.
    Http2(Box<Http2>),
    /// WebSocket.
    WebSocket(Box<WebSocket>),
}

impl Reader {
    /// A connection without any bytes yet.
    pub fn new(limits: Limits) -> Reader {
        Reader::Http1(Http1::new(limits))
    }

    /// True once the connection has switched to WebSocket.
    pub fn is_websocket(&self) -> bool {
        matches!(self, Reader::WebSocket(_))
    }

    /// Prefetches the memory that the next bytes of a response need.
    pub fn warm(&self) {
        if let Reader::Http1(http1) = self {
            http1.warm();
        }
    }

    /// Parses `bytes`, sent by the client and read at `at`.
    ///
    /// # Errors
    /// See [`Http1`] and [`Http2`].
    pub fn request(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let http1 = match self {
            Reader::Http2(http2) => match http2.not_preface(bytes) {
                None => return http2.request(bytes, at, visitor),
                // A request of HTTP/1 after all: some servers respond to it.
                Some(begun) => {
                    let mut http1 = Http1::without_http2(http2.limits());
                    let result = http1.request(begun, at, visitor).and_then(|()| http1.request(bytes, at, visitor));
                    *self = Reader::Http1(http1);
                    return result;
                }
            },
            Reader::WebSocket(websocket) => return websocket.request(bytes, at, visitor),
            Reader::Http1(http1) => http1,
        };
        match http1.request(bytes, at, visitor) {
            Err(Fault::Http2) => {}
            result => return result,
        }
        let mut http2 = Box::new(Http2::new(http1.limits()));
        http2.request(HTTP2_PREFACE_HEAD, at, visitor)?; // Cannot fail: it is the start of the preface.
        let rest = rest(bytes, http1);
        *self = Reader::Http2(http2);
        self.request(rest, at, visitor)
    }

    /// Parses `bytes`, sent by the server and read at `at`.
    ///
    /// # Errors
    /// See [`Http1`] and [`Http2`].
    pub fn response(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let http1 = match self {
            // No frame begins so, because it would be longer than the maximum: the server responds in HTTP/1.
            Reader::Http2(http2) if bytes.first() == Some(&b'H') && http2.is_unanswered() => {
                let mut http1 = http2.refused(at, visitor);
                let result = http1.response(bytes, at, visitor);
                *self = Reader::Http1(http1);
                return result.and(Err(Fault::MalformedResponse));
            }
            Reader::Http2(http2) => return http2.response(bytes, at, visitor),
            Reader::WebSocket(websocket) => return websocket.response(bytes, at, visitor),
            Reader::Http1(http1) => http1,
        };
        // An HTTP/2 server may send its preface before it receives the client's. The server's preface begins with a
        // frame length, whose first byte is 0.
        if bytes.first() == Some(&0)
            && let Some(request) = http1.partial_request()
        {
            let mut http2 = Box::new(Http2::new(http1.limits()));
            let asked = http2.request(request, at, visitor);
            let result = asked.and(http2.response(bytes, at, visitor));
            *self = Reader::Http2(http2);
            return result;
        }
        match http1.response(bytes, at, visitor) {
            Err(Fault::Http2) => {}
            result => return result,
        }
        let mut http2 = Box::new(Http2::upgraded(http1.limits(), http1.current_response()));
        let result = http2.response(rest(bytes, http1), at, visitor);
        *self = Reader::Http2(http2);
        result
    }

    /// The server sent its FIN at `at`: ends a body that is delimited by the end of the connection. Truncated messages
    /// stay open.
    pub fn response_finished(&mut self, at: Instant, visitor: &mut impl Visitor) {
        if let Reader::Http1(http1) = self {
            http1.response_finished(at, visitor);
        }
    }

    /// Continues after [`Fault::WebSocket`], which `bytes` caused. Charges decompression costs to `account`.
    ///
    /// # Errors
    /// See [`Http1`] and [`Http2`].
    pub fn follow_websocket(
        &mut self,
        extensions: Extensions,
        account: &Account,
        bytes: &[u8],
        at: Instant,
        visitor: &mut impl Visitor,
    ) -> Result<(), Fault> {
        let Reader::Http1(http1) = self else { return Ok(()) };
        let mut websocket = Box::new(WebSocket::new(http1.current_response(), extensions, account));
        let of_client = match http1.take_held(at) {
            Some((held, first)) => websocket.request(&held, first, visitor),
            None => {
                websocket.lose_client();
                Ok(())
            }
        };
        let result = of_client.and_then(|()| websocket.response(rest(bytes, http1), at, visitor));
        *self = Reader::WebSocket(websocket);
        result
    }

    /// True while no request can be found.
    pub fn is_blind(&self) -> bool {
        match self {
            Reader::Http1(http1) => http1.is_blind(),
            Reader::Http2(http2) => http2.is_blind(),
            Reader::WebSocket(websocket) => websocket.is_blind(),
        }
    }

    /// True while every request is found and parsed.
    pub fn is_certain(&self) -> bool {
        match self {
            Reader::Http1(http1) => http1.is_certain(),
            Reader::Http2(http2) => http2.is_certain(),
            Reader::WebSocket(_) => true,
        }
    }

    /// Frees memory; some requests are then not parsed.
    pub fn free(&mut self, at: Instant, visitor: &mut impl Visitor) {
        match self {
            Reader::Http1(http1) => http1.free(at, visitor),
            Reader::Http2(http2) => http2.only_count(at, visitor),
            Reader::WebSocket(_) => {}
        }
    }

    /// Bytes held on the heap, except the decoders of WebSocket messages, which are charged separately.
    pub fn holds(&self) -> usize {
        match self {
            Reader::Http1(http1) => http1.holds(),
            Reader::Http2(http2) => size_of::<Http2>() + http2.holds(),
            Reader::WebSocket(_) => size_of::<WebSocket>(),
        }
    }

    /// True if no request is open, followed or not.
    pub fn is_idle(&self) -> bool {
        match self {
            Reader::Http1(http1) => http1.open() == 0,
            Reader::Http2(http2) => http2.open() == 0 && !http2.has_skipped(),
            Reader::WebSocket(_) => false,
        }
    }

    /// What the connection waits for.
    pub fn activity(&self) -> Activity {
        match self {
            Reader::Http1(http1) => http1.activity(),
            Reader::Http2(http2) => http2.activity(),
            Reader::WebSocket(_) => Activity::InProgress,
        }
    }

    /// True if responses share the connection: blocking the connection then blocks all of them.
    pub fn is_shared(&self) -> bool {
        matches!(self, Reader::Http2(_))
    }
}

/// The part of the slice that belongs to the next protocol.
fn rest<'a>(bytes: &'a [u8], http1: &Http1) -> &'a [u8] {
    bytes.len().checked_sub(http1.left()).and_then(|start| bytes.get(start..)).unwrap_or_default()
}
