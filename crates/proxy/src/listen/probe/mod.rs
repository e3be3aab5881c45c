//! Connection probes: whether the server accepts connections, and whether clients can bypass the proxy.

mod direct;
mod interception;
mod reach;

pub use direct::DirectClients;
pub use interception::{Interception, intercepts};
pub(crate) use reach::unix;
pub use reach::{Probe, Reached};
