//! The trace and the naive model of the parser's own tests.
#![allow(dead_code, reason = "each target uses only a part")]

pub mod http2;
#[path = "../../tests/it/wire/model.rs"]
pub mod model;
#[path = "../../tests/it/wire/traffic.rs"]
pub mod traffic;
