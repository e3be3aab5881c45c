//! A simulated inference server and a load generator, for `demo`, tests and benches.
//!
//! Neither knows the rest of tokometer: what they send and measure is an independent witness of what it says.

mod body;

pub mod load;
pub mod server;
