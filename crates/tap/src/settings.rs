//! What a tap observes, and its limits.

use std::net::IpAddr;
use std::time::Duration;

use tokometer_observe::budget::Budget;

/// A TCP port on which a server listens. The direction of a segment follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The server's address; `None` for any.
    pub address: Option<IpAddr>,
    /// The server's port.
    pub port: u16,
    /// Index of the listener that its requests are reported for.
    pub listener: usize,
}

/// Limits of a tap.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory of all connections: the budget of the observers.
    pub budget: Budget,
    /// Maximum of open connections; further ones are not observed.
    pub connections: usize,
    /// Maximum of bytes that wait for an earlier segment, per direction of a connection.
    pub reassembly_bytes: usize,
    /// A connection without packets for this long is evicted.
    pub idle: Duration,
}

impl Limits {
    /// The default limits, with this memory budget.
    pub fn new(budget: Budget) -> Limits {
        Limits { budget, connections: 65_536, reassembly_bytes: 1024 * 1024, idle: Duration::from_secs(3600) }
    }
}
