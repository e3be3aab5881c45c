//! The HTTP/2 parser as its callers see it.

mod faults;
pub(crate) mod frames;
mod generated;
mod model;
mod real;
mod size;
mod streams;
mod trace;
mod upgrade;
