//! The Unix socket of the admin server, through which processes of this pod or machine may change state.
//!
//! A TCP address does not show whether a client is local: service meshes, `kubectl port-forward` and other forwarders
//! connect from the pod's own addresses on behalf of remote clients. They cannot forward to this socket.
//!
//! The socket is abstract (unix(7)): it needs no writable file system, ends with the process, and is visible only in
//! its network namespace, which the containers of a pod share. Its name contains the address of the admin server.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};

/// Binds the socket of the admin server with this address.
pub(super) fn listen(admin: SocketAddr) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&address(admin.ip(), admin.port())?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects to the socket of the admin server that clients on this machine reach at this address. `None` if there is
/// none.
pub fn connect(admin: SocketAddr) -> Option<UnixStream> {
    let ip = admin.ip();
    let open = |ip| UnixStream::connect_addr(&address(ip, admin.port()).ok()?).ok();
    // A server that listens on all addresses is meant only if this address belongs to this machine.
    let is_own = || ip.is_loopback() || ip.is_unspecified() || TcpListener::bind((ip, 0)).is_ok();
    open(ip).or_else(|| is_own().then(|| open([0; 4].into()))?)
}

fn address(ip: IpAddr, port: u16) -> io::Result<UnixAddress> {
    let ip = Some(ip.to_canonical()).filter(|ip| !ip.is_unspecified());
    let ip = ip.map_or("*".to_owned(), |ip| ip.to_string());
    UnixAddress::from_abstract_name(format!("tokometer/admin/{ip}/{port}"))
}
