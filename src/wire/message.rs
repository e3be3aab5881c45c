//! What the parser tells of a connection's messages.

use std::time::Instant;

/// A request head. Borrowed from the bytes that completed it.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The request target, as sent.
    pub target: &'a str,
    /// The minor version of HTTP/1.
    pub minor: u8,
    /// The header fields, in order.
    pub headers: &'a [httparse::Header<'a>],
}

/// The head of a final response (1xx are told apart).
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// The status code.
    pub status: u16,
    /// The minor version of HTTP/1.
    pub minor: u8,
    /// The header fields, in order.
    pub headers: &'a [httparse::Header<'a>],
}

/// The first value of the header field `name` (any case).
fn field<'a>(headers: &[httparse::Header<'a>], name: &str) -> Option<&'a [u8]> {
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

/// Takes what a connection's bytes say. Request calls belong to the newest request, response calls to the oldest
/// request that is not answered whole; a response may begin and end while its request is still being sent.
pub trait Visitor {
    /// The first byte of a new request was read (a new exchange begins).
    fn request_begin(&mut self, at: Instant);
    /// A request head is complete.
    fn request_head(&mut self, head: &RequestHead<'_>, at: Instant);
    /// Bytes of the request body, transfer coding removed.
    fn request_body(&mut self, bytes: &[u8], at: Instant);
    /// The request is complete.
    fn request_end(&mut self, at: Instant);
    /// An interim response (100, 102, 103) came.
    fn interim(&mut self, status: u16, at: Instant);
    /// The head of the final response is complete.
    fn response_head(&mut self, head: &ResponseHead<'_>, at: Instant);
    /// Bytes of the response body, transfer coding removed.
    fn response_body(&mut self, bytes: &[u8], at: Instant);
    /// The response is complete: by its length, its last chunk, or (for a body delimited by the end of the
    /// connection) by the server's FIN.
    fn response_end(&mut self, at: Instant);
}

/// Why the parser cannot go on with a connection. Final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection switched to another protocol: 101, or a 2xx to CONNECT.
    Upgraded,
    /// The HTTP/2 connection preface.
    Http2,
    /// The client's first bytes are no HTTP.
    NotHttp,
    /// A request head that RFC 9112 does not allow, or two readings of its length.
    MalformedRequest,
    /// A response head or chunk that RFC 9112 does not allow, or two readings of its length.
    MalformedResponse,
    /// A head over the cap.
    HeadTooLarge,
    /// Response bytes while no request waits for an answer.
    UnexpectedResponse,
    /// More requests wait for their answers than the cap.
    PipelineTooDeep,
}
