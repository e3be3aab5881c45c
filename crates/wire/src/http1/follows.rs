//! What follows the headers of a response.

use crate::http1::body::{BadBody, Body, items, response_body};
use crate::message::{RequestHead, ResponseHead};
use crate::websocket::Extensions;

/// The properties of a request that determine where its response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Head,
    Connect,
    /// Asks for a switch to WebSocket. Bytes after it are held until its response.
    WebSocket,
    /// Any other method, or a request with incomplete headers.
    Other,
}

impl RequestKind {
    pub(super) fn of(head: &RequestHead<'_>) -> RequestKind {
        let upgrade = || head.header("upgrade").is_some_and(|to| to.trim_ascii().eq_ignore_ascii_case(b"websocket"));
        // Methods are case-sensitive (RFC 9110, section 9.1).
        match head.method {
            "HEAD" => RequestKind::Head,
            "CONNECT" => RequestKind::Connect,
            "GET" if upgrade() => RequestKind::WebSocket,
            _ => RequestKind::Other,
        }
    }
}

/// What follows the headers of a response.
pub(super) enum Follows {
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
    pub(super) fn of(kind: RequestKind, head: &ResponseHead<'_>, may_upgrade: bool) -> Result<Follows, BadBody> {
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
            (status, _) => Ok(response_body(status, head.headers)?.map_or(Follows::Nothing, Follows::Body)),
        }
    }
}

pub(super) fn is_close(option: &[u8]) -> bool {
    option.eq_ignore_ascii_case(b"close")
}

fn is_h2c(head: &ResponseHead<'_>) -> bool {
    head.header("upgrade").is_some_and(|protocols| items(protocols).eq([b"h2c"]))
}
