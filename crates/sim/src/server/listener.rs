//! Listening sockets.

use std::io;
use std::net::Ipv6Addr;
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio::net::TcpSocket;
use tokio::net::UnixListener;

use crate::server::http::Wire;
use crate::server::settings::Listen;

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

/// A Unix socket whose file is removed on drop.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "simulated server socket file was already removed");
        }
    }
}

impl Listener {
    pub(crate) fn bind(listen: &Listen) -> io::Result<Listener> {
        match listen {
            Listen::Tcp(address) => {
                let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
                socket.set_reuseaddr(true)?;
                socket.bind(*address)?;
                // Load tests open thousands of connections at once.
                Ok(Listener::Tcp(socket.listen(4096)?))
            }
            Listen::Unix(path) => {
                Ok(Listener::Unix(UnixSocket { listener: UnixListener::bind(path)?, path: path.clone() }))
            }
        }
    }

    /// The TCP address; the unspecified address for a Unix socket.
    pub(crate) fn local_address(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Unix(_) => Ok((Ipv6Addr::UNSPECIFIED, 0).into()),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Box<dyn Wire>> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Listener::Unix(socket) => Ok(Box::new(socket.listener.accept().await?.0)),
        }
    }
}
