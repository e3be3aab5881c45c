//! Opens the listening sockets before the proxy serves: errors are reported at startup, and port 0 is already resolved.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::listen::error::Error;
use crate::listen::probe;
use crate::listen::settings::{Address, Listener};
use crate::relay::Settings;

/// The kernel caps the backlog at net.core.somaxconn.
const BACKLOG: i32 = 65_535;

/// See [`limit_unsent`].
const UNSENT_BYTES: u32 = 64 * 1024;

/// A listener and its listen address.
#[derive(Debug)]
pub struct Bound {
    /// The listener as configured.
    pub listener: Listener,
    /// The listen address as configured, with the actual port instead of port 0.
    pub address: Address,
    /// The socket, if one is already open.
    pub(crate) first: Option<First>,
}

/// The first socket of a listener: binding it shows whether the address is free. Connections wait in the backlog until
/// the listener is served.
#[derive(Debug)]
pub(crate) struct First {
    socket: OwnedFd,
    pub(crate) file: Option<Arc<SocketFile>>,
}

impl First {
    /// Binds a socket to `address` and listens.
    pub(crate) fn open(address: &Address, settings: &Settings) -> Result<First, Error> {
        let opened = match address {
            Address::Tcp { host, port } => bind_tcp(host, *port, settings).map(|(socket, _)| (socket.into(), None)),
            Address::Unix(path) => bind_unix(path).map(|(socket, file)| (socket, Some(Arc::new(file)))),
            Address::OriginalDestination => return Err(Error::ListenOnOriginal),
        };
        let (socket, file) = opened.map_err(|source| cannot_bind(address, source))?;
        First { socket, file }.listening(address)
    }

    fn listening(self, address: &Address) -> Result<First, Error> {
        // `UnixListener::bind` also listens.
        if matches!(address, Address::Tcp { .. }) {
            SockRef::from(&self.socket).listen(BACKLOG).map_err(|source| cannot_bind(address, source))?;
        }
        Ok(self)
    }

    /// One listening socket per thread.
    ///
    /// With `port_sharing`, each thread has its own TCP socket, and the kernel distributes the connections over all
    /// sockets with SO_REUSEPORT. Without it, the threads share one socket: with SO_REUSEPORT, any process of the same
    /// user could bind the port too and would get a part of the connections. Unix sockets are always shared.
    pub(crate) fn sockets(
        &self,
        address: &Address,
        threads: usize,
        settings: &Settings,
    ) -> Result<Vec<OwnedFd>, Error> {
        let open = || {
            let Address::Tcp { host, port } = address else { return self.shared(threads) };
            // A socket that `reserve` opened for port 0 does not listen yet.
            SockRef::from(&self.socket).listen(BACKLOG)?;
            if !settings.port_sharing {
                return self.shared(threads);
            }
            let mut sockets = self.shared(1)?;
            for _ in 1..threads {
                let (socket, _) = bind_tcp(host, *port, settings)?;
                socket.listen(BACKLOG)?;
                sockets.push(socket.into());
            }
            Ok(sockets)
        };
        open().map_err(|source| cannot_bind(address, source))
    }

    fn shared(&self, threads: usize) -> io::Result<Vec<OwnedFd>> {
        (0..threads).map(|_| self.socket.try_clone()).collect()
    }
}

fn cannot_bind(address: &Address, source: io::Error) -> Error {
    Error::Bind { address: address.clone(), fix: fix(&source), source }
}

/// Opens the listener's socket.
///
/// A TCP address that another process listens on is an error, unless `settings.port_sharing` is set and both processes
/// share the port with SO_REUSEPORT. TCP sockets get keep-alive and TCP_NODELAY, which accepted sockets inherit
/// (tcp(7)), like the limits of their buffers.
///
/// # Errors
/// When the address is in use, does not belong to this machine, or is not permitted.
pub fn bind(listener: Listener, settings: &Settings) -> Result<Bound, Error> {
    let (address, first) = match &listener.listen {
        Address::Tcp { host, port } => {
            let (socket, address) =
                bind_tcp(host, *port, settings).map_err(|source| cannot_bind(&listener.listen, source))?;
            (address, First { socket: socket.into(), file: None }.listening(&listener.listen)?)
        }
        other => (other.clone(), First::open(other, settings)?),
    };
    Ok(Bound { listener, address, first: Some(first) })
}

