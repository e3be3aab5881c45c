//! Settings of the listeners: listen addresses and their upstreams.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::listen::handler::Handlers;

/// An address to listen on or to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address. A host name is resolved at every connect.
    Tcp {
        /// IP address or host name.
        host: String,
        /// Port; 0 to listen on a free one.
        port: u16,
    },
    /// A Unix socket at this path (`unix:/run/vllm.sock`).
    Unix(PathBuf),
    /// Upstream only: the destination of the client's packets before a REDIRECT rule diverted them to tokometer
    /// (`original`).
    OriginalDestination,
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp { host: address.ip().to_string(), port: address.port() }
    }
}

/// Formats the address in configuration syntax.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "{host}:{port}"),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::OriginalDestination => f.write_str("original"),
        }
    }
}

/// TLS to clients, from PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// When set, clients must present a certificate signed by one of these authorities.
    pub client_ca: Option<PathBuf>,
}

/// TLS to the server, from PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Trusted CA certificates; `None` for the built-in web roots.
    pub ca: Option<PathBuf>,
    /// Name expected in the certificate and sent as SNI; `None` for the host of the upstream address.
    pub server_name: Option<String>,
    /// Client certificate chain and key, if the server requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Accepts any certificate. For tests and for loopback servers with self-signed certificates.
    pub insecure: bool,
}

/// A listener: listen address and upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Name in logs; the listen address by default.
    pub name: String,
    /// The address that clients connect to.
    pub listen: Address,
    /// The address of the server.
    pub upstream: Address,
    /// TLS to clients.
    pub tls: Option<ServerTls>,
    /// TLS to the server.
    pub upstream_tls: Option<ClientTls>,
    /// Serves the connections in rewrite mode; `None` for the byte relay.
    pub rewrite: Option<Arc<dyn Handlers>>,
}
