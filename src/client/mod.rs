//! A plain HTTP/1.1 client for commands: one request after another, with every byte and its arrival time recorded.
//!
//! The client uses no code of the data path, so that it can check the relay independently.

mod caller;
mod health;
mod recording;
mod target;

pub(crate) use recording::{Event, header_of};

pub use caller::{Caller, Failure};
pub use health::{BadUrl, HealthCheck, Unhealthy, Url};
pub use recording::Recording;
pub use target::{BadTarget, Target};

#[cfg(test)]
pub(crate) use recording::tests::recorded;
