//! HTTP/2 from first byte to record.

mod endings;
mod grpc;
pub(crate) mod messages;
mod program;
