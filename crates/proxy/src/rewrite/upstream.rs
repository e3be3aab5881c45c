//! Connections of pingora's pool to the server.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora::protocols::l4::stream::Stream as Transport;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

use crate::relay::{Relay, Stream};
use crate::rewrite::client::Connection;
use crate::rewrite::settings::Settings;

/// How to connect to the server.
#[async_trait]
pub(crate) trait Server: Send + Sync {
    /// Connects; `original` is the destination of the client's packets, if that is the server.
    async fn connect(&self, original: Option<SocketAddr>, http2: bool) -> std::io::Result<Stream>;
}

/// Makes the peers of requests.
pub(crate) struct Peers {
    server: Arc<dyn Server>,
    relay: Arc<Relay>,
}

impl Peers {
    pub(crate) fn new(server: Arc<dyn Server>, relay: Arc<Relay>) -> Peers {
        Peers { server, relay }
    }

    /// The peer of a request on this connection; `http2` for gRPC, which needs it.
    pub(crate) fn peer(&self, connection: &Connection, http2: bool, settings: &Settings) -> Box<HttpPeer> {
        // The connector resolves the name. This address makes pingora accept whichever address a pooled connection has.
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut peer = HttpPeer::new(connection.original.unwrap_or(any), false, String::new());
        peer.group_key = u64::from(http2);
        let options = &mut peer.options;
        let (server, original) = (Arc::clone(&self.server), connection.original);
        options.custom_l4 = Some(Arc::new(Connector { server, original, http2 }));
        options.total_connection_timeout = self.relay.settings().connect_timeout;
        options.read_timeout = settings.upstream_read_timeout;
        // pingora keeps connections forever with `None`, and never with zero.
        options.idle_timeout = Some(settings.upstream_idle_timeout.unwrap_or(Duration::ZERO));
        if http2 {
            options.set_http_version(2, 2);
            options.max_h2_streams = 100;
        }
        Box::new(peer)
    }
}

/// Opens one connection.
struct Connector {
    server: Arc<dyn Server>,
    original: Option<SocketAddr>,
    http2: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("original", &self.original).finish_non_exhaustive()
    }
}

#[async_trait]
impl L4Connect for Connector {
    async fn connect(&self, _: &PeerAddress) -> Result<Transport> {
        match self.server.connect(self.original, self.http2).await {
            Ok(stream) => Ok(stream.into_transport()),
            Err(error) => Err(Error::because(ErrorType::ConnectRefused, "cannot reach the server", error)),
        }
    }
}
