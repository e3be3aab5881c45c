//! The thread, its runtime, and the accept loop.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as Listener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::feed::Feed;
use crate::admin::guard::{Client, Guard};
use crate::admin::pages::Site;
use crate::admin::slots::Slots;
use crate::admin::{Pages, connection, local};

/// Maximum time for responses in progress when the server stops.
const LAST_RESPONSES: Duration = Duration::from_secs(1);

/// Niceness of this thread and its child threads (setpriority(2)): streams take precedence on a shared core.
const NICENESS: i32 = 10;

/// Pause after a failed accept (no file descriptors left): an immediate retry would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of connections waiting to be accepted, capped by `net.core.somaxconn`. High, so that a burst of
/// connects does not delay a probe.
const BACKLOG: i32 = 4096;

/// Maximum unsent response bytes and unread request bytes in the kernel, per connection. Clients that do not read then
/// use little of the container's memory. The send buffer itself stays large: with a small one, sending waits for the
/// client's delayed acknowledgements.
const SOCKET_BUFFER: u32 = 32 * 1024;

/// Number of subsequent ports tried, to suggest a free port in the error.
const NEXT_PORTS: u16 = 16;

/// User settings of the admin server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Listen address. Port 0: any free port.
    pub listen: SocketAddr,
    /// Maximum time for a client to send request headers or to read a response, and for a connection to be idle.
    pub header_timeout: Duration,
    /// Maximum number of connections that wait for a request.
    pub max_connections: usize,
    /// Allowed `Host` values in addition to those that cannot be public DNS names. `.example.com` matches every name
    /// below that domain, `*` every name.
    pub allowed_hosts: Vec<String>,
    /// Whether clients of the port may send `POST /drain`. Otherwise, only `tokometer drain` on this machine may do so,
    /// through a Unix socket.
    pub remote_drain: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: SocketAddr::from(([0, 0, 0, 0], 9464)),
            header_timeout: Duration::from_secs(10),
            max_connections: 256,
            allowed_hosts: Vec::new(),
            remote_drain: false,
        }
    }
}

/// Why the admin server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be bound.
    #[error("the admin server cannot listen on {address}: {source}; set `admin.listen` (or --admin) to {advice}")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// The suggested alternative.
        advice: String,
        /// The system's error.
        source: io::Error,
    },
    /// The thread or its runtime could not be started.
    #[error("the admin server cannot start: {0}")]
    Start(#[source] io::Error),
}

/// A running admin server. Dropping the handle stops the server without waiting.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// A bound address. Clients can connect, but get no response until [`Bound::serve`] is called.
#[derive(Debug)]
pub struct Bound {
    address: SocketAddr,
    listener: TcpListener,
    /// `None` if it cannot be bound.
    local: Option<UnixListener>,
    runtime: Runtime,
    settings: Settings,
}

impl Bound {
    /// Binds the address.
    ///
    /// # Errors
    ///
    /// If the address is in use or not local, or no runtime can be started.
    pub fn new(settings: &Settings) -> Result<Bound, Error> {
        let address = settings.listen;
        let bind = |source: io::Error| Error::Bind { address, advice: advice(address, &source), source };
        let listener = open(address).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()
            .map_err(Error::Start)?;
        let inside = runtime.enter();
        let listener = TcpListener::from_std(listener).map_err(Error::Start)?;
        let local = local::listen(address).and_then(UnixListener::from_std);
        let local = local.inspect_err(|error| {
            tracing::warn!(%error, "The Unix socket of the admin server cannot be opened: `tokometer drain` does not work. SIGTERM starts a drain too.");
        });
        drop(inside);
        Ok(Bound { address, listener, local: local.ok(), runtime, settings: settings.clone() })
    }

