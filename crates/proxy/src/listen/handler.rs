//! The interface of a listener that does not relay bytes: another crate serves its connections, request by request.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, io};

use async_trait::async_trait;

use crate::relay::{OpenRequests, Relay, Stream};

/// Properties of a client's connection that its connections to the server depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The destination of the client's packets before a REDIRECT rule diverted them; `None` for a fixed upstream.
    pub original: Option<SocketAddr>,
    /// Number of this process's listeners that the connection has passed before.
    pub(crate) hops: usize,
}

/// Opens connections to the server.
#[async_trait]
pub trait Server: Send + Sync {
    /// Opens one connection.
    async fn connect(&self, route: Route, http2: bool) -> io::Result<Stream>;
}

/// A client's connection, after the TLS handshake.
#[derive(Debug)]
pub struct Client {
    /// The client's address; `None` for a Unix socket.
    pub peer: Option<SocketAddr>,
    /// The server's address as text.
    pub upstream: Arc<str>,
    /// How to reach the server.
    pub route: Route,
    /// The TLS handshake selected HTTP/2.
    pub http2: bool,
    /// Counts the requests of the connection.
    pub requests: Arc<OpenRequests>,
}

/// Serves the connections of one listener on one thread.
#[async_trait]
pub trait Handler: Send + Sync {
    /// Serves all requests of a connection.
    async fn serve(self: Arc<Self>, stream: Stream, client: Client);

    /// Closes idle connections immediately, and other connections after their current request.
    async fn drain(&self);
}

/// Creates the handlers of a listener.
pub trait Handlers: fmt::Debug + Send + Sync {
    /// The handler of this listener for one thread. It opens its connections with `server`.
    fn handler(&self, relay: &Arc<Relay>, listener: usize, server: Arc<dyn Server>) -> Arc<dyn Handler>;

    /// True if `other` creates the same handlers.
    fn equals(&self, other: &dyn Handlers) -> bool;

    /// For [`Handlers::equals`].
    fn as_any(&self) -> &dyn Any;
}

impl PartialEq for dyn Handlers {
    fn eq(&self, other: &dyn Handlers) -> bool {
        self.equals(other)
    }
}

impl Eq for dyn Handlers {}
