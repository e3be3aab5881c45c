//! The data path: listeners, relay and observers.

use std::io;
use std::sync::Arc;

use crate::app::serve::{Serving, serve};
use tokometer_observe::measure::Sink;
use tokometer_observe::observer;
use tokometer_observe::observer::Observers;
use tokometer_proxy::listen;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Pair;
use tokometer_proxy::relay;
use tokometer_proxy::relay::Drain;
use tokometer_proxy::relay::Relay;

/// Why the data path cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A listen address cannot be bound.
    #[error("listeners[{pair}].listen: {source}")]
    Bind {
        /// Index of the listener.
        pair: usize,
        /// The cause.
        source: listen::Error,
    },
    /// A socket for another thread, or a TLS file, cannot be used.
    #[error(transparent)]
    Listen(#[from] listen::Error),
    /// The threads cannot be started.
    #[error("cannot start the relay's threads: {0}")]
    Threads(#[from] io::Error),
}

/// A running data path. Dropping it closes every connection: drain first.
#[derive(Debug)]
pub struct DataPath {
    relay: Arc<Relay>,
    observers: Arc<Observers>,
    addresses: Vec<Address>,
    serving: Serving,
}

/// Shared parts of the data path, for the admin server, the exporters and the signals.
#[derive(Clone, Debug)]
pub struct Handles {
    /// The relay: its counters and its drain.
    pub relay: Arc<Relay>,
    /// The observers.
    pub observers: Arc<Observers>,
}

impl DataPath {
    /// Opens every listener, then serves on `threads` threads.
    ///
    /// # Errors
    /// If an address cannot be bound, a TLS file is invalid, or no thread can be started. Nothing runs then.
    pub fn start(
        pairs: &[Pair],
        relay: relay::Settings,
        observe: observer::Settings,
        sink: Arc<dyn Sink>,
        threads: usize,
    ) -> Result<DataPath, Error> {
        let bind = |(pair, of): (usize, &Pair)| {
            listen::bind(of.clone(), &relay).map_err(|source| Error::Bind { pair, source })
        };
        let bound = pairs.iter().enumerate().map(bind).collect::<Result<Vec<_>, _>>()?;
        let addresses = bound.iter().map(|bound| bound.address().clone()).collect();
        let observers = Arc::new(Observers::new(observe, pairs.len(), sink));
        let relay = Relay::new(
            relay,
            pairs.len(),
            Arc::clone(&observers) as Arc<dyn tokometer_observe::input::Observe>,
            Drain::new(),
        );
        let serving = serve(listen::serve(bound, &relay, threads)?)?;
        Ok(DataPath { relay, observers, addresses, serving })
    }

    /// Listen addresses, by listener; port 0 is replaced by the actual port.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The shared parts.
    pub fn handles(&self) -> Handles {
        Handles { relay: Arc::clone(&self.relay), observers: Arc::clone(&self.observers) }
    }

    /// Stops it; open connections are closed. Returns when its threads have ended.
    pub fn stop(self) {
        self.serving.stop();
    }
}
