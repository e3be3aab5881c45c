//! What the relay shows of a connection, and to whom.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// Which way bytes went.
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
    /// The client, downstream of us.
    Client,
    /// The server, upstream of us.
    Server,
}

/// How a relayed connection ended, by what came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// Both sides finished in order; `first` is the side whose FIN came first.
    Finished {
        /// The side that finished first.
        first: Side,
    },
    /// This side reset the connection (RST, or an I/O error of its own).
    Reset(Side),
    /// The server ended TLS without close_notify while a request was open: what it sent last may be missing.
    Truncated,
    /// The server could not be reached: nothing was relayed.
    Refused,
    /// The connection to the server was not made within the configured time: nothing was relayed.
    ConnectTimeout,
    /// We closed it: nothing moved for the configured idle timeout, or half-close timeout.
    IdleTimeout,
    /// We closed it: the connection was idle in a drain, or the grace period was over.
    Drained,
}

/// What is known of a connection when it is accepted.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Number of the connection in this process, from 1.
    pub id: u64,
    /// The client's address; `None` for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// Index of the listen -> upstream pair in the configuration.
    pub pair: usize,
    /// The upstream address as text (`127.0.0.1:8001`, `unix:/run/vllm.sock`).
    pub upstream: Arc<str>,
    /// When the connection was accepted.
    pub accepted: Instant,
}

/// Watches one connection. All calls for a connection come from one task, in the order in which things happened;
/// bytes are shown after they were forwarded (or put in the remainder that waits for the other side).
pub trait Observer: Send {
    /// These bytes were read at `at`.
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant);

    /// True when what the connection carries is expensive to observe: it is then read in small pieces, one in a turn of the
    /// event loop, so that other connections wait no longer for it.
    fn is_costly(&self) -> bool {
        false
    }

    /// The sender of `direction` finished in order (FIN read at `at`); the other direction may go on. Not called when the
    /// server ended TLS without close_notify while [`Observer::idle`] was false.
    fn finished(&mut self, direction: Direction, at: Instant);

    /// Bytes of `direction` wait for their receiver, since `since`. [`Observer::blocked`] follows when they wait no longer.
    fn waits(&mut self, _direction: Direction, _since: Instant) {}

    /// Bytes of `direction` waited for their receiver from `since` until `until`.
    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant);

    /// The connection is over. The last call.
    fn closed(&mut self, close: Close, at: Instant);

    /// True when no exchange is open: a drain may close the connection now.
    fn idle(&self) -> bool;
}

/// Makes the observer of each accepted connection.
pub trait Observe: Send + Sync + 'static {
    /// The observer for this connection; `None` to relay it unobserved.
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>>;

    /// An observer panicked: it was dropped, and its connection goes on unobserved.
    fn panicked(&self) {}
}
