//! The data path: listeners, relay and observers.

pub(super) mod capacity;
pub(super) mod capturing;

use std::sync::Arc;
use std::thread::{JoinHandle, available_parallelism};
use std::{fmt, io, thread};

use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::app::data_path::capturing::{Captured, Capturing};
use crate::config::Settings;
use tokometer_observe::measure::Sink;
use tokometer_observe::observer;
use tokometer_observe::observer::Observers;
use tokometer_proxy::listen::{Address, Gate, Listener, Worker};
use tokometer_proxy::relay::{Drain, Relay};
use tokometer_proxy::{listen, relay};

/// Why the data path cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listen address cannot be bound.
    #[error("listeners[{listener}].listen: {source}")]
    Bind {
        /// Index of the listener.
        listener: usize,
        /// The cause.
        source: listen::Error,
    },
    /// A socket for another thread, or a TLS file, cannot be used.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// The threads cannot be started.
    #[error("cannot start the relay's threads: {0}")]
    Threads(#[from] io::Error),
    /// Packets cannot be captured.
    #[error(transparent)]
    Capture(#[from] capturing::Error),
}

/// A running data path. Dropping it closes every connection: drain first.
#[derive(Debug)]
pub struct DataPath {
    handles: Handles,
    addresses: Vec<Address>,
    /// One gate per listener.
    gates: Vec<Gate>,
    serving: Serving,
    /// The packet capture, if one runs instead of the listeners.
    capturing: Option<Capturing>,
}

/// When the listeners open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// Immediately.
    AtOnce,
    /// When the caller opens the listeners' gates. An address that is in use is an error unless it is `awaited`.
    Later {
        /// Wait until an address that is in use becomes free.
        awaited: bool,
    },
}

/// Shared parts of the data path, for the admin server, the exporters and the signal handlers.
#[derive(Clone, Debug)]
pub struct Handles {
    /// The relay: its counters and its drain.
    pub relay: Arc<Relay>,
    /// The observers.
    pub observers: Arc<Observers>,
}

impl DataPath {
    /// Starts the capture or the listeners of these settings. The listeners open when their servers accept connections.
    pub(super) fn of(settings: &Settings, sink: Arc<dyn Sink>) -> Result<DataPath, Error> {
        let (relay, observe) = (settings.relay.clone(), settings.observe.clone());
        if let Some(tap) = &settings.tap {
            return DataPath::capture(&settings.listeners, relay, observe, sink, tap);
        }
        let threads = settings.threads.or_else(|| available_parallelism().ok().map(usize::from)).unwrap_or(1);
        // In a pod, an address in use is held by another container of the pod. tokometer then waits: exiting would keep
        // the pod from becoming ready.
        let opening = Opening::Later { awaited: settings.in_pod };
        DataPath::open(&settings.listeners, relay, observe, sink, threads, opening)
    }

    /// Opens every listener, then serves on `threads` threads.
    ///
    /// # Errors
    /// If an address cannot be bound, a TLS file is invalid, or no thread can be started. Nothing runs then.
    pub fn start(
        listeners: &[Listener],
        relay: relay::Settings,
        observe: observer::Settings,
        sink: Arc<dyn Sink>,
        threads: usize,
    ) -> Result<DataPath, Error> {
        DataPath::open(listeners, relay, observe, sink, threads, Opening::AtOnce)
    }

