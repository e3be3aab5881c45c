//! Opens the listening sockets before anything runs: errors are reported at startup, and port 0 is already resolved.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::listen::error::Error;
use crate::listen::settings::{Address, Listener};
use crate::relay::Settings;

/// The kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 65_535;

/// A listener whose socket is open. Connections wait in its backlog until the listener is served.
#[derive(Debug)]
pub struct Bound {
    /// The listener as configured.
    pub listener: Listener,
    /// The listen address as configured, with the real port in place of port 0.
    pub address: Address,
    pub(crate) socket: OwnedFd,
    pub(crate) file: Option<Arc<SocketFile>>,
}

impl Bound {
    /// One socket per thread. The kernel distributes TCP connections over sockets with SO_REUSEPORT; Unix sockets have
    /// no equivalent, so the threads share one.
    pub(crate) fn sockets(&self, threads: usize, settings: &Settings) -> Result<Vec<OwnedFd>, Error> {
        let Address::Tcp { host, port } = &self.address else {
            let shared = (0..threads).map(|_| self.socket.try_clone());
            return shared.collect::<io::Result<_>>().map_err(|source| cannot_bind(&self.address, source));
        };
        let open = || {
            let mut sockets = vec![self.socket.try_clone()?];
            if threads > 1 {
                // The first socket was bound without it, so no other process uses the port; the process's other sockets
                // may join now.
                SockRef::from(&self.socket).set_reuse_port(true)?;
            }
            let settings = Settings { port_sharing: true, ..settings.clone() };
            for _ in 1..threads {
                sockets.push(bind_tcp(host, *port, &settings)?.0);
            }
            Ok(sockets)
        };
        open().map_err(|source| cannot_bind(&self.address, source))
    }
}

fn cannot_bind(address: &Address, source: io::Error) -> Error {
    Error::Bind { address: address.clone(), fix: fix(&source), source }
}

/// Opens the socket of this listener.
///
/// A TCP address that another process listens on is an error, unless `settings.port_sharing` is set and both processes
/// share the port with SO_REUSEPORT. TCP sockets get keep-alive and TCP_NODELAY, which accepted sockets inherit
/// (tcp(7)).
///
/// # Errors
/// When the address is in use, does not belong to this machine, or is not permitted.
pub fn bind(listener: Listener, settings: &Settings) -> Result<Bound, Error> {
    let opened = match &listener.listen {
        Address::Tcp { host, port } => bind_tcp(host, *port, settings),
        Address::Unix(path) => bind_unix(path),
        Address::OriginalDestination => return Err(Error::ListenOnOriginal),
    };
    match opened {
        Ok((socket, address, file)) => Ok(Bound { listener, address, socket, file: file.map(Arc::new) }),
        Err(source) => Err(cannot_bind(&listener.listen, source)),
    }
}

fn bind_tcp(host: &str, port: u16, settings: &Settings) -> io::Result<(OwnedFd, Address, Option<SocketFile>)> {
    let address = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(settings.port_sharing)?;
    socket.set_tcp_nodelay(true)?;
    keep_alive(SockRef::from(&socket), settings.keepalive)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let port = socket.local_addr()?.as_socket().map_or(port, |bound: SocketAddr| bound.port());
    Ok((socket.into(), Address::Tcp { host: address.ip().to_string(), port }, None))
}

/// Probes start after `idle` and repeat every tenth of it: a dead peer is detected within twice that time.
pub(crate) fn keep_alive(socket: SockRef<'_>, idle: Option<Duration>) -> io::Result<()> {
    let Some(idle) = idle else { return Ok(()) };
    let interval = (idle / 10).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))
}

fn bind_unix(path: &Path) -> io::Result<(OwnedFd, Address, Option<SocketFile>)> {
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    let file = SocketFile { path: path.to_path_buf(), inode: inode(path)? };
    Ok((listener.into(), Address::Unix(path.to_path_buf()), Some(file)))
}

/// Removes a socket file without a listening process; leaves any other file alone.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type().is_socket(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match UnixStream::connect(path) {
        Err(error) if is_socket && error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ if is_socket => Err(io::ErrorKind::AddrInUse.into()),
        _ => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket")),
    }
}

fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        // TCP only; for a Unix socket the error comes from `remove_stale`.
        io::ErrorKind::AddrInUse if error.raw_os_error().is_some() => {
            "stop the program that uses it, listen on another address, or set `relay.port_sharing` if both programs share the port"
        }
        io::ErrorKind::AddrInUse => "stop the program that uses it, or listen on another address",
        io::ErrorKind::AlreadyExists => "remove it, or use another path",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine, or 0.0.0.0 for all of them",
        io::ErrorKind::PermissionDenied => "use a port above 1023 or a writable directory",
        _ if error.raw_os_error() == Some(24) => "raise the limit of open files (ulimit -n)",
        io::ErrorKind::NotFound => "create the directory of the socket first",
        _ => "check the address",
    }
}

/// The file of a listening Unix socket; removed when the listener closes, unless another process has replaced it.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // If it cannot be removed now, the next start treats it as stale.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}
