//! Connections to the server: one for each accepted connection.

pub(crate) mod own;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use rustls_pki_types::ServerName;
use socket2::{Domain, Protocol as SocketProtocol, SockRef, Socket, Type};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::Instant;
use tokio_rustls::{TlsConnector, TlsStream};

use crate::listen::bind::{keep_alive, limit_unsent};
use crate::listen::error::Error;
use crate::listen::handler::{Route, Server};
use crate::listen::settings::{Address, ClientTls};
use crate::listen::tls;
use crate::listen::tls::Protocol;
use crate::listen::tls::rotation::Rotating;
use crate::listen::upstream::own::{Opened, OwnConnections, canonical};
use crate::relay::{Stream, Unreached};

/// Delay between attempts while the process has no free descriptors.
const RETRY: Duration = Duration::from_millis(50);

/// Receive buffer of a connection to the server. The kernel doubles it and uses half for its own structures. The server
/// is near, so a window of this size does not limit the throughput: 64 KiB per 0.2 ms are 300 MB/s.
const SERVER_BUFFER: usize = 64 * 1024;

/// A connect that has not completed yet.
const EINPROGRESS: i32 = 115;

/// Maximum time that a connection waits for a descriptor. Each connection waits a random part of this time, at least
/// one fifth. If waiting connections hold all descriptors, the first to give up free descriptors for the others.
const MAX_DESCRIPTOR_WAIT: Duration = Duration::from_secs(5);

