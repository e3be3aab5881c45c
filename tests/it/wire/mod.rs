//! The HTTP parsers, tested through their public interface.

#![allow(clippy::unwrap_used, reason = "a failure here fails a test")]

mod faults;
mod generated;
pub(crate) mod http2;
mod interleaved;
mod messages;
mod recordings;
mod resumed;
mod size;

pub(crate) use tokometer_models::wire::{model, traffic};
