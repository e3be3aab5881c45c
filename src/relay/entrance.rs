//! What all connections of a process share, and the way in for each of them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::relay::drain::Drain;
use crate::relay::drain::Ticket;
use crate::relay::guard::Guard;
use crate::relay::joined::Joined;
use crate::relay::observer::Close;
use crate::relay::observer::Connection;
use crate::relay::observer::Observe;
use crate::relay::settings::Settings;
use crate::relay::stats::Stats;
use crate::relay::stream::Stream;

/// The data path of a process: settings, observers, drain and counters.
pub struct Relay {
    settings: ArcSwap<Settings>,
    observe: Arc<dyn Observe>,
    drain: Drain,
    stats: Vec<Stats>,
    lag_nanos: AtomicU64,
    last_id: AtomicU64,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("settings", &self.settings).field("drain", &self.drain).finish_non_exhaustive()
    }
}

impl Relay {
    /// A relay of this many listen -> upstream pairs (at least one) that shows its connections to `observe` and ends with
    /// `drain`.
    pub fn new(settings: Settings, pairs: usize, observe: Arc<dyn Observe>, drain: Drain) -> Arc<Relay> {
        let settings = ArcSwap::from_pointee(settings);
        let stats = (0..pairs.max(1)).map(|_| Stats::default()).collect();
        let (last_id, lag_nanos) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Relay { settings, observe, drain, stats, lag_nanos, last_id })
    }

    /// The settings of connections that are accepted now.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Relays connections that are accepted from now on by these settings; open ones keep what they began with.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// The drain that ends the relay.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// The counters, by pair.
    pub fn stats(&self) -> &[Stats] {
        &self.stats
    }

    /// The counters of this pair.
    pub fn stats_of(&self, pair: usize) -> &Stats {
        &self.stats[pair.min(self.stats.len() - 1)]
    }

    /// How late a timer of the data path's threads fired last; `None` while none did.
    pub fn lag(&self) -> Option<Duration> {
        Some(self.lag_nanos.load(Ordering::Relaxed)).filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    }

    /// A timer of the data path's threads fired this late.
    pub fn note_lag(&self, lag: Duration) {
        self.lag_nanos.store(u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// Takes in a connection of this pair; it counts as open until what is returned here, or made from it, is gone.
    pub fn accept(self: &Arc<Relay>, pair: usize, upstream: Arc<str>, peer: Option<SocketAddr>) -> Accepted {
        let ticket = self.drain.enter();
        self.stats_of(pair).count_accepted();
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Connection { id, peer, pair, upstream, accepted: Instant::now() };
        Accepted { guard: Guard::new(Arc::clone(self), &connection), ticket }
    }

    pub(crate) fn observe(&self) -> &dyn Observe {
        self.observe.as_ref()
    }
}

/// A connection that is accepted, but not yet connected to its server.
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
    /// The relay that took it in.
    pub fn relay(&self) -> &Arc<Relay> {
        self.guard.relay()
    }

    /// Joins the two ends. Spawn what is returned: it relays until the connection is over.
    pub fn join(self, client: Stream, server: Stream) -> Joined {
        let Accepted { guard, ticket } = self;
        Joined::new(guard, ticket, client, server)
    }

    /// The connection ended before it could be joined.
    pub fn end(mut self, close: Close) {
        self.guard.closed(close, Instant::now());
    }
}
