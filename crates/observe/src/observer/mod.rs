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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::aborts::Aborts;
use crate::input::{Activity, Close, Connection, Direction, Network, NetworkSource, Observe, Observer, TraceParent};
use crate::measure::{Sink, Thresholds};
use crate::observer::connection::ConnectionObserver;
use crate::observer::engine::LastSeen;
use tokometer_decode::{Engine, Route, TextMemory};
use tokometer_metrics::table::Id;
use tokometer_metrics::{Collect, Points};
use tokometer_wire::budget::{Budget, Reclaim};
use tokometer_wire::{Limits, coding};

pub use cost::memory_limit;
pub use settings::{ConfiguredEngine, OwnPath, OwnPathError, Settings, TargetHeaders};
pub use tokometer_decode::TextLimits as Text;

/// Memory of a connection's observer, without its requests. It is not charged to the budget: the maximum number of
/// connections limits it.
pub const CONNECTION_BYTES: usize = size_of::<Mutex<ConnectionObserver>>();

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
    /// By listener.
    aborts: Vec<Aborts>,
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
            aborts: (0..listeners).map(|_| Aborts::default()).collect(),
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
        Some(Box::new(SharedObserver::new(ConnectionObserver::new(connection, shared, over_limit))))
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
        self.settings.engine.0.map(Engine::as_str).or_else(|| self.lasting.engines.get(listener)?.get())
    }
}

/// The observer of a connection. Its own thread makes all calls; any other thread of the data path may make it give up
/// its memory in between. The lock is therefore almost always free.
struct SharedObserver(Arc<Mutex<ConnectionObserver>>);

impl SharedObserver {
    fn new(observer: ConnectionObserver) -> SharedObserver {
        let account = observer.account().clone();
        let shared = Arc::new(Mutex::new(observer));
        account.set_owner(Arc::downgrade(&shared) as Weak<Mutex<dyn Reclaim>>);
        SharedObserver(shared)
    }

    /// Calls the observer, unless an earlier call has panicked.
    fn call(&self, call: impl FnOnce(&mut ConnectionObserver)) {
        if let Ok(mut observer) = self.0.lock() {
            call(&mut observer);
        }
    }

    fn ask(&self, question: impl FnOnce(&ConnectionObserver) -> bool) -> bool {
        self.0.lock().is_ok_and(|observer| question(&observer))
    }
}

impl Reclaim for ConnectionObserver {
    fn give_up(&mut self) {
        // This runs on the thread of another connection, whose observer must not end by a fault of this one.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.take_back())) {
            std::mem::forget(payload);
        }
    }
}

impl Observer for SharedObserver {
    fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        self.call(|observer| observer.seen(direction, bytes, at));
    }

    fn late(&mut self, by: Duration) {
        self.call(|observer| observer.late(by));
    }

    fn waited(&mut self, by: Duration, at: Instant) {
        self.call(|observer| observer.waited(by, at));
    }

    fn is_costly(&self) -> bool {
        self.ask(Observer::is_costly)
    }

    fn finished(&mut self, direction: Direction, at: Instant) {
        self.call(|observer| observer.finished(direction, at));
    }

    fn waits(&mut self, direction: Direction, since: Instant) {
        self.call(|observer| observer.waits(direction, since));
    }

    fn blocked(&mut self, direction: Direction, since: Instant, until: Instant) {
        self.call(|observer| observer.blocked(direction, since, until));
    }

    fn lost(&mut self, at: Instant) {
        self.call(|observer| observer.lost(at));
    }

    fn lost_packets(&mut self, at: Instant) {
        self.call(|observer| observer.lost_packets(at));
    }

    fn sent_trace(&mut self, sent: TraceParent) {
        self.call(|observer| observer.sent_trace(sent));
    }

    fn network(&mut self, network: &Network) {
        self.call(|observer| observer.network(network));
    }

    fn network_source(&mut self, source: Arc<dyn NetworkSource>) {
        self.call(|observer| observer.network_source(source));
    }

    fn closed(&mut self, close: Close, at: Instant) {
        self.call(|observer| observer.closed(close, at));
    }

    fn idle(&self) -> bool {
        self.ask(Observer::idle)
    }

    fn activity(&self) -> Activity {
        self.0.lock().map_or(Activity::InProgress, |observer| observer.activity())
    }
}

impl Collect for Observers {
    fn collect(&self, points: &mut Points<'_>) {
        let budget = self.budget();
        points.put(Id::ObserverConnections, &[], self.observed());
        points.put(Id::ObserverTime, &[], self.busy());
        points.put(Id::ObserverDecoded, &[], budget.decoded());
        points.put(Id::ObserverMemory, &[], budget.held());
        points.put(Id::ObserverMemoryLimit, &[], budget.limit());
        points.put(Id::ObserverMemoryRefused, &[], budget.refused());
    }
}
