//! A simulated inference server and a load generator, used by `demo`, tests and benchmarks.
//!
//! Neither uses the rest of tokometer, so their measurements are an independent check of its metrics.

mod names;

pub mod load;
pub mod server;

pub use names::UnknownName;
