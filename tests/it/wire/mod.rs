//! The HTTP/1.1 parser as its callers see it.

mod faults;
mod interleaved;
mod messages;
mod size;
mod traffic;