/// Checks that [`bind`] would succeed, but does not listen: clients are refused until the listener's gate opens.
///
/// For port 0, the socket stays bound and reserves the chosen port. Otherwise no socket stays open, so another program
/// can take the address before the gate opens.
///
/// # Errors
/// As [`bind`].
pub fn reserve(listener: Listener, settings: &Settings) -> Result<Bound, Error> {
    let wrong = |source| cannot_bind(&listener.listen, source);
    let (address, first) = match &listener.listen {
        Address::Tcp { host, port } => {
            let (socket, address) = bind_tcp(host, *port, settings).map_err(wrong)?;
            (address, (*port == 0).then(|| First { socket: socket.into(), file: None }))
        }
        Address::Unix(path) => {
            remove_stale(path).map_err(wrong)?;
            (listener.listen.clone(), None)
        }
        Address::OriginalDestination => return Err(Error::ListenOnOriginal),
    };
    Ok(Bound { listener, address, first })
}

/// Returns a listener without a socket, for an address that is in use. The listener's gate can open once the address is
/// free.
pub fn without_address(listener: Listener) -> Bound {
    Bound { address: listener.listen.clone(), listener, first: None }
}

/// Binds a socket that does not listen yet. Returns it with its address, which has the actual port instead of port 0.
fn bind_tcp(host: &str, port: u16, settings: &Settings) -> io::Result<(Socket, Address)> {
    let address = (host, port).to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(settings.port_sharing)?;
    socket.set_tcp_nodelay(true)?;
    keep_alive(SockRef::from(&socket), settings.keepalive)?;
    limit_unsent(SockRef::from(&socket));
    socket.bind(&address.into())?;
    let port = socket.local_addr()?.as_socket().map_or(port, |bound: SocketAddr| bound.port());
    Ok((socket, Address::Tcp { host: address.ip().to_string(), port }))
}

/// Enables keep-alive probes: the first after `idle`, then one every tenth of `idle`. A dead peer is detected within
/// twice `idle`, because Linux sends nine probes by default.
pub(crate) fn keep_alive(socket: SockRef<'_>, idle: Option<Duration>) -> io::Result<()> {
    // The kernel rejects values below one second.
    let Some(idle) = idle.map(|idle| idle.max(Duration::from_secs(1))) else { return Ok(()) };
    let interval = (idle / 10).max(Duration::from_secs(1));
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle).with_interval(interval))
}

/// Limits the bytes that the kernel holds in addition to those in flight to the peer.
///
/// Without this limit, a peer that does not read fills the send buffer, up to 4 MiB by default (tcp(7), `tcp_wmem`);
/// with it, the buffer holds about 170 KB. The bytes in flight are not limited, so a fast reader over a long link gets
/// the same throughput: the unsent bytes only have to last until the thread writes again.
pub(crate) fn limit_unsent(socket: SockRef<'_>) {
    // Fails only on systems other than Linux.
    socket.set_tcp_notsent_lowat(UNSENT_BYTES).ok();
}

fn bind_unix(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
    remove_stale(path)?;
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    let file = SocketFile { path: path.to_path_buf(), inode: inode(path)? };
    Ok((listener.into(), file))
}

/// Removes a socket file on which no process listens; leaves any other file alone.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type().is_socket(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    match probe::unix(path) {
        Err(error) if is_socket && error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ if is_socket => Err(io::ErrorKind::AddrInUse.into()),
        _ => Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket")),
    }
}

fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        // An OS error code means TCP: for a Unix socket, `remove_stale` creates the error without a code.
        io::ErrorKind::AddrInUse if error.raw_os_error().is_some() => {
            "stop the program that uses it, listen on another address, or set `relay.port_sharing` if both programs share the port"
        }
        io::ErrorKind::AddrInUse => "stop the program that uses it, or listen on another address",
        io::ErrorKind::AlreadyExists => "remove it, or use another path",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine, or 0.0.0.0 for all of them",
        io::ErrorKind::PermissionDenied => "use a port above 1023 or a writable directory",
        _ if error.raw_os_error() == Some(24) => "raise the open-files limit (ulimit -n)",
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
            // If the file cannot be removed now, the next start treats it as stale.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use socket2::SockAddr;

    use super::*;

    #[test]
    fn unix_socket_whose_backlog_is_full_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let frozen = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        frozen.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        frozen.listen(0).unwrap();
        let waiting: Vec<Socket> = std::iter::from_fn(|| {
            let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
            socket.connect(&SockAddr::unix(&path).unwrap()).is_ok().then_some(socket)
        })
        .collect();
        let (bound, result) = channel();
        let address = Address::Unix(path.clone());
        thread::spawn(move || bound.send(First::open(&address, &Settings::default()).map(drop)));
        let error = result.recv_timeout(Duration::from_secs(60)).expect("it does not block").unwrap_err();
        assert!(error.is_address_in_use(), "{error}");
        assert!(path.exists() && !waiting.is_empty());
    }

    #[test]
    fn keep_alive_below_a_second_is_a_second() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        keep_alive(SockRef::from(&socket), Some(Duration::from_millis(1))).unwrap();
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(1));
    }
}
