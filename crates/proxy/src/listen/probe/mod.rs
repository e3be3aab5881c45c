//! Connects that test a server and the way to it.

mod interception;
mod reach;

pub use interception::{Interception, intercepts};
pub(crate) use reach::unix;
pub use reach::{Reached, reach};
