//! What a tap observes, and its limits.

use std::net::IpAddr;
use std::time::Duration;

use tokometer_observe::budget::Budget;

/// A server's TCP port, which determines the direction of each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The server's address; `None` for any.
    pub address: Option<IpAddr>,
    /// The server's port.
    pub port: u16,
    /// Index of the listener under which the server's requests are reported.
    pub listener: usize,
}

/// Limits of a tap.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory budget of all connections and their observers.
    pub budget: Budget,
    /// Maximum number of open connections; further connections are not observed.
    pub connections: usize,
    /// Maximum number of bytes that wait for an earlier segment, per direction of a connection.
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
