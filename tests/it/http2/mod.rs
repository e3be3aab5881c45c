//! HTTP/2 and gRPC, from the first byte of a connection to the records.

#![allow(clippy::unwrap_used, reason = "a failure here fails a test")]

mod endings;
mod grpc;
pub(crate) mod messages;
pub(crate) mod program;
