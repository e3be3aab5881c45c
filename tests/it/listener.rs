//! A simple listener for tests, and a reserved address.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};
use tokometer_proxy::listen::{Address, Listener};

/// A listener without TLS on a free TCP port.
pub(crate) fn listener_to(upstream: impl Into<Address>) -> Listener {
    Listener {
        name: "test".to_owned(),
        listen: Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 },
        upstream: upstream.into(),
        tls: None,
        upstream_tls: None,
        rewrite: None,
    }
}

/// An address whose port is not assigned to any other test: a socket stays bound to it. Connects are refused until a
/// test listens on the port explicitly.
pub(crate) fn reserved() -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    // The socket stays bound until the process exits.
    std::mem::forget(socket);
    address
}
