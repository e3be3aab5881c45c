//! Message boundaries of HTTP/1.1 and HTTP/2 (RFC 9110, RFC 9112, RFC 9113): takes byte slices; returns headers, body
//! slices and message ends. Also decodes bodies and the gRPC and WebSocket messages in them.
//!
//! Passive: it modifies no bytes, sends no responses, and buffers only split headers.
//!
//! The same bytes cause the same calls, however they are split. Headers are evaluated when they are complete. They are
//! rejected earlier only if their first bytes are invalid (no method, no `HTTP/1.`).

pub mod budget;
pub mod coding;
pub mod grpc;
mod http1;
mod http2;
mod message;
mod reader;
mod slices;
pub mod websocket;

pub use http1::{Http1, Limits};
pub use http2::Http2;
pub use httparse::Header;
pub use message::{Activity, Fault, RequestHead, Reset, ResponseHead, Trailers, Visitor};
pub use reader::Reader;
