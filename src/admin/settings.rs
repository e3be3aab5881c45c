//! What a person may set about the admin server.

use std::net::SocketAddr;
use std::time::Duration;

/// The admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it listens; port 0 for a free one.
    pub listen: SocketAddr,
    /// Longest a client may take to send a request head or to take any of an answer, and longest an idle connection
    /// stays open.
    pub header_timeout: Duration,
    /// Most connections at a time.
    pub max_connections: usize,
    /// How long `/drain?wait` waits when it names no time: the grace period.
    pub drain_wait: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::from(([0, 0, 0, 0], 9464)),
            header_timeout: Duration::from_secs(10),
            max_connections: 256,
            drain_wait: Duration::from_secs(30),
        }
    }
}
