//! Message boundaries of HTTP/1.1 and HTTP/2 (RFC 9110, RFC 9112, RFC 9113): byte slices in; heads, body slices and message
//! ends out. Codings of bodies, and the messages of gRPC and WebSocket in them.
//!
//! Passive: nothing is changed, buffered (a split head apart) or answered.
//!
//! The same bytes give the same calls however they are cut: a head is judged when it is whole, and only what its first
//! bytes rule out (no method, no `HTTP/1.`) is refused at once.

mod body;
pub mod budget;
mod chunked;
pub mod coding;
mod framing;
pub mod grpc;
mod head;
mod http1;
mod http2;
mod message;
mod reader;
pub mod websocket;

pub use http1::{Http1, Limits};
pub use http2::Http2;
pub use httparse::Header;
pub use message::{Fault, RequestHead, Reset, ResponseHead, Trailers, Visitor};
pub use reader::Reader;
