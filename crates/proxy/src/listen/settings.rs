//! Which addresses are listened on, and where each leads.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

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
    /// Upstream only: where the client's packets went before a REDIRECT rule turned them to us (`original`).
    OriginalDestination,
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp { host: address.ip().to_string(), port: address.port() }
    }
}

/// As it is written in the configuration.
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

/// TLS towards clients: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Certificate chain.
    pub certificate: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// When set, clients must show a certificate that one of these authorities signed.
    pub client_ca: Option<PathBuf>,
}

/// TLS towards the server: PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Authorities to trust; `None` for the built-in web roots.
    pub ca: Option<PathBuf>,
    /// Name to check and to send as SNI; `None` for the host of the upstream address.
    pub server_name: Option<String>,
    /// Our certificate chain and key, if the server asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Accept any certificate. For tests and for servers on loopback with certificates of their own.
    pub insecure: bool,
}

/// One listen -> upstream pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Name of the pair in logs; the listen address if none was given.
    pub name: String,
    /// Where clients connect.
    pub listen: Address,
    /// Where the server is.
    pub upstream: Address,
    /// TLS towards clients.
    pub tls: Option<ServerTls>,
    /// TLS towards the server.
    pub upstream_tls: Option<ClientTls>,
}
