//! The HTTP/2 parser, tested through its public interface.

mod faults;
mod generated;
mod model;
mod real;
mod size;
mod streams;
mod upgrade;

pub(crate) use tokometer_models::wire::http2::{frames, trace};