/// A server and how to connect to it.
pub struct Upstream {
    address: Address,
    /// The address as text.
    name: Arc<str>,
    tls: Option<(Arc<Rotating<TlsConnector>>, Option<ServerName<'static>>)>,
    keepalive: Option<Duration>,
    own: Arc<OwnConnections>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Upstream {
    /// Prepares connections to this address; fails when the TLS files cannot be used.
    pub fn new(
        address: &Address,
        client_tls: Option<&ClientTls>,
        keepalive: Option<Duration>,
    ) -> Result<Upstream, Error> {
        Upstream::recorded(address, client_tls, keepalive, OwnConnections::new(1))
    }

    /// Like [`Upstream::new`]. The connections are recorded in `own`, and refused if they are accepted from there.
    pub(crate) fn recorded(
        address: &Address,
        client_tls: Option<&ClientTls>,
        keepalive: Option<Duration>,
        own: Arc<OwnConnections>,
    ) -> Result<Upstream, Error> {
        let tls = match client_tls {
            None => None,
            Some(settings) => Some((tls::rotating_connector(settings)?, tls::server_name(address, settings)?)),
        };
        Ok(Upstream { address: address.clone(), name: address.to_string().into(), tls, keepalive, own })
    }

    /// Returns the upstream address of this client's connection as text, and the connection's route.
    pub(crate) fn route(&self, client: &Stream, peer: Option<SocketAddr>) -> (Arc<str>, io::Result<Route>) {
        let (name, original) = if self.address == Address::OriginalDestination {
            match original_destination(client) {
                Ok(address) => (address.to_string().into(), Ok(Some(address))),
                Err(error) => (Arc::clone(&self.name), Err(error)),
            }
        } else {
            (Arc::clone(&self.name), Ok(None))
        };
        let route = original.and_then(|original| {
            // A client of a Unix socket has no address.
            let Some(peer) = peer else { return Ok(Route::default()) };
            // The address that the client connected to, before a REDIRECT rule diverted the connection.
            let Some(local) = original.or_else(|| local_address(client)) else { return Ok(Route::default()) };
            Ok(Route { original, hops: self.own.hops(peer, local)? })
        });
        (name, route)
    }

    /// Connects to the server for a client with this route. `protocol` is the protocol negotiated with the client.
    pub async fn connect(&self, route: Route, protocol: Protocol) -> io::Result<Stream> {
        let Route { original, hops } = route;
        let socket = open_with_retry(|| self.open(original, hops)).await?;
        let Some((connector, name)) = &self.tls else { return Ok(socket) };
        let name = match (name, original) {
            (Some(name), _) => name.clone(),
            (None, Some(original)) => ServerName::IpAddress(original.ip().into()),
            (None, None) => {
                let error = io::Error::other("no server name to check the certificate against");
                return Err(Unreached::Tls.mark(error));
            }
        };
        let connect = connector.get().await.with_alpn(vec![protocol.alpn().to_vec()]).connect(name, socket);
        Ok(Box::new(TlsStream::from(Box::pin(connect).await.map_err(|error| Unreached::Tls.mark(error))?)))
    }

    async fn open(&self, original: Option<SocketAddr>, hops: usize) -> io::Result<Stream> {
        let opened = match &self.address {
            Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp { host, port } => self.open_host(host, *port, hops).await?,
            Address::OriginalDestination => {
                self.open_tcp(original.ok_or(io::ErrorKind::AddrNotAvailable)?, hops).await?
            }
        };
        Ok(Box::new(opened))
    }

    /// Connects to the first address of the host that accepts the connection.
    async fn open_host(&self, host: &str, port: u16, hops: usize) -> io::Result<Opened> {
        let unresolved =
            |error: io::Error| if is_exhausted(&error) { error } else { Unreached::NameResolution.mark(error) };
        let mut last = Unreached::NameResolution.mark(io::Error::other("the name has no address"));
        for address in lookup_host((host, port)).await.map_err(unresolved)? {
            match self.open_tcp(address, hops).await {
                Ok(opened) => return Ok(opened),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn open_tcp(&self, address: SocketAddr, hops: usize) -> io::Result<Opened> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(SocketProtocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        keep_alive(SockRef::from(&socket), self.keepalive)?;
        limit_unsent(SockRef::from(&socket));
        // The receive buffer of a connection whose client does not read fills up. A fixed size keeps the kernel from
        // enlarging it while the client reads fast.
        socket.set_recv_buffer_size(SERVER_BUFFER).ok();
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(EINPROGRESS) => return Err(error),
            _ => {}
        }
        // Recorded before this thread can accept the connection, if the server is this process.
        let local = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let own = self.own.add(local, address, hops + 1);
        let stream = TcpStream::from_std(socket.into())?;
        stream.writable().await?;
        match stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(Opened { stream, own }),
        }
    }
}

#[async_trait]
impl Server for Upstream {
    async fn connect(&self, route: Route, http2: bool) -> io::Result<Stream> {
        Upstream::connect(self, route, if http2 { Protocol::Http2 } else { Protocol::Http1 }).await
    }
}

/// Retries while the process (EMFILE) or the machine (ENFILE) has no free descriptors. Also retries, without a time
/// limit, while the backlog of a Unix socket is full (EAGAIN), as a blocking connect would. With TCP, the kernel
/// retries.
async fn open_with_retry<T, F: Future<Output = io::Result<T>>>(mut open: impl FnMut() -> F) -> io::Result<T> {
    let mut until = None;
    loop {
        let error = match open().await {
            Err(error) if is_exhausted(&error) => error,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
            result => return result,
        };
        let until =
            *until.get_or_insert_with(|| Instant::now() + MAX_DESCRIPTOR_WAIT.mul_f64(0.2 + 0.8 * fastrand::f64()));
        if Instant::now() >= until {
            return Err(error);
        }
        tokio::time::sleep(RETRY).await;
    }
}

pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

/// The destination of the client's packets before a REDIRECT rule diverted them to tokometer (SO_ORIGINAL_DST,
/// netfilter connection tracking; v4 and v6).
fn original_destination(client: &Stream) -> io::Result<SocketAddr> {
    let descriptor = client.socket();
    let socket = SockRef::from(&descriptor);
    let Some(local) = socket.local_addr()?.as_socket() else {
        return Err(io::Error::other("a Unix socket has no original destination"));
    };
    let original = if local.is_ipv4() {
        socket.original_dst_v4()
    } else {
        socket.original_dst_v6().or_else(|_| socket.original_dst_v4())
    };
    match original.ok().and_then(|address| address.as_socket()).map(canonical) {
        // Connecting to the local address would loop forever.
        Some(original) if original != canonical(local) => Ok(original),
        _ => Err(io::Error::other("no REDIRECT rule diverted this connection to tokometer")),
    }
}

fn local_address(client: &Stream) -> Option<SocketAddr> {
    SockRef::from(&client.socket()).local_addr().ok()?.as_socket()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn full_backlog_of_a_unix_socket_is_waited_for() {
        let mut results =
            [Err(io::ErrorKind::WouldBlock.into()), Err(io::ErrorKind::WouldBlock.into()), Ok(7)].into_iter();
        let connected = open_with_retry(|| std::future::ready(results.next().unwrap())).await;
        assert_eq!(connected.unwrap(), 7);
    }
}
