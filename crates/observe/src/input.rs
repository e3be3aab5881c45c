//! The interface between a source of traffic (the relay, or a capture of packets) and the observers of connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use crate::measure::TraceParent;

/// Direction of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Request,
    /// From the server to the client.
    Response,
}

/// One end of a relayed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client, downstream of the relay.
    Client,
    /// The server, upstream of the relay.
    Server,
}

/// How a relayed connection ended; the first cause counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Both sides finished in order.
    Finished {
        /// The side that finished first.
        first: Side,
    },
    /// This side reset the connection (RST or I/O error).
    Reset(Side),
    /// The server ended TLS without close_notify while a request was pending: its last bytes may be missing.
    Truncated,
    /// The server could not be reached: nothing was relayed.
    Refused,
    /// No connection to the server within the configured time: nothing was relayed.
    ConnectTimeout,
    /// Closed by the relay: no traffic for the configured idle timeout or half-close timeout.
    IdleTimeout,
    /// Closed by the relay: idle during a drain, or the grace period was over.
    Drained,
    /// The capture ended before the connection did: nothing more is known of it.
    CaptureEnded,
}

/// The network between the server's host and the client, as far as it is known: totals of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Minimum round-trip time of the last minutes (`tcpi_min_rtt` of Linux). The minimum excludes delayed
    /// acknowledgements.
    pub rtt: Option<Duration>,
    /// Segments sent to the client more than once (`tcpi_total_retrans`).
    pub retransmits: Option<u64>,
    /// Time during which the client's receive window was full: it did not read. In a capture, the time for which it
    /// announced a window of zero; in the proxy, the time for which the window stopped the kernel from sending
    /// (`tcpi_rwnd_limited`).
    pub zero_window: Option<Duration>,
}

/// Where the values of a connection's network can be read at any time.
pub trait NetworkSource: Send + Sync {
    /// The values now; `None` if there are none (a Unix socket) or the connection is closed.
    fn network(&self) -> Option<Network>;
}

/// A connection at the time it is accepted.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Number of the connection in this process, from 1.
    pub id: u64,
    /// The client's address; `None` for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// Index of the listener in the configuration.
    pub listener: usize,
    /// The upstream address as text (`127.0.0.1:8001`, `unix:/run/vllm.sock`).
    pub upstream: Arc<str>,
    /// When the connection was accepted.
    pub accepted: Instant,
}

/// Observes one connection. All calls for a connection come from one task, in chronological order. Bytes are passed
/// after they were forwarded (or put in the remainder that waits for the other side).
pub trait Observer: Send {
    /// These bytes were read at `at`.
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant);

    /// The connection's thread did not run for `by` in total since the last call of this method: what is passed next
    /// was read late.
    fn late(&mut self, _by: Duration) {}

    /// The client's bytes that were read at `at`, and passed last, had waited for `by` because the thread did not run.
    fn waited(&mut self, _by: Duration, _at: Instant) {}

    /// True when the connection's data is expensive to observe: the relay then reads small pieces, one per event loop
    /// turn, which bounds the delay of other connections.
    fn is_costly(&self) -> bool {
        false
    }

    /// The sender of `direction` finished in order (FIN read at `at`); the other direction may continue. Not called
    /// when the server ended TLS without close_notify while [`Observer::idle`] was false.
    fn finished(&mut self, direction: Direction, at: Instant);

    /// Bytes of `direction` have waited for their receiver since `since`. [`Observer::blocked`] follows when the wait
    /// ends.
    fn waits(&mut self, _direction: Direction, _since: Instant) {}

    /// Bytes of `direction` waited for their receiver from `since` until `until`.
    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant);

    /// Bytes of the connection are missing in the capture and cannot be recovered: nothing can be parsed after them.
    /// Open requests end unobserved. The last call.
    fn lost(&mut self, _at: Instant) {}

    /// Packets were lost before `at`, of this connection or of others: the values of open requests may be inexact.
    fn lost_packets(&mut self, _at: Instant) {}

    /// The proxy sent this `traceparent` to the server with the request whose headers were passed last: the request's
    /// span has its ids.
    fn sent_trace(&mut self, _sent: TraceParent) {}

    /// What is known of the network now. Called before the bytes that follow a change, and before the end.
    fn network(&mut self, _network: &Network) {}

    /// The network's values can be read from this source until the connection ends. Reading costs a system call.
    fn network_source(&mut self, _source: Arc<dyn NetworkSource>) {}

    /// The connection ended. The last call.
    fn closed(&mut self, close: Close, at: Instant);

    /// True when no request is pending: a drain may close the connection now.
    fn idle(&self) -> bool;
}

/// Makes the observer of each accepted connection.
pub trait Observe: Send + Sync + 'static {
    /// The observer for this connection; `None` to relay it unobserved.
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>>;

    /// True for requests whose streams report token counts only if `stream_options.include_usage` is set: chats and
    /// completions of the OpenAI API.
    fn reports_usage_on_request(&self, _method: &str, _target: &str) -> bool {
        false
    }

    /// An observer panicked: it was dropped; its connection continues unobserved.
    fn panicked(&self) {}
}