    /// Serves the pages on a separate thread.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn serve(self, pages: Pages) -> Result<Server, Error> {
        let Bound { address, listener, local, runtime, settings } = self;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                // Lowering the priority needs no privilege; if it fails anyway, pages are still served.
                rustix::process::nice(NICENESS).ok();
                let feed = Feed::new(Arc::clone(&pages.live), stopped.clone());
                let site = Site { pages, feed, guard: Guard::new(&settings.allowed_hosts, settings.remote_drain) };
                runtime.block_on(serve(listener, local, settings, Arc::new(site), stopped));
                // A closure of `pages` may hang: do not wait for it.
                runtime.shutdown_background();
            })
            .map_err(Error::Start)?;
        Ok(Server { address, stop, thread: Some(thread) })
    }
}

impl Server {
    /// Binds the address and serves the pages.
    ///
    /// # Errors
    ///
    /// If the address is in use or not local, or no thread can be started.
    pub fn start(settings: &Settings, pages: Pages) -> Result<Server, Error> {
        Bound::new(settings)?.serve(pages)
    }

    /// The listen address, with the actual port if 0 was configured.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections and waits at most one second for responses in progress.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("The admin server's thread panicked.");
        }
    }
}

/// Binds the address. `[::]` accepts IPv4 and IPv6 (ipv6(7)); if the machine has no IPv6, binds 0.0.0.0 instead.
fn open(address: SocketAddr) -> io::Result<Listener> {
    match listen(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED && Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) =>
        {
            listen((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        opened => opened,
    }
}

fn listen(address: SocketAddr) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // Allows binding while old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit both options.
    socket.set_recv_buffer_size(SOCKET_BUFFER as usize).ok();
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(SOCKET_BUFFER).ok();
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The suggested address: a free port if this one is in use.
fn advice(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    if error.kind() == io::ErrorKind::AddrInUse {
        let next = (1..=NEXT_PORTS).filter_map(|n| Some(SocketAddr::new(address.ip(), port.checked_add(n)?)));
        return match next.into_iter().find(|next| open(*next).is_ok()) {
            Some(free) => format!("another port, such as {free}"),
            None => "another port".to_owned(),
        };
    }
    "an address of this machine and a port from 1024, such as 0.0.0.0:9464".to_owned()
}

/// An accepted socket.
enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn serve(
    listener: TcpListener,
    local: Option<UnixListener>,
    settings: Settings,
    site: Arc<Site>,
    mut stopped: watch::Receiver<bool>,
) {
    let slots = Slots::new(settings.max_connections);
    let timeout = settings.header_timeout;
    let mut connections = JoinSet::new();
    let local_accept = async || match &local {
        Some(local) => local.accept().await,
        None => std::future::pending().await,
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted.map(|(stream, client)| {
                // Sends small responses without waiting for the client's acknowledgement. If this fails, they are only
                // slower.
                stream.set_nodelay(true).ok();
                // The connection limits only writes to the socket buffer. This limits how long data stays there.
                #[cfg(target_os = "linux")]
                socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(timeout)).ok();
                (Client::Network(client), Accepted::Tcp(stream))
            }),
            accepted = local_accept() => {
                accepted.and_then(|(stream, _)| Ok((Client::of(&stream)?, Accepted::Unix(stream))))
            }
            // The server was stopped, or dropped (an error).
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((client, stream)) => {
                let slot = slots.admit(client.address(), client.is_trusted());
                let (site, stopped) = (Arc::clone(&site), stopped.clone());
                match stream {
                    Accepted::Tcp(tcp) => {
                        connections.spawn(connection::serve(tcp, client, slot, timeout, site, stopped))
                    }
                    Accepted::Unix(unix) => {
                        connections.spawn(connection::serve(unix, client, slot, timeout, site, stopped))
                    }
                };
            }
            Err(error) => {
                tracing::warn!(%error, "The admin server cannot accept a connection.");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    // Dropping the set aborts the remaining connections.
    tokio::time::timeout(LAST_RESPONSES, all_ended).await.ok();
}
