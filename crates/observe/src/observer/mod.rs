//! Observes connections from the first byte to the last: connects `wire`, `decode` and `measure`.
//!
//! If messages of a connection cannot be parsed, the reason is counted and their requests are recorded as unobserved. The
//! bytes are still forwarded, and later messages are parsed if their start can be found.

mod body;
mod connection;
mod cost;
mod engine;
mod headers;
mod network;
mod open;
mod request;
mod session;
mod settings;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::input::{Connection, Observe, Observer};
use crate::measure::{Sink, Thresholds};
use crate::observer::connection::ConnectionObserver;
use crate::observer::engine::LastSeen;
use tokometer_decode::{Engine, Route, TextMemory};
use tokometer_wire::budget::Budget;
use tokometer_wire::{Limits, coding};

pub use cost::memory_limit;
pub use settings::{OwnPath, OwnPathError, Settings, TargetHeaders};
pub use tokometer_decode::TextLimits as Text;

/// Observes all connections of the process and reports to a [`Sink`].
#[derive(Debug)]
pub struct Observers {
    shared: ArcSwap<Shared>,
}

/// State shared by the observers of one configuration.
struct Shared {
    settings: Settings,
    thresholds: Thresholds,
    sink: Arc<dyn Sink>,
    lasting: Arc<Lasting>,
}

/// State that outlives a configuration reload.
#[derive(Debug)]
struct Lasting {
    engines: Vec<LastSeen>,
    observed: AtomicUsize,
    open: AtomicUsize,
    /// Time spent in observers, estimated from one call in 64.
    busy_nanos: AtomicU64,
    budget: Budget,
    /// Memory used by kept response texts.
    texts: TextMemory,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Observers {
    /// Creates observers for this many listeners.
    pub fn new(settings: Settings, listeners: usize, sink: Arc<dyn Sink>) -> Observers {
        let engines = (0..listeners).map(|_| LastSeen::default()).collect();
        let lasting = Arc::new(Lasting {
            engines,
            observed: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            busy_nanos: AtomicU64::new(0),
            budget: Budget::new(settings.memory_limit()),
            texts: TextMemory::default(),
        });
        Observers { shared: ArcSwap::from_pointee(Shared::new(settings, sink, lasting)) }
    }

    /// Applies new settings to connections accepted from now on. Open connections keep their settings.
    pub fn reload(&self, settings: Settings) {
        let old = self.shared.load();
        old.lasting.budget.set_limit(settings.memory_limit());
        self.shared.store(Arc::new(Shared::new(settings, Arc::clone(&old.sink), Arc::clone(&old.lasting))));
    }

    /// Number of currently observed connections.
    pub fn observed(&self) -> usize {
        self.shared.load().lasting.observed.load(Ordering::Relaxed)
    }

    /// Number of open requests on observed connections.
    pub fn open(&self) -> usize {
        self.shared.load().lasting.open.load(Ordering::Relaxed)
    }

    /// Engine last recognised behind a listener; `None` if no engine was recognised.
    pub fn engine(&self, listener: usize) -> Option<&'static str> {
        self.shared.load().last_engine(listener)
    }

    /// The memory budget.
    pub fn budget(&self) -> Budget {
        self.shared.load().lasting.budget.clone()
    }

    /// Total time spent in observers, across all threads. Estimated: one call in 64 is timed.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.shared.load().lasting.busy_nanos.load(Ordering::Relaxed))
    }
}

impl Observe for Observers {
    fn accepted(&self, connection: &Connection) -> Option<Box<dyn Observer>> {
        let shared = self.shared.load_full();
        if !shared.settings.enabled {
            return None;
        }
        let over_limit = !shared.admit();
        Some(Box::new(ConnectionObserver::new(connection, shared, over_limit)))
    }

    fn reports_usage_on_request(&self, method: &str, target: &str) -> bool {
        matches!(self.shared.load().settings.route(method, target), Route::Chat | Route::Completions)
    }

    fn budget(&self) -> Budget {
        self.budget()
    }
}

impl Shared {
    fn new(settings: Settings, sink: Arc<dyn Sink>, lasting: Arc<Lasting>) -> Shared {
        let thresholds = Thresholds {
            stall: settings.stall,
            min_rate_tokens: settings.min_rate_tokens,
            min_rate_span: settings.min_rate_span,
        };
        Shared { settings, thresholds, sink, lasting }
    }

    fn coding_limits(&self) -> coding::Limits {
        coding::Limits { window_bytes: self.settings.coding_window_bytes }
    }

    fn limits(&self) -> Limits {
        Limits { head_bytes: self.settings.head_bytes }
    }

    /// Counts a connection as observed; false if there are too many.
    fn admit(&self) -> bool {
        let is_within = self.lasting.observed.fetch_add(1, Ordering::Relaxed) < self.settings.max_observed;
        if !is_within {
            self.forget();
        }
        is_within
    }

    /// Counts a connection as no longer observed.
    fn forget(&self) {
        self.lasting.observed.fetch_sub(1, Ordering::Relaxed);
    }

    fn recognised(&self, listener: usize, engine: Engine) {
        if let Some(last) = self.lasting.engines.get(listener) {
            last.set(engine);
        }
    }

    fn last_engine(&self, listener: usize) -> Option<&'static str> {
        self.settings.engine.or_else(|| self.lasting.engines.get(listener)?.get())
    }
}
