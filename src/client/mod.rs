//! A plain HTTP/1.1 client for commands: one request after another, with every byte and its arrival time recorded.
//!
//! It has its own lightweight parsers for headers and chunks, so that it checks the relay independently.

mod caller;
mod recording;
mod target;

pub(crate) use recording::{Event, header_of};

pub use caller::{Caller, Failure};
pub use recording::Recording;
pub use target::{BadTarget, Target};

#[cfg(test)]
pub(crate) use recording::tests::recorded;
