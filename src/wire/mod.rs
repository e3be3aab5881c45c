//! HTTP/1.1 message boundaries (RFC 9110, RFC 9112): byte slices in; heads, body slices and message ends out.
//!
//! Passive: nothing is changed, buffered (a split head apart) or answered.

mod message;

pub use message::{Fault, RequestHead, ResponseHead, Visitor};
