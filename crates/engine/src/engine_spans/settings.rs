//! Settings of the engine span receiver.

use std::net::SocketAddr;
use std::time::Duration;

/// The engine span receiver, and how long requests wait for their spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Addresses where OTLP is received, over gRPC and HTTP.
    pub listen: Vec<SocketAddr>,
    /// Maximum bytes of one message, after decompression.
    pub max_message_bytes: usize,
    /// Maximum bytes of all messages waiting to be forwarded.
    pub max_waiting_bytes: usize,
    /// Maximum concurrent connections.
    pub max_connections: usize,
    /// Time limit for a request, and for idling before one.
    pub read_timeout: Duration,
    /// How long forwarding of a message is retried.
    pub forward_for: Duration,
    /// How long a request without a queue time waits for its span.
    pub wait: Duration,
    /// Maximum number of waiting requests.
    pub max_held: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: Vec::new(),
            max_message_bytes: 4 << 20,
            max_waiting_bytes: 32 << 20,
            max_connections: 32,
            read_timeout: Duration::from_secs(10),
            forward_for: Duration::from_secs(300),
            wait: Duration::from_secs(8),
            max_held: 4096,
        }
    }
}