    fn open(
        listeners: &[Listener],
        relay: relay::Settings,
        observe: observer::Settings,
        sink: Arc<dyn Sink>,
        threads: usize,
        opening: Opening,
    ) -> Result<DataPath, Error> {
        let bind = |(listener, of): (usize, &Listener)| {
            let bound = match opening {
                Opening::AtOnce => listen::bind(of.clone(), &relay),
                Opening::Later { awaited } => match listen::reserve(of.clone(), &relay) {
                    Err(error) if awaited && error.is_address_in_use() => Ok(listen::without_address(of.clone())),
                    other => other,
                },
            };
            bound.map_err(|source| Error::Bind { listener, source })
        };
        let bound = listeners.iter().enumerate().map(bind).collect::<Result<Vec<_>, _>>()?;
        let addresses = bound.iter().map(|bound| bound.address.clone()).collect();
        let observers = Arc::new(Observers::new(observe, listeners.len(), sink));
        let relay = Relay::new(
            relay,
            listeners.len(),
            Arc::clone(&observers) as Arc<dyn tokometer_observe::input::Observe>,
            Drain::new(),
        );
        let (workers, gates) = listen::gated(bound, &relay, threads)?;
        if opening == Opening::AtOnce {
            gates.iter().try_for_each(|gate| gate.open().map(drop))?;
        }
        let serving = serve(workers)?;
        Ok(DataPath { handles: Handles { relay, observers }, addresses, gates, serving, capturing: None })
    }

    /// Captures packets instead of opening the listeners. The relay has no connections; its drain ends the capture.
    fn capture(
        listeners: &[Listener],
        relay: relay::Settings,
        observe: observer::Settings,
        sink: Arc<dyn Sink>,
        what: &tokometer_tap::capture::Settings,
    ) -> Result<DataPath, Error> {
        let observers = Arc::new(Observers::new(observe, listeners.len(), sink));
        let relay = Relay::new(relay, listeners.len(), Arc::clone(&observers) as Arc<_>, Drain::new());
        let capturing = Capturing::start(what, Arc::clone(&observers), relay.drain().clone())?;
        Ok(DataPath {
            handles: Handles { relay, observers },
            addresses: listeners.iter().map(|listener| listener.listen.clone()).collect(),
            gates: Vec::new(),
            serving: serve(Vec::new())?,
            capturing: Some(capturing),
        })
    }

    /// The capture, if there is one.
    pub(super) fn captured(&self) -> Option<Captured> {
        self.capturing.as_ref().map(Capturing::what)
    }

    /// Moves the gates of the listeners to the caller.
    pub(super) fn take_gates(&mut self) -> Vec<Gate> {
        std::mem::take(&mut self.gates)
    }

    /// Listen addresses, by listener; port 0 is replaced by the actual port.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The shared parts.
    pub fn handles(&self) -> Handles {
        self.handles.clone()
    }

    /// Stops the data path and closes open connections. Returns when its threads have ended.
    pub fn stop(self) {
        self.serving.stop();
    }
}

/// The threads of the data path. Dropping them stops them immediately: drain first (`relay::Drain`) so that streams can
/// finish.
pub struct Serving {
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Runs each worker on a separate thread with its own runtime, so that a connection stays on the thread that accepted
/// it.
///
/// pingora's own server is not used: it ends with a fixed sleep and `exit`, and a second server in the same process may
/// get the runtime of the first (pingora-runtime 0.9.1 keeps handles by recycled thread numbers).
///
/// # Errors
/// If a thread or its runtime cannot be created.
pub fn serve(workers: Vec<Worker>) -> io::Result<Serving> {
    let mut serving = Serving { stop: watch::Sender::new(false), threads: Vec::new() };
    for (number, worker) in workers.into_iter().enumerate() {
        // The blocking threads resolve names.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(32).build()?;
        let mut stop = serving.stop.subscribe();
        let thread = thread::Builder::new().name(format!("relay-{number}")).spawn(move || {
            runtime.block_on(async move {
                let accepting = tokio::spawn(worker.accept());
                // An error means that `Serving` was dropped, which also stops the worker.
                stop.wait_for(|stop| *stop).await.ok();
                accepting.abort();
            });
            // Drops the remaining connections, each of which notifies its observer. Does not wait for a resolver that
            // does not respond.
            runtime.shutdown_background();
        })?;
        serving.threads.push(thread);
    }
    Ok(serving)
}

impl Serving {
    /// Stops immediately; open connections are closed. Returns when all threads have ended.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            // An error means that the thread panicked; the panic has already been printed.
            thread.join().ok();
        }
    }
}
