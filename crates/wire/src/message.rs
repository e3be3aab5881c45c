//! What the parser tells of a connection's messages.

use std::time::Instant;

use httparse::Header;

use crate::websocket::Extensions;
use crate::websocket::Seen;
use crate::websocket::Sender;

/// A request head. Borrowed from the bytes that completed it.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The request target, as sent; in HTTP/2 `:path`, or `:authority` where there is none (CONNECT).
    pub target: &'a str,
    /// The minor version of HTTP/1; 0 in HTTP/2.
    pub minor: u8,
    /// The header fields, in order, the pseudo-header fields of HTTP/2 among them.
    pub headers: &'a [Header<'a>],
}

/// The head of a final response (1xx are told apart).
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status code.
    pub status: u16,
    /// The minor version of HTTP/1; 0 in HTTP/2.
    pub minor: u8,
    /// The header fields, in order, the pseudo-header field of HTTP/2 among them.
    pub headers: &'a [Header<'a>],
}

/// The trailer fields of a response.
#[derive(Clone, Copy, Debug)]
pub struct Trailers<'a> {
    /// The fields, in order.
    pub fields: &'a [Header<'a>],
}

/// The first value of the header field `name` (any case).
fn field<'a>(headers: &[Header<'a>], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
}

/// Every value of the header field `name` (any case), in order.
fn fields<'a>(headers: &'a [httparse::Header<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
}

impl<'a> RequestHead<'a> {
    /// The first value of the header field `name` (any case).
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        field(self.headers, name)
    }

    /// Every value of the header field `name` (any case), in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        fields(self.headers, name)
    }
}

impl<'a> ResponseHead<'a> {
    /// The first value of the header field `name` (any case).
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        field(self.headers, name)
    }

    /// Every value of the header field `name` (any case), in order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        fields(self.headers, name)
    }
}

impl ResponseHead<'_> {
    /// True when it turns its connection to WebSocket (RFC 6455, section 4.2.2).
    pub fn is_websocket(&self) -> bool {
        self.status == 101
            && self.header("upgrade").is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"websocket"))
    }
}

impl<'a> Trailers<'a> {
    /// The first value of the field `name` (any case).
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        field(self.fields, name)
    }
}

/// How a stream of HTTP/2 was cut off while its connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The client sent RST_STREAM with this error code.
    ByClient(u32),
    /// The server sent RST_STREAM with this error code.
    ByServer(u32),
    /// The server sent GOAWAY and will not look at this stream (RFC 9113, section 6.8).
    NotTaken,
}

/// Takes what a connection's bytes say. Each call names its exchange by number: 0 for the first of the connection, higher
/// for those that begin later (by one in HTTP/1; in HTTP/2 half the stream's id, which may skip numbers). A response may
/// begin and end while its request is still being sent; what is told of an exchange after its end is of no use. What a
/// visitor does not take in is passed over.
pub trait Visitor {
    /// The first byte of a new request was read (a new exchange begins). False when the visitor does not follow it beyond
    /// its head; HTTP/2 then shows nothing more of it.
    fn request_begin(&mut self, _exchange: u64, _at: Instant) -> bool {
        true
    }
    /// The rest of the exchange is not shown: a header list of it is over the cap. HTTP/2 only.
    fn unobserved(&mut self, _exchange: u64, _at: Instant) {}
    /// A request head is complete.
    fn request_head(&mut self, _exchange: u64, _head: &RequestHead<'_>, _at: Instant) {}
    /// Bytes of the request body, transfer coding removed.
    fn request_body(&mut self, _exchange: u64, _bytes: &[u8], _at: Instant) {}
    /// The request is complete.
    fn request_end(&mut self, _exchange: u64, _at: Instant) {}
    /// An interim response (100, 102, 103) came.
    fn interim(&mut self, _exchange: u64, _status: u16, _at: Instant) {}
    /// The head of the final response is complete.
    fn response_head(&mut self, _exchange: u64, _head: &ResponseHead<'_>, _at: Instant) {}
    /// Bytes of the response body, transfer coding removed.
    fn response_body(&mut self, _exchange: u64, _bytes: &[u8], _at: Instant) {}
    /// The trailer fields of a response. HTTP/2 only: those of chunked bodies are stepped over.
    fn response_trailers(&mut self, _exchange: u64, _trailers: &Trailers<'_>, _at: Instant) {}
    /// The response is complete: by its length, its last chunk, the end of its stream, or (for a body delimited by the
    /// end of the connection) by the server's FIN.
    fn response_end(&mut self, _exchange: u64, _at: Instant) {}
    /// The connection is a WebSocket since the response to this exchange, and a frame of it told this.
    fn websocket(&mut self, _exchange: u64, _sender: Sender, _seen: &Seen<'_>, _at: Instant) {}
    /// The exchange ends here without the rest of its messages. HTTP/2 only.
    fn reset(&mut self, _exchange: u64, _reset: Reset, _at: Instant) {}
}

/// Why the parser cannot go on with a connection. Final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection switched to another protocol: 101, or a 2xx to CONNECT.
    Upgraded,
    /// The connection goes on in HTTP/2: its preface came, or a 101 to `h2c`. [`Http1::left`](crate::Http1::left)
    /// tells where.
    Http2,
    /// The connection goes on as a WebSocket with these extensions: see [`Reader::follow_websocket`](crate::Reader).
    WebSocket(Extensions),
    /// A frame of a WebSocket with a length that RFC 6455 does not allow.
    MalformedFrame,
    /// The client's first bytes are no HTTP.
    NotHttp,
    /// A request head that RFC 9112 does not allow, or two readings of its length; in HTTP/2 a frame of the client's that
    /// RFC 9113 does not allow where it stands.
    MalformedRequest,
    /// A response head or chunk that RFC 9112 does not allow, or two readings of its length; in HTTP/2 a frame of the
    /// server's that RFC 9113 does not allow where it stands.
    MalformedResponse,
    /// A head over the cap.
    HeadTooLarge,
    /// Response bytes while no request waits for an answer.
    UnexpectedResponse,
    /// A header block that RFC 7541 does not allow: what follows cannot be decoded either.
    HeaderCompression,
    /// A header compression table over the cap.
    HeaderTableTooLarge,
    /// Header blocks of HTTP/2 that decode to far more than their connection carried.
    HeaderExpansion,
}
