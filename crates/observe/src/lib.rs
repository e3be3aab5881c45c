//! Turns one connection into request records.
//!
//! [`input`] is the interface to traffic sources, [`observer`] parses connections, and [`measure`] turns the events
//! into one record per request.

mod aborts;
pub mod input;
pub mod measure;
pub mod observer;

pub use tokometer_wire::budget;
