//! User settings of the admin server.

use std::net::SocketAddr;
use std::time::Duration;

/// The admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Listen address; port 0 for any free port.
    pub listen: SocketAddr,
    /// Maximum time for a client to send request headers or to read a response, and for a connection to be idle.
    pub header_timeout: Duration,
    /// Maximum number of connections waiting for a request.
    pub max_connections: usize,
    /// Allowed `Host` values in addition to those that cannot be public DNS names; `.example.com` is every name below
    /// it, `*` every name.
    pub allowed_hosts: Vec<String>,
    /// Whether other machines may send `POST /drain`.
    pub remote_drain: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::from(([0, 0, 0, 0], 9464)),
            header_timeout: Duration::from_secs(10),
            max_connections: 256,
            allowed_hosts: Vec::new(),
            remote_drain: false,
        }
    }
}
