//! A plain client of HTTP/1.1 for commands: one request after the other, every byte kept with the time at which it came.
//!
//! It reads heads and chunks by itself and lightly, so that what it sees is a witness of what the relay does.

mod caller;
mod recording;
mod target;

pub(crate) use recording::{Event, header_of};

pub use caller::{Caller, Failure};
pub use recording::Recording;
pub use target::{BadTarget, Target};

#[cfg(test)]
pub(crate) use recording::tests::recorded;
