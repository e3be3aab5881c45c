//! Shared by the tests.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub(crate) mod align;
pub(crate) mod causes;
pub(crate) mod engine;
pub(crate) mod recording;
