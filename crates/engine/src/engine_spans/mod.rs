//! Queue times from the engine's own spans: an OTLP receiver, a joiner, and a forwarder.
//!
//! The engine's `--otlp-traces-endpoint` points to this receiver. Each export request gets a response, and is forwarded
//! unmodified to the configured collector. The request spans in it are joined to the requests that the relay observed.
//! None of this runs on the data path's threads, which send their records through a bounded queue.

pub mod interpret;
pub mod spans;

mod forward;
mod intake;
mod joiner;
mod message;
mod receiver;
mod response;
mod stage;
mod stats;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

pub use forward::{Collector, Reply};
pub use receiver::{Error, Receiver};
pub use stage::SpanJoin;
pub use stats::{Join, Lost, Measurements, Refusal, Unsent};

/// Settings of the engine span receiver and of the joiner.
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
    /// Time limit for a request, and for idle time before a request.
    pub read_timeout: Duration,
    /// How long forwarding a message is retried.
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
