//! Tests whether a server accepts connections: connects, completes the TLS handshake if the server uses TLS, and closes
//! without sending a request. A TLS server may log an error for a connection without a handshake.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use rustls_pki_types::ServerName;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::listen::error::Error;
use crate::listen::settings::{Address, ClientTls, Listener};
use crate::listen::tls;
use crate::listen::upstream::is_exhausted;
use crate::relay::Unreached;

/// Timeout of a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Timeout of a TLS handshake. A server that has not completed it by then is slow, not unreachable.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time to wait for the server's close after the handshake. Until then the server may reject the certificate of
/// this side (TLS 1.3).
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Result of a connect.
#[derive(Debug)]
pub enum Reached {
    /// The server accepts connections.
    Accepts,
    /// No program listens at the address.
    Refuses(io::Error),
    /// The connect failed in another way, such as a timeout: a program may still listen.
    Fails(io::Error),
    /// Nothing is known: the address depends on the client, or this process lacks resources.
    Unknown,
}

/// A server, and how to test whether it accepts connections.
#[derive(Clone, Debug)]
pub struct Probe {
    upstream: Address,
    tls: Option<(ClientTls, ServerName<'static>)>,
}

impl Probe {
    /// Prepares tests of this listener's server.
    ///
    /// # Errors
    /// If the name in the server's certificate is not known.
    pub fn new(listener: &Listener) -> Result<Probe, Error> {
        let Listener { upstream, upstream_tls, .. } = listener;
        let tls = match upstream_tls {
            // An original destination is not tested.
            Some(settings) => tls::server_name(upstream, settings)?.map(|name| (settings.clone(), name)),
            None => None,
        };
        Ok(Probe { upstream: upstream.clone(), tls })
    }

    /// Prepares tests of a server without TLS.
    #[cfg(test)]
    pub(crate) fn plain(upstream: Address) -> Probe {
        Probe { upstream, tls: None }
    }

    /// The server's address.
    pub fn upstream(&self) -> &Address {
        &self.upstream
    }

    /// Connects to the server. Blocks for at most one second per address of the host name, plus the name's resolution
    /// time, plus a few seconds for a TLS handshake.
    pub fn reach(&self) -> Reached {
        let result = match &self.upstream {
            Address::OriginalDestination => return Reached::Unknown,
            Address::Unix(path) => unix(path).and_then(|socket| self.handshake(socket)),
            Address::Tcp { host, port } => self.host(host, *port),
        };
        match result {
            Ok(()) => Reached::Accepts,
            // The backlog of a Unix socket is full.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Reached::Accepts,
            Err(error) if Unreached::of(&error) == Unreached::Refused => Reached::Refuses(error),
            // No local port is free.
            Err(error) if is_exhausted(&error) || error.kind() == ErrorKind::AddrNotAvailable => Reached::Unknown,
            Err(error) => Reached::Fails(error),
        }
    }

    /// Connects to the first address of the host that accepts; otherwise returns the error of the last address.
    fn host(&self, host: &str, port: u16) -> io::Result<()> {
        let unresolved =
            |error: io::Error| if is_exhausted(&error) { error } else { Unreached::NameResolution.mark(error) };
        let mut last = Err(Unreached::NameResolution.mark(io::Error::other("the name has no address")));
        for address in (host, port).to_socket_addrs().map_err(unresolved)? {
            last = self.connect(address);
            if last.is_ok() {
                break;
            }
        }
        last
    }

    /// Connects to this address as to the server.
    pub(crate) fn connect(&self, address: SocketAddr) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.connect_timeout(&address.into(), CONNECT_TIMEOUT)?;
        self.handshake(socket)
    }

    /// Completes the TLS handshake, if the server uses TLS, and closes the connection. A timeout is not an error.
    fn handshake(&self, mut socket: Socket) -> io::Result<()> {
        let Some((settings, name)) = &self.tls else { return Ok(()) };
        // Unusable files are a fault of this side: nothing is known about the server.
        let config = tls::probe_config(settings).map_err(|_| io::Error::from(ErrorKind::AddrNotAvailable))?;
        let mut tls = ClientConnection::new(config, name.clone()).map_err(|error| failed(&error))?;
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
        let mut until = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut is_closing = false;
        loop {
            let is_complete = !is_closing && !tls.is_handshaking();
            if is_complete {
                tls.send_close_notify();
            }
            while tls.wants_write() {
                if let Err(error) = tls.write_tls(&mut socket) {
                    return if is_slow(&error) { Ok(()) } else { Err(Unreached::Tls.mark(error)) };
                }
            }
            if is_complete {
                is_closing = true;
                until = Instant::now() + CLOSE_TIMEOUT;
                socket.shutdown(Shutdown::Write).ok();
            }
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(());
            }
            socket.set_read_timeout(Some(rest))?;
            match tls.read_tls(&mut socket) {
                Ok(0) if !is_closing => return Err(Unreached::Tls.mark(ErrorKind::UnexpectedEof.into())),
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if is_closing || is_slow(&error) => return Ok(()),
                Err(error) => return Err(Unreached::Tls.mark(error)),
            }
            if let Err(error) = tls.process_new_packets() {
                // Sends the alert that explains the close.
                tls.write_tls(&mut socket).ok();
                return Err(failed(&error));
            }
        }
    }
}

/// A read or write that timed out.
fn is_slow(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn failed(error: &rustls::Error) -> io::Error {
    Unreached::Tls.mark(io::Error::new(ErrorKind::InvalidData, error.to_string()))
}

/// Connects to a Unix socket without blocking: `WouldBlock` if a program listens and its backlog is full.
pub(crate) fn unix(path: &std::path::Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn reach(upstream: &Address) -> Reached {
        Probe::plain(upstream.clone()).reach()
    }

    #[test]
    fn listening_server_accepts_and_a_closed_port_refuses() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::from(server.local_addr().unwrap());
        assert!(matches!(reach(&address), Reached::Accepts));
        // Bound, so that no other test gets its port, but not listening.
        let closed = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        closed.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let closed = closed.local_addr().unwrap().as_socket().unwrap();
        assert!(matches!(reach(&Address::from(closed)), Reached::Refuses(_)));
        assert!(matches!(reach(&Address::OriginalDestination), Reached::Unknown));
    }

    #[test]
    fn failed_check_keeps_its_error() {
        // Resolving an invalid host name fails without a DNS server.
        let Reached::Fails(error) = reach(&Address::Tcp { host: "a\0b".to_owned(), port: 1 }) else {
            panic!("it fails")
        };
        assert!(error.to_string().contains("NUL"), "{error}");
        assert_eq!(Unreached::of(&error), Unreached::NameResolution);
    }

    #[test]
    fn unix_socket_refuses_without_a_listener() {
        let folder = std::env::temp_dir().join(format!("tokometer-reach-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("server");
        let address = Address::Unix(path.clone());
        assert!(matches!(reach(&address), Reached::Refuses(_)));
        let server = UnixListener::bind(&path).unwrap();
        assert!(matches!(reach(&address), Reached::Accepts));
        drop(server);
        assert!(matches!(reach(&address), Reached::Refuses(_)));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
