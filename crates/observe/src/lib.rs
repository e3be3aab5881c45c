//! One connection to request records.
//!
//! [`input`] is what a source of traffic shows of a connection, [`observer`] parses it, and [`measure`] turns the events
//! into one record per request.

mod counter;
pub mod input;
pub mod measure;
pub mod observer;

pub use counter::Counter;
pub use tokometer_decode::closed_enum;
pub use tokometer_wire::budget;
