//! The listeners as one pingora service, so that all pairs share the same threads.

use std::fmt;
use std::os::fd::IntoRawFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::listeners::L4BufferSettings;
use pingora::listeners::ListenerConfig;
use pingora::server::Fds;
use pingora::server::ListenFds;
use pingora::server::ShutdownWatch;
use pingora::services::Service as PingoraService;
use pingora::services::listening::Service as ListeningService;

use crate::listen::bind::Bound;
use crate::listen::bind::SocketFile;
use crate::listen::error::Error;
use crate::listen::front::Front;
use crate::listen::settings::Address;
use crate::listen::tls;
use crate::listen::upstream::Upstream;
use crate::relay::Drain;
use crate::relay::Relay;

/// All pairs of a process, for [`pingora::server::Server::add_service`].
pub struct Service {
    doors: Vec<Door>,
    drain: Drain,
}

/// One listening socket and what serves it.
struct Door {
    service: ListeningService<Front>,
    key: String,
    socket: Option<OwnedFd>,
    file: Option<SocketFile>,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("doors", &self.doors.len()).field("drain", &self.drain).finish()
    }
}

/// Makes the service of these pairs; a pair's number is its index here.
///
/// # Errors
/// When a TLS file is missing or wrong.
pub fn serve(bound: Vec<Bound>, relay: &Arc<Relay>) -> Result<Service, Error> {
    let doors = bound.into_iter().enumerate().map(|(index, bound)| Door::new(index, bound, relay));
    Ok(Service { doors: doors.collect::<Result<_, _>>()?, drain: relay.drain().clone() })
}

impl Door {
    fn new(pair: usize, bound: Bound, relay: &Arc<Relay>) -> Result<Door, Error> {
        let Bound { pair: settings, address, socket, file } = bound;
        let front = Front {
            relay: Arc::clone(relay),
            pair,
            unix: matches!(address, Address::Unix(_)),
            tls: settings.tls.as_ref().map(tls::acceptor).transpose()?,
            upstream: Upstream::new(&settings.upstream, settings.upstream_tls.as_ref(), relay.settings().keepalive)?,
        };
        let (key, listener) = match &address {
            Address::Unix(path) => {
                let path = path.display().to_string();
                (path.clone(), ListenerConfig::uds(path))
            }
            address => (address.to_string(), ListenerConfig::tcp(address.to_string())),
        };
        let mut service = ListeningService::new(settings.name, front);
        // The relay reads and writes for itself: buffers of pingora's would be 64 KiB per connection for nothing.
        service.add_listener(listener.l4_buffer(L4BufferSettings::new(0, 0)));
        Ok(Door { service, key, socket: Some(socket), file })
    }

    async fn open(&mut self, stopping: ShutdownWatch, listeners_per_fd: usize) {
        let Some(socket) = self.socket.take() else { return };
        // pingora takes a listening socket that it finds under its address in this table, instead of making one.
        let mut descriptors = Fds::new();
        descriptors.add(self.key.clone(), socket.into_raw_fd());
        let descriptors: ListenFds = Arc::new(descriptors.into());
        self.service.start_service(Some(descriptors), stopping, listeners_per_fd).await;
        self.file = None;
    }
}

#[async_trait]
impl PingoraService for Service {
    /// Accepts until the drain begins, or the server stops.
    async fn start_service(&mut self, _: Option<ListenFds>, mut shutdown: ShutdownWatch, listeners_per_fd: usize) {
        let drain = self.drain.clone();
        let begin = async move {
            if shutdown.wait_for(|stop| *stop).await.is_ok() {
                drain.begin();
            }
            std::future::pending::<()>().await;
        };
        let mut open = tokio::task::JoinSet::new();
        for mut door in self.doors.drain(..) {
            let stopping = self.drain.stopping();
            open.spawn(async move { door.open(stopping, listeners_per_fd).await });
        }
        let ended = async { while open.join_next().await.is_some() {} };
        tokio::select! {
            () = begin => {}
            () = ended => {}
        }
    }

    fn name(&self) -> &str {
        "tokometer relay"
    }
}
