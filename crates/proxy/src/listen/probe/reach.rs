//! Tests whether a server accepts connections: connects and closes without sending a byte.

use std::io::{self, ErrorKind};
use std::net::ToSocketAddrs;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::listen::settings::Address;
use crate::listen::upstream::is_exhausted;

/// Timeout of a connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

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

/// Connects to this server. Blocks for at most one second per address of the host name, plus the name's resolution
/// time.
pub fn reach(upstream: &Address) -> Reached {
    let result = match upstream {
        Address::OriginalDestination => return Reached::Unknown,
        Address::Unix(path) => unix(path),
        Address::Tcp { host, port } => tcp(host, *port),
    };
    match result {
        Ok(()) => Reached::Accepts,
        // The backlog of a Unix socket is full.
        Err(error) if error.kind() == ErrorKind::WouldBlock => Reached::Accepts,
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
            Reached::Refuses(error)
        }
        // No local port is free.
        Err(error) if is_exhausted(&error) || error.kind() == ErrorKind::AddrNotAvailable => Reached::Unknown,
        Err(error) => Reached::Fails(error),
    }
}

/// Connects to a Unix socket without blocking: `WouldBlock` if a program listens and its backlog is full.
pub(crate) fn unix(path: &std::path::Path) -> io::Result<()> {
    Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?.connect(&SockAddr::unix(path)?)
}

/// Connects to the first address of the host that accepts; otherwise returns the error of the last address.
fn tcp(host: &str, port: u16) -> io::Result<()> {
    let unresolved = |error: io::Error| if is_exhausted(&error) { error } else { io::Error::other(error) };
    let mut last = Err(io::Error::other("the name has no address"));
    for address in (host, port).to_socket_addrs().map_err(unresolved)? {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        last = socket.connect_timeout(&address.into(), CONNECT_TIMEOUT);
        if last.is_ok() {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

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
