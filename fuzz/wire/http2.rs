//! The frames and the trace of the HTTP/2 parser's tests.

#[path = "../../tests/it/wire/http2/frames.rs"]
pub mod frames;
#[path = "../../tests/it/wire/http2/trace.rs"]
pub mod trace;
