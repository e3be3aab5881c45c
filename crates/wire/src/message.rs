//! The parser's output: messages of a connection, and its state.

use std::time::Instant;

use httparse::Header;

use crate::coding::Unreadable;
use crate::websocket::extensions::Extensions;

/// The headers of a request, borrowed from the bytes that completed them.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The request target, as sent; in HTTP/2 `:path`, or `:authority` without a path (CONNECT).
    pub target: &'a str,
    /// The minor version of HTTP/1; 0 in HTTP/2.
    pub minor: u8,
    /// The header fields in order, including the pseudo-header fields of HTTP/2.
    pub headers: &'a [Header<'a>],
}

/// The headers of a final response (1xx are reported separately).
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status code.
    pub status: u16,
    /// The minor version of HTTP/1; 0 in HTTP/2.
    pub minor: u8,
    /// The header fields in order, including the pseudo-header field of HTTP/2.
    pub headers: &'a [Header<'a>],
}

/// The trailer fields of a response.
#[derive(Clone, Copy, Debug)]
pub struct Trailers<'a> {
    /// The fields, in order.
    pub fields: &'a [Header<'a>],
}

/// The first value of the header field `name` (case-insensitive).
fn field<'a>(headers: &[Header<'a>], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
}

macro_rules! impl_header_lookup {
    ($($head:ident),*) => {$(
        impl<'a> $head<'a> {
            /// The first value of the header field `name` (case-insensitive).
            pub fn header(&self, name: &str) -> Option<&'a [u8]> {
                field(self.headers, name)
            }

            /// All values of the header field `name` (case-insensitive), in order.
            pub fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
                self.headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
            }
        }
    )*};
}

impl_header_lookup!(RequestHead, ResponseHead);

impl ResponseHead<'_> {
    /// True if this response switches the connection to WebSocket (RFC 6455, section 4.2.2).
    pub fn is_websocket(&self) -> bool {
        self.status == 101
            && self.header("upgrade").is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"websocket"))
    }
}

impl<'a> Trailers<'a> {
    /// The first value of the field `name` (case-insensitive).
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        field(self.fields, name)
    }
}

/// How an HTTP/2 stream was aborted while its connection continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The client sent RST_STREAM with this error code.
    ByClient(u32),
    /// The server sent RST_STREAM with this error code.
    ByServer(u32),
    /// The server sent GOAWAY and will not process this stream (RFC 9113, section 6.8).
    NotTaken,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// The next request.
    Idle,
    /// The rest of its open requests: the server has begun no response, and can complete none.
    Incomplete,
    /// A response; or unknown.
    InProgress,
}

/// The sender of a WebSocket frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client, whose frames are masked.
    Client,
    /// The server.
    Server,
}

/// A parsed event of a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The next bytes of a message's data, unmasked and decompressed; never empty.
    Data(&'a [u8]),
    /// The message is complete.
    MessageEnd {
        /// Text, which is UTF-8 (not checked); otherwise binary.
        text: bool,
    },
    /// A close frame, with its code if present (RFC 6455, section 7.4).
    Close(Option<u16>),
    /// Compressed data that cannot be decoded; this sender's later compressed messages are not reported.
    Unreadable(Unreadable),
}

/// Receives the parsed messages of a connection. Each call identifies its request by number, which is 0 for the first
/// request of the connection. The number increases by one in HTTP/1; in HTTP/2 it is half the stream ID, rounded
/// down, and may skip values. A response may begin and end while its request is still being sent. Ignore calls for a
/// request after its end. Override only the callbacks you need.
pub trait Visitor {
    /// The first byte of a new request was read. In HTTP/2, return false to receive nothing after the request's
    /// headers; HTTP/1 ignores the return value.
    fn request_begin(&mut self, _request: u64, _at: Instant) -> bool {
        true
    }
    /// The rest of the request and response cannot be parsed. Called at most once per request, instead of its end.
    fn unobserved(&mut self, _request: u64, _at: Instant) {}
    /// A new request was found of which nothing can be parsed.
    fn unread(&mut self, _request: u64, _at: Instant) {}
    /// True for a request field that must be kept even if the headers exceed a limit.
    fn needs(&self, _name: &str) -> bool {
        false
    }
    /// The headers of a request are complete.
    fn request_head(&mut self, _request: u64, _head: &RequestHead<'_>, _at: Instant) {}
    /// Bytes of the request body, transfer coding removed.
    fn request_body(&mut self, _request: u64, _bytes: &[u8], _at: Instant) {}
    /// The request is complete.
    fn request_end(&mut self, _request: u64, _at: Instant) {}
    /// An interim response (100, 102, 103) was received.
    fn interim(&mut self, _request: u64, _status: u16, _at: Instant) {}
    /// The headers of the final response are complete.
    fn response_head(&mut self, _request: u64, _head: &ResponseHead<'_>, _at: Instant) {}
    /// Bytes of the response body, transfer coding removed.
    fn response_body(&mut self, _request: u64, _bytes: &[u8], _at: Instant) {}
    /// The trailer fields of a response. HTTP/2 only: trailers of chunked bodies are skipped.
    fn response_trailers(&mut self, _request: u64, _trailers: &Trailers<'_>, _at: Instant) {}
    /// The response is complete: by its length, its last chunk, the end of its stream, or (for a body delimited by the
    /// end of the connection) the server's FIN.
    fn response_end(&mut self, _request: u64, _at: Instant) {}
    /// A WebSocket frame on the connection that the response to this request switched to WebSocket.
    fn websocket(&mut self, _request: u64, _sender: Sender, _event: &Event<'_>, _at: Instant) {}
    /// The request and its response end here, incomplete. HTTP/2 only.
    fn reset(&mut self, _request: u64, _reset: Reset, _at: Instant) {}
}

/// Why the parser lost the boundaries of messages, or why the protocol changes. See [`Http1`](crate::Http1) and
/// [`Http2`](crate::Http2) for whether requests are still found afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection switched to another protocol: 101, or a 2xx to CONNECT.
    Upgraded,
    /// The connection continues in HTTP/2: after its preface, or after a 101 to `h2c`.
    /// [`Http1::left`](crate::Http1::left) returns the position.
    Http2,
    /// The connection continues as a WebSocket with these extensions: see [`Reader::follow_websocket`](crate::Reader).
    WebSocket(Extensions),
    /// A WebSocket frame with a length that RFC 6455 does not allow.
    MalformedFrame,
    /// The client's first bytes are not HTTP.
    NotHttp,
    /// The client's first bytes, or the bytes in place of a response, are a TLS record.
    Tls,
    /// Request headers or a chunk that servers reject or interpret differently, or an ambiguous length. In HTTP/2, a client
    /// frame that RFC 9113 does not allow at that point.
    MalformedRequest,
    /// Response headers or a chunk that RFC 9112 does not allow, or an ambiguous length. In HTTP/2, a server frame that
    /// RFC 9113 does not allow at that point.
    MalformedResponse,
    /// Headers above the size limit.
    HeadTooLarge,
    /// Response bytes while no request is pending.
    UnexpectedResponse,
    /// A header block that RFC 7541 does not allow: later blocks cannot be decoded either.
    HeaderCompression,
    /// A header compression table above the limit.
    HeaderTableTooLarge,
    /// HTTP/2 header blocks decode to far more bytes than the connection received.
    HeaderExpansion,
}

impl Fault {
    /// True if the connection continues in another protocol.
    pub(crate) fn is_switch(self) -> bool {
        matches!(self, Fault::Upgraded | Fault::Http2 | Fault::WebSocket(_))
    }
}
