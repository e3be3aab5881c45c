//! HTTP/1.1 message boundaries (RFC 9110, RFC 9112): byte slices in; heads, body slices and message ends out.
//!
//! Passive: nothing is changed, buffered (a split head apart) or answered.
//!
//! The same bytes give the same calls however they are cut: a head is judged when it is whole, and only what its first
//! bytes rule out (no method, no `HTTP/1.`) is refused at once.

mod body;
mod chunked;
pub mod coding;
mod framing;
mod head;
mod http1;
mod message;

pub use http1::{Http1, Limits};
pub use httparse::Header;
pub use message::{Fault, RequestHead, ResponseHead, Visitor};
