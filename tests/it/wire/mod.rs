//! The HTTP/1.1 parser as its callers see it.

#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod faults;
mod generated;
mod interleaved;
mod messages;
mod model;
mod recordings;
mod size;
mod traffic;
