//! Connects that test a server and the way to it.

mod interception;
mod reach;

pub use interception::{Interception, intercepts};
pub use reach::{Reached, reach};
