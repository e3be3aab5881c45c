//! Connections that this process opened, and recognizes when it accepts them: their bytes would be forwarded in a loop.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use pingora::http::ResponseHeader;
use pingora::protocols::GetProxyDigest as _;
use pingora::protocols::l4::stream::Stream as Transport;
use pingora::protocols::raw_connect::ProxyDigest;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::relay::Endpoint;

/// Both ends of a TCP connection: local and remote address. Local addresses alone are ambiguous, because connections
/// to different remote addresses may use the same local port.
type Ends = (SocketAddr, SocketAddr);

/// The open connections to servers, with the number of this process's listeners that their bytes have passed.
///
/// Configured upstream addresses are compared with the listen addresses at startup. That comparison misses host names,
/// other addresses of this machine and redirected connections.
#[derive(Debug)]
pub(crate) struct OwnConnections {
    listeners: usize,
    open: Mutex<HashMap<Ends, usize>>,
}

impl OwnConnections {
    /// For a process with this many listeners.
    pub(crate) fn new(listeners: usize) -> Arc<OwnConnections> {
        Arc::new(OwnConnections { listeners, open: Mutex::default() })
    }

    /// Records a connection from `local` to `remote` until the returned value is dropped.
    pub(crate) fn add(self: &Arc<Self>, local: SocketAddr, remote: SocketAddr, hops: usize) -> Own {
        let mut remote = canonical(remote);
        if remote.ip().is_unspecified() {
            // The kernel connects to the loopback address instead.
            let loopback = if remote.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            remote.set_ip(loopback);
        }
        let ends = (canonical(local), remote);
        self.open().insert(ends, hops);
        Own { all: Arc::clone(self), ends }
    }

    /// Number of listeners that the bytes of an accepted connection have passed before; 0 for other processes' clients.
    ///
    /// # Errors
    /// The bytes have passed every listener, so they are in a loop.
    pub(crate) fn hops(&self, peer: SocketAddr, local: SocketAddr) -> io::Result<usize> {
        let hops = self.open().get(&(canonical(peer), canonical(local))).copied().unwrap_or(0);
        if hops < self.listeners {
            return Ok(hops);
        }
        Err(io::Error::other("the server's address leads back to tokometer; write the server's own address"))
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Ends, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address with an IPv4 address instead of an IPv4-mapped one (`::ffff:a.b.c.d`), which a listener on `[::]` gets.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    // Without the scope of a link-local address: the kernel reports it at one end only.
    SocketAddr::new(ip, address.port())
}

/// The record of one connection.
#[derive(Debug)]
pub(crate) struct Own {
    all: Arc<OwnConnections>,
    ends: Ends,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.all.open().remove(&self.ends);
    }
}

/// A TCP connection to a server.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) stream: TcpStream,
    pub(crate) own: Own,
}

impl Endpoint for Opened {
    fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.socket()
    }

    fn into_transport(self: Box<Self>) -> Transport {
        let mut transport = Transport::from(self.stream);
        // pingora keeps the digest as long as the stream. The response is a placeholder.
        let response = Box::new(ResponseHeader::build_no_case(200, Some(0)).expect("200 is a status"));
        transport.set_proxy_digest(ProxyDigest::new(response, Some(Box::new(self.own))));
        transport
    }
}

impl AsyncRead for Opened {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Opened {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    #[test]
    fn own_connection_is_recognized_in_every_notation_of_its_addresses() {
        let own = OwnConnections::new(1);
        for (local, remote, peer, accepted) in [
            ("127.0.0.1:1", "127.0.0.1:8", "127.0.0.1:1", "127.0.0.1:8"),
            ("127.0.0.1:1", "127.0.0.1:8", "[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:8"),
            ("[::ffff:10.0.0.1]:1", "[::ffff:10.0.0.1]:8", "10.0.0.1:1", "10.0.0.1:8"),
            ("127.0.0.1:1", "0.0.0.0:8", "[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:8"),
            ("[::1]:1", "[::]:8", "[::1]:1", "[::1]:8"),
            ("[fe80::1%2]:1", "[fe80::1%2]:8", "[fe80::1]:1", "[fe80::1%2]:8"),
        ] {
            let open = own.add(at(local), at(remote), 1);
            assert!(own.hops(at(peer), at(accepted)).is_err(), "{local} {remote}");
            drop(open);
            assert_eq!(own.hops(at(peer), at(accepted)).unwrap(), 0, "{local} {remote}");
        }
    }

    #[test]
    fn client_with_the_local_port_of_an_own_connection_is_not_a_loop() {
        let own = OwnConnections::new(1);
        let _open = own.add(at("127.0.0.1:1"), at("127.0.0.1:8"), 1);
        assert_eq!(own.hops(at("127.0.0.1:1"), at("127.0.0.1:9")).unwrap(), 0);
    }

    #[test]
    fn listeners_in_series_are_a_loop_only_after_the_last() {
        let own = OwnConnections::new(2);
        let _first = own.add(at("127.0.0.1:1"), at("127.0.0.1:8"), 1);
        assert_eq!(own.hops(at("127.0.0.1:1"), at("127.0.0.1:8")).unwrap(), 1);
        let _second = own.add(at("127.0.0.1:2"), at("127.0.0.1:9"), 2);
        assert!(own.hops(at("127.0.0.1:2"), at("127.0.0.1:9")).is_err());
    }
}
