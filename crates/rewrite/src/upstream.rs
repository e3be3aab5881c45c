//! Connections to the server from pingora's pool, and the meaning of pingora's errors.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use pingora::connectors::L4Connect;
use pingora::protocols::l4::socket::SocketAddr as PeerAddress;
use pingora::protocols::l4::stream::Stream as Transport;
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};

use crate::client::Connection;
use crate::settings::Settings;
use tokometer_observe::input::{Close, Side};
use tokometer_proxy::listen::{Route, Server};
use tokometer_proxy::relay::{Relay, Unreached};

/// Creates the peer of each request: pingora's description of the connection to the server.
pub(crate) struct Peers {
    server: Arc<dyn Server>,
    relay: Arc<Relay>,
}

impl Peers {
    pub(crate) fn new(server: Arc<dyn Server>, relay: Arc<Relay>) -> Peers {
        Peers { server, relay }
    }

    /// The peer for a request on this client connection. `http2` is true for gRPC, which requires HTTP/2.
    pub(crate) fn peer(&self, connection: &Connection, http2: bool, settings: &Settings) -> Box<HttpPeer> {
        // A placeholder, because the connector resolves the host name. For 0.0.0.0, pingora does not check the address
        // of a pooled connection.
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut peer = HttpPeer::new(connection.route.original.unwrap_or(any), false, String::new());
        peer.group_key = u64::from(http2);
        let options = &mut peer.options;
        let (server, route) = (Arc::clone(&self.server), connection.route);
        options.custom_l4 = Some(Arc::new(Connector { server, route, http2 }));
        options.total_connection_timeout = self.relay.settings().connect_timeout;
        options.read_timeout = settings.upstream_read_timeout;
        // `None` makes pingora keep idle connections forever; zero makes it close them immediately.
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
    route: Route,
    http2: bool,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("route", &self.route).finish_non_exhaustive()
    }
}

#[async_trait]
impl L4Connect for Connector {
    async fn connect(&self, _: &PeerAddress) -> Result<Transport> {
        match self.server.connect(self.route, self.http2).await {
            Ok(stream) => Ok(stream.into_transport()),
            Err(error) => Err(Error::because(ErrorType::ConnectRefused, "cannot reach the server", error)),
        }
    }
}

/// Error types in responses to clients: no connection to the server, no valid response from the server.
pub(crate) const UNREACHABLE: &str = "upstream_unreachable";
pub(crate) const UPSTREAM: &str = "upstream_error";

/// Status and type of the response to a client whose request failed; 0 if the client is gone.
pub(crate) fn status(error: &Error, connected: bool) -> (u16, &'static str) {
    match (error.etype(), error.esource()) {
        (ErrorType::HTTPStatus(code), _) => (*code, "invalid_request_error"),
        (_, ErrorSource::Upstream) if !connected => (503, UNREACHABLE),
        (ErrorType::ReadTimedout | ErrorType::WriteTimedout, ErrorSource::Upstream) => (504, UPSTREAM),
        (_, ErrorSource::Upstream) => (502, UPSTREAM),
        (ErrorType::ReadError | ErrorType::WriteError | ErrorType::ConnectionClosed, ErrorSource::Downstream) => {
            (0, "")
        }
        (ErrorType::H2Error, ErrorSource::Downstream) => (0, ""),
        (ErrorType::ReadTimedout | ErrorType::WriteTimedout, ErrorSource::Downstream) => (408, "invalid_request_error"),
        (_, ErrorSource::Downstream) => (400, "invalid_request_error"),
        _ => (502, UPSTREAM),
    }
}

/// How the connection ended, as a [`Close`] for the observer.
pub(crate) fn ended_by(error: &Error, connected: bool) -> Close {
    match (error.esource(), error.etype()) {
        (ErrorSource::Downstream, _) | (_, ErrorType::HTTPStatus(_)) => Close::Reset(Side::Client),
        (_, ErrorType::ConnectTimedout) => Close::ConnectTimeout,
        (ErrorSource::Upstream, _) if !connected && unreached(error) == Unreached::Timeout => Close::ConnectTimeout,
        (ErrorSource::Upstream, _) if !connected => Close::Refused,
        (_, ErrorType::ReadTimedout | ErrorType::WriteTimedout) => Close::IdleTimeout,
        // pingora-core 0.9.1, protocols/http/v1/body.rs: the server closed the connection in the middle of a body.
        (_, ErrorType::ConnectionClosed | ErrorType::Custom("PrematureBodyEnd")) => {
            Close::Finished { first: Side::Server }
        }
        _ => Close::Reset(Side::Server),
    }
}

/// Why the server could not be reached.
pub(crate) fn unreached(error: &Error) -> Unreached {
    let connect = error.root_cause().downcast_ref::<io::Error>();
    connect.map_or(Unreached::Other, Unreached::of)
}

/// The error for the log. Not pingora's text: its context may contain received headers.
pub(crate) fn logged(error: &Error) -> String {
    let kind = error.root_cause().downcast_ref::<io::Error>().map(|error| format!(": {}", error.kind()));
    format!("{} {}{}", error.esource().as_str(), error.etype().as_str(), kind.unwrap_or_default())
}

/// The cause without pingora's context, which names code locations and connections.
pub(crate) fn cause(error: &Error) -> String {
    match (&error.cause, &error.context) {
        (Some(cause), _) => cause.to_string(),
        (None, Some(context)) => context.as_str().to_owned(),
        (None, None) => error.etype().as_str().to_owned(),
    }
}
