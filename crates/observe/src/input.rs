//! The interface between a traffic source (the relay or a packet capture) and the observers of its connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokometer_wire::budget::Budget;

pub use crate::measure::TraceParent;
pub use tokometer_wire::Activity;

/// Direction of bytes on a connection.
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

/// How a relayed connection ended. If several causes apply, the one detected first is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// The connection ended without a reset. Usually, both sides finished sending.
    Finished {
        /// The side that finished first.
        first: Side,
    },
    /// This side reset the connection (RST or I/O error).
    Reset(Side),
    /// The server ended TLS without close_notify while a request was pending: the last bytes may be missing.
    Truncated,
    /// The connection to the server failed. Nothing was relayed.
    Refused,
    /// The server did not accept a connection within the configured time. Nothing was relayed.
    ConnectTimeout,
    /// The relay closed the connection: no traffic for the configured idle timeout or half-close timeout.
    IdleTimeout,
    /// The relay closed the connection: it was idle during a drain, or the grace period had ended.
    Drained,
    /// The relay closed the connection to make room for others: its client had not completed a request.
    Evicted,
    /// The capture ended while the connection was open. The rest of the connection is unknown.
    CaptureEnded,
}

/// Network values of the connection between the client and the server's host. Counts and times are totals of the
/// connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Minimum round-trip time in the last minutes (`tcpi_min_rtt` of Linux). Delayed acknowledgements do not increase
    /// the minimum.
    pub rtt: Option<Duration>,
    /// Segments retransmitted to the client (`tcpi_total_retrans`).
    pub retransmits: Option<u64>,
    /// Time during which the client's receive window was full because the client did not read. In a capture: time with
    /// an announced window of zero. In the proxy: time during which the window kept the kernel from sending
    /// (`tcpi_rwnd_limited`).
    pub zero_window: Option<Duration>,
}

/// A source from which a connection's network values can be read at any time.
pub trait NetworkSource: Send + Sync {
    /// The current values; `None` if there are no values (a Unix socket) or the connection is closed.
    fn network(&self) -> Option<Network>;
}

/// A newly accepted connection.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Connection number in this process, from 1.
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

/// Observes one connection. One task makes all calls, in chronological order. The relay forwards (or buffers) bytes
/// before it passes them to the observer.
pub trait Observer: Send {
    /// These bytes were read at `at`.
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant);

    /// Since the last call of this method, the connection's thread was delayed by `by` in total, so the bytes passed
    /// next were read late.
    fn late(&mut self, _by: Duration) {}

    /// The client bytes last passed to [`Observer::seen`], read at `at`, waited in the socket for `by` because the
    /// thread did not run.
    fn waited(&mut self, _by: Duration, _at: Instant) {}

    /// True if the connection's data is expensive to parse. The relay then reads one small piece per event loop turn,
    /// to limit the delay of other connections.
    fn is_costly(&self) -> bool {
        false
    }

    /// The sender of `direction` finished sending (FIN read at `at`); the other direction may continue. Not called when
    /// the server ended TLS without close_notify while [`Observer::idle`] was false.
    fn finished(&mut self, direction: Direction, at: Instant);

    /// The receiver has not accepted bytes of `direction` since `since`. [`Observer::blocked`] is called when the wait
    /// ends.
    fn waits(&mut self, _direction: Direction, _since: Instant) {}

    /// The receiver did not accept bytes of `direction` from `since` until `until`.
    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant);

    /// The capture lacks bytes of the connection, so the rest cannot be parsed. Open requests are recorded as
    /// unobserved. This is the last call.
    fn lost(&mut self, _at: Instant) {}

    /// The capture lost packets of this or another connection before `at`, so the values of open requests may be
    /// inexact.
    fn lost_packets(&mut self, _at: Instant) {}

    /// The proxy forwarded the request whose headers were passed last with this `traceparent`. The request's span uses
    /// these ids.
    fn sent_trace(&mut self, _sent: TraceParent) {}

    /// The current network values. If they have changed, called before the next bytes are passed and before the
    /// connection ends.
    fn network(&mut self, _network: &Network) {}

    /// Provides a source from which the network values can be read until the connection ends. Each read costs a system
    /// call.
    fn network_source(&mut self, _source: Arc<dyn NetworkSource>) {}

    /// The connection ended. This is the last call.
    fn closed(&mut self, close: Close, at: Instant);

    /// True if no request is pending, so that a drain may close the connection now.
    fn idle(&self) -> bool;

    /// What the connection waits for. Called for every read, so the cost must be constant.
    fn activity(&self) -> Activity {
        if self.idle() { Activity::Idle } else { Activity::InProgress }
    }
}

/// Creates the observer of each accepted connection.
pub trait Observe: Send + Sync + 'static {
    /// The observer for this connection; `None` to relay it unobserved.
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>>;

    /// True if streamed responses to this request contain token counts only if the request sets
    /// `stream_options.include_usage` (chats and completions of the OpenAI API).
    fn reports_usage_on_request(&self, _method: &str, _target: &str) -> bool {
        false
    }

    /// The memory budget of the process. A traffic source that holds back bytes takes its memory from this budget.
    fn budget(&self) -> Budget {
        Budget::new(usize::MAX)
    }

    /// An observer panicked and was dropped. Its connection continues unobserved.
    fn panicked(&self) {}
}
