//! The thread, its runtime, and the accept loop.

use std::io;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::net::SocketAddr;
use std::net::TcpListener as Listener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use socket2::Domain;
use socket2::Socket;
use socket2::Type;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::Pages;
use crate::admin::Settings;
use crate::admin::connection;
use crate::admin::guard::Ends;
use crate::admin::guard::Guard;
use crate::admin::live::Feed;
use crate::admin::pages::Site;
use crate::admin::places::Places;

/// How long answers that are under way may take to end when the server is stopped.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Niceness of the thread (setpriority(2)) and of those that it starts: a page is made when no stream waits for the core.
const NICENESS: i32 = 10;

/// Pause after an accept that failed (no file descriptors left): the next try would fail at once too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of connections that wait to be accepted, if the system allows as many (`net.core.somaxconn`): a burst of connects
/// must not delay a probe.
const BACKLOG: i32 = 4096;

/// Bytes of a response that the kernel holds before they can be sent, and of requests before they are read: clients that do not read
/// take little of the container's memory. A small send buffer would do the same, but wait for delayed acknowledgements.
const SOCKET_BUFFER: u32 = 32 * 1024;

/// How many ports above one that is in use are tried for the example in the error.
const NEXT_PORTS: u16 = 16;

/// Why there is no admin server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error("the admin server cannot listen on {address}: {source}; set `admin.listen` (or --admin) to {advice}")]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// What can be used instead.
        advice: String,
        /// The error of the system.
        source: io::Error,
    },
    /// No thread or runtime could be started.
    #[error("the admin server cannot start: {0}")]
    Start(#[source] io::Error),
}

/// A running admin server. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds the address and serves the pages on a thread of its own.
    ///
    /// # Errors
    ///
    /// When the address is taken or not ours, or no thread can be started.
    pub fn start(settings: &Settings, pages: Pages) -> Result<Server, Error> {
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
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(Error::Start)?
        };
        let (stop, stopped) = watch::channel(false);
        let settings = settings.clone();
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                // Lowering needs no right; should it be refused all the same, the pages are served as well.
                rustix::process::nice(NICENESS).ok();
                let feed = Feed::new(Arc::clone(&pages.live), stopped.clone());
                let site = Site { pages, feed, guard: Guard::new(&settings) };
                runtime.block_on(serve(listener, settings, Arc::new(site), stopped));
                // A scrape may hang in a closure that is not ours: do not wait for it.
                runtime.shutdown_background();
            })
            .map_err(Error::Start)?;
        Ok(Server { address, stop, thread: Some(thread) })
    }

    /// The address that is listened on, with its true port where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops: takes no more connections, lets answers that are under way end (at most a second), and waits for that.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("The admin server's thread panicked.");
        }
    }
}

/// Listens there. `[::]` takes both families (ipv6(7)); on a machine without IPv6 it is IPv4 alone.
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
    // An address whose last connections are not forgotten yet can be used again.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit both.
    socket.set_recv_buffer_size(SOCKET_BUFFER as usize).ok();
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(SOCKET_BUFFER).ok();
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What to listen on instead: a free port where this one is in use.
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

async fn serve(listener: TcpListener, settings: Settings, site: Arc<Site>, mut stopped: watch::Receiver<bool>) {
    let places = Places::new(settings.max_connections);
    let settings = Arc::new(settings);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the server was dropped.
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted.and_then(|(stream, client)| Ok((Ends { client, own: stream.local_addr()? }, stream))) {
            Ok((ends, stream)) => {
                let place = places.admit(ends.client.ip().to_canonical());
                let (settings, site, stopped) = (Arc::clone(&settings), Arc::clone(&site), stopped.clone());
                connections.spawn(connection::serve(stream, ends, place, settings, site, stopped));
            }
            Err(error) => {
                tracing::warn!(%error, "The admin server cannot accept a connection.");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    // Those that take longer are cut when the set is dropped.
    tokio::time::timeout(LAST_ANSWERS, all_ended).await.ok();
}
