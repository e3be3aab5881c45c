//! HTTP/2 from first byte to record.

#![allow(clippy::unwrap_used, reason = "a failure here fails a test")]

mod endings;
mod grpc;
pub(crate) mod messages;
pub(crate) mod program;
