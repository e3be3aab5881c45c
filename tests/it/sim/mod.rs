//! The simulated server behaves like recorded real engines, reports correct counters, and injects faults on request.
//! The load generator reports correct results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod cases;
mod dialect_faults;
mod dialects;
mod faults;
mod http2;
mod load;
mod realtime;
mod relayed;
pub(crate) mod round_trip;
mod shapes;
mod truth;
