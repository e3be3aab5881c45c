//! The HTTP parsers as their callers see them.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod faults;
mod generated;
pub(crate) mod http2;
mod interleaved;
mod messages;
mod model;
mod recordings;
mod size;
mod traffic;
