//! The HTTP/2 parser, tested through its public interface.

mod faults;
pub(crate) mod frames;
mod generated;
mod model;
mod real;
mod size;
mod streams;
pub(crate) mod trace;
mod upgrade;
