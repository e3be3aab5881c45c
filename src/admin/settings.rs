//! What a person may set about the admin server.

use std::net::SocketAddr;
use std::time::Duration;

/// The admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it listens; port 0 for a free one.
    pub listen: SocketAddr,
    /// Maximum time for a client to send a request head or to take a response, and for a connection to be idle.
    pub header_timeout: Duration,
    /// Maximum number of connections that wait for a request.
    pub max_connections: usize,
    /// Values of `Host` that are allowed besides those that no public DNS name can have; `.example.com` is every name below it, `*`
    /// every name.
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
