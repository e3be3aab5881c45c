//! The thread, its runtime, and the accept loop.

use std::io;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::Pages;
use crate::admin::Settings;
use crate::admin::connection;
use crate::admin::live::Feed;
use crate::admin::pages::Site;

/// How long answers that are under way may take to end when the server is stopped.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Niceness of the thread (setpriority(2)) and of those that it starts: a page is made when no stream waits for the core.
const NICENESS: i32 = 10;

/// Pause after an accept that failed (no file descriptors left): the next try would fail at once too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no admin server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened on.
    #[error(
        "the admin server cannot listen on {address}: {source}; set `admin.listen` (or --admin) to a free address, such as 0.0.0.0:9464"
    )]
    Bind {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system says.
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
        let bind = |source| Error::Bind { address: settings.listen, source };
        let listener = open(settings.listen).map_err(bind)?;
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
                let site = Site { pages, feed, drain_wait: settings.drain_wait };
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
fn open(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    match std::net::TcpListener::bind(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED && Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) =>
        {
            std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        opened => opened,
    }
}

async fn serve(listener: TcpListener, settings: Settings, site: Arc<Site>, mut stopped: watch::Receiver<bool>) {
    let room = Arc::new(Semaphore::new(settings.max_connections));
    let settings = Arc::new(settings);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // An error means that the server was dropped.
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => match room.clone().try_acquire_owned() {
                Ok(permit) => {
                    let served = connection::serve(stream, settings.clone(), site.clone(), stopped.clone());
                    connections.spawn(async move {
                        served.await;
                        drop(permit);
                    });
                }
                Err(_) => connection::refuse(&stream, settings.max_connections),
            },
            Err(error) => {
                tracing::warn!(%error, "The admin server cannot accept a connection.");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    // Whoever takes longer is cut when the set is dropped.
    tokio::time::timeout(LAST_ANSWERS, all_ended).await.ok();
}
