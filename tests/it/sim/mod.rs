//! The simulated server speaks as the real one was recorded to speak, tells the truth about itself, and fails as it is
//! told to; and the load generator tells how it went.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod cases;
mod dialect_faults;
mod dialects;
pub(crate) mod exchange;
mod faults;
mod http2;
mod load;
mod realtime;
mod relayed;
mod shapes;
mod truth;
