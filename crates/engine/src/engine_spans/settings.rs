//! What a person may set about the receiver of engine spans.

use std::net::SocketAddr;
use std::time::Duration;

/// The receiver of an engine's spans, and how long exchanges wait for theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where OTLP is received, gRPC and HTTP alike on each.
    pub listen: Vec<SocketAddr>,
    /// Most bytes of one message, undone compression included.
    pub max_message_bytes: usize,
    /// Most bytes of all messages that wait to be forwarded.
    pub max_waiting_bytes: usize,
    /// Most connections at a time.
    pub max_connections: usize,
    /// How long a client may take for a request, and be silent before one.
    pub read_timeout: Duration,
    /// How long a message is tried to be forwarded.
    pub forward_for: Duration,
    /// How long an exchange without a queue time waits for its span.
    pub wait: Duration,
    /// Most exchanges that wait.
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
