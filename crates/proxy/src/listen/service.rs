//! The listeners as pingora services: one set per thread, so that the accepting thread also serves the connection.

use std::fmt;
use std::os::fd::IntoRawFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::listeners::L4BufferSettings;
use pingora::listeners::ListenerConfig;
use pingora::protocols::Stream as Accepted;
use pingora::server::Fds;
use pingora::server::ListenFds;
use pingora::server::ShutdownWatch;
use pingora::services::Service as _;
use pingora::services::listening::Service;
use pingora::time::fast_timeout::set_fast_timeout_to_tokio_threshold;
use socket2::SockRef;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::listen::bind::Bound;
use crate::listen::bind::SocketFile;
use crate::listen::closing;
use crate::listen::error::Error;
use crate::listen::front::Front;
use crate::listen::settings::Address;
use crate::listen::tls;
use crate::listen::upstream::Upstream;
use crate::relay::Listening;
use crate::relay::Relay;

/// Interval between measurements of a thread's timer lag.
const LAG_PERIOD: Duration = Duration::from_secs(1);

/// The listeners of one thread: every one of them, each with the thread's own socket.
pub struct Worker {
    doors: Vec<Door>,
    relay: Arc<Relay>,
}

/// One listening socket and its service.
struct Door {
    service: Service<Shared>,
    key: String,
    socket: OwnedFd,
    /// A duplicate, for the orderly close; `None` for Unix sockets, which have no packets.
    closed_by: Option<OwnedFd>,
    _listening: Listening,
    /// Removed when the last thread stops listening.
    _file: Option<Arc<SocketFile>>,
}

struct Shared(Arc<Front>);

#[async_trait]
impl ServerApp for Shared {
    async fn process_new(self: &Arc<Self>, accepted: Accepted, _: &ShutdownWatch) -> Option<Accepted> {
        self.0.process(accepted).await;
        None
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("doors", &self.doors.len()).field("relay", &self.relay).finish()
    }
}

/// Creates the workers that serve these listeners, one per thread; a listener's number is its index in `bound`.
///
/// # Errors
/// When a TLS file is missing or wrong, or a socket cannot be opened for each thread.
pub fn serve(bound: Vec<Bound>, relay: &Arc<Relay>, threads: usize) -> Result<Vec<Worker>, Error> {
    // pingora's own timers need a thread that wakes 100 times per second, for a handshake that is not used here.
    set_fast_timeout_to_tokio_threshold(Some(Duration::ZERO));
    let mut workers: Vec<Worker> = Vec::new();
    workers.resize_with(threads.max(1), || Worker { doors: Vec::new(), relay: Arc::clone(relay) });
    for (pair, bound) in bound.into_iter().enumerate() {
        let front = Arc::new(Front {
            relay: Arc::clone(relay),
            pair,
            tls: bound.pair.tls.as_ref().map(tls::acceptor).transpose()?,
            upstream: Upstream::new(
                &bound.pair.upstream,
                bound.pair.upstream_tls.as_ref(),
                relay.settings().keepalive,
            )?,
        });
        for (worker, socket) in workers.iter_mut().zip(bound.sockets(threads.max(1), &relay.settings())?) {
            worker.doors.push(Door::new(&bound, socket, Shared(Arc::clone(&front)), relay.drain().listen()));
        }
    }
    Ok(workers)
}

impl Worker {
    /// Accepts until the drain begins. Each connection becomes a task of the current runtime, which must be
    /// single-threaded and outlive them.
    pub async fn accept(self) {
        let mut open = JoinSet::new();
        for door in self.doors {
            open.spawn(door.accept(self.relay.drain().stopping()));
        }
        tokio::select! {
            () = async { while open.join_next().await.is_some() {} } => {}
            () = watch_lag(&self.relay) => {}
        }
    }
}

/// Measures this thread's timer lag periodically: all work that waits for the thread is delayed by as much.
async fn watch_lag(relay: &Relay) {
    let clock = relay.lag_clock();
    loop {
        let due = Instant::now() + LAG_PERIOD;
        clock.expect(due);
        tokio::time::sleep_until(due.into()).await;
        clock.fired(due.elapsed());
    }
}

impl Door {
    fn new(bound: &Bound, socket: OwnedFd, front: Shared, listening: Listening) -> Door {
        let (key, listener) = match &bound.address {
            Address::Unix(path) => {
                let path = path.display().to_string();
                (path.clone(), ListenerConfig::uds(path))
            }
            address => (address.to_string(), ListenerConfig::tcp(address.to_string())),
        };
        let mut service = Service::new(bound.pair.name.clone(), front);
        // The relay does its own reads and writes: pingora's buffers would waste 64 KiB per connection.
        service.add_listener(listener.l4_buffer(L4BufferSettings::new(0, 0)));
        // Without a duplicate the listener still closes, but may cut off connecting clients.
        let closed_by = matches!(bound.address, Address::Tcp { .. }).then(|| socket.try_clone().ok()).flatten();
        Door { service, key, socket, closed_by, _listening: listening, _file: bound.file.clone() }
    }

    async fn accept(mut self, mut stopping: ShutdownWatch) {
        // pingora uses a listening socket found under its address in this table instead of creating one.
        let mut descriptors = Fds::new();
        descriptors.add(self.key, self.socket.into_raw_fd());
        let descriptors: ListenFds = Arc::new(descriptors.into());
        let (close, closing) = watch::channel(false);
        let closed_by = self.closed_by.take();
        let close = async move {
            // An error means that the relay is gone, which is a stop as well.
            stopping.wait_for(|stopping| *stopping).await.ok();
            if let Some(socket) = closed_by {
                if let Err(error) = closing::let_nobody_in(SockRef::from(&socket)) {
                    tracing::debug!(%error, "Clients that are connecting may be cut off.");
                }
                drop(socket);
                tokio::time::sleep(closing::LINGER).await;
            }
            close.send_replace(true);
        };
        tokio::join!(self.service.start_service(Some(descriptors), closing, 1), close);
    }
}
