//! State shared by all connections of a process, and connection admission.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::relay::drain::Drain;
use crate::relay::drain::Ticket;
use crate::relay::guard::Guard;
use crate::relay::joined::Joined;
use crate::relay::settings::Settings;
use crate::relay::stats::Full;
use crate::relay::stats::LagClock;
use crate::relay::stats::Lags;
use crate::relay::stats::Stats;
use crate::relay::stream::Stream;
use tokometer_observe::input::Close;
use tokometer_observe::input::Connection;
use tokometer_observe::input::Observe;

/// Maximum descriptors per connection: the client, the server, and the reset watch (`reset`).
pub const DESCRIPTORS_PER_CONNECTION: usize = 3;

/// The data path of a process: settings, observers, drain and counters.
pub struct Relay {
    settings: ArcSwap<Settings>,
    observe: Arc<dyn Observe>,
    drain: Drain,
    stats: Vec<Stats>,
    lags: Lags,
    /// Maximum number of connections that the process has descriptors for.
    capacity: AtomicUsize,
    /// Bytes waiting for their receivers, on all connections.
    waiting: AtomicUsize,
    last_id: AtomicU64,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("settings", &self.settings).field("drain", &self.drain).finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay for this many listeners (at least one). It reports connections to `observe` and ends with `drain`.
    pub fn new(settings: Settings, listeners: usize, observe: Arc<dyn Observe>, drain: Drain) -> Arc<Relay> {
        let settings = ArcSwap::from_pointee(settings);
        let stats = (0..listeners.max(1)).map(|_| Stats::default()).collect();
        let (lags, last_id, capacity) = (Lags::default(), AtomicU64::new(0), AtomicUsize::new(usize::MAX));
        let waiting = AtomicUsize::new(0);
        Arc::new(Relay { settings, observe, drain, stats, lags, capacity, waiting, last_id })
    }

    /// The settings of newly accepted connections.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Applies these settings to connections accepted from now on; open ones keep theirs.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// The drain that ends the relay.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// The counters, by listener.
    pub fn stats(&self) -> &[Stats] {
        &self.stats
    }

    /// The counters of this listener.
    pub fn stats_of(&self, listener: usize) -> &Stats {
        &self.stats[listener.min(self.stats.len() - 1)]
    }

    /// Timer lag of the data path's threads: the maximum over all threads of the last lag, or of the current lag of an
    /// overdue timer. `None` before any timer fired.
    pub fn lag(&self) -> Option<Duration> {
        self.lags.greatest(Instant::now())
    }

    /// The handle with which one data path thread reports its timer lag.
    pub fn lag_clock(&self) -> LagClock {
        self.lags.clock()
    }

    /// Bytes waiting for their receivers, on all connections.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts bytes as waiting until the returned value is dropped.
    pub(crate) fn wait_with(self: &Arc<Relay>, bytes: usize) -> Waiting {
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        Waiting { relay: Arc::clone(self), bytes }
    }

    /// Sets the maximum number of open connections; further ones are refused.
    pub fn limit_connections(&self, capacity: usize) {
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// Admits a connection of this listener. It counts as open until the returned value, or the `Joined` made from it,
    /// is dropped.
    ///
    /// # Errors
    /// When the maximum number of connections is open. The refusal is counted here; [`Relay::refuse`] responds to the
    /// client.
    pub fn accept(
        self: &Arc<Relay>,
        listener: usize,
        upstream: Arc<str>,
        peer: Option<SocketAddr>,
    ) -> Result<Accepted, Full> {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let (max, why) = match self.settings.load().max_connections {
            Some(max) if max <= capacity => (max, Full::MaxConnections),
            _ => (capacity, Full::Descriptors),
        };
        let Some(ticket) = self.drain.enter(max) else {
            self.stats_of(listener).count_refused(why);
            tracing::warn!(reason = why.as_str(), max, "The maximum number of connections is open: refusing new ones.");
            return Err(why);
        };
        self.stats_of(listener).count_accepted();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Connection { id, peer, listener, upstream, accepted: Instant::now() };
        Ok(Accepted { guard: Guard::new(Arc::clone(self), &connection), ticket })
    }

    pub(crate) fn observe(&self) -> &dyn Observe {
        self.observe.as_ref()
    }
}

/// Bytes waiting for their receiver.
#[derive(Debug)]
pub(crate) struct Waiting {
    relay: Arc<Relay>,
    bytes: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.relay.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A connection that is accepted but not yet connected to its server.
pub struct Accepted {
    pub(crate) guard: Guard,
    pub(crate) ticket: Ticket,
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Accepted {
    /// The relay that accepted it.
    pub fn relay(&self) -> &Arc<Relay> {
        self.guard.relay()
    }

    /// Connects both ends. Spawn the returned future: it relays until the connection ends.
    pub fn join(self, client: Stream, server: Stream) -> Joined {
        let Accepted { guard, ticket } = self;
        Joined::new(guard, ticket, client, server)
    }

    /// Records that the connection ended before it was joined.
    pub fn end(mut self, close: Close) {
        self.guard.closed(close, Instant::now());
    }
}
