//! Streaming requests without a first token: recorded by the data path, read by other threads. A miss is counted when it
//! happens, not when the client gives up.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use tokometer_decode::Route;
use tokometer_observe::measure::Inbox;
use tokometer_observe::measure::Opening;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Requested;
use tokometer_observe::measure::Targets;
use tokometer_observe::measure::Watch;
use tokometer_observe::measure::Watches;

/// Maximum number of open requests that are watched, and of notes on overdue ones; further requests are evaluated when
/// they end.
pub(super) const MOST: usize = 100_000;

/// A table of open requests.
pub trait Waiting {
    /// Calls `show` for every complete request for a stream without a first token. Called about once per second, never
    /// on a data path thread.
    fn each(&self, show: &mut dyn FnMut(&Wait<'_>));

    /// True while this request is open, with or without a first token.
    fn is_open(&self, connection: u64, sequence: u64) -> bool;
}

/// A request without a first token.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// Connection number in this process, as in the record.
    pub connection: u64,
    /// Request number on its connection.
    pub sequence: u64,
    /// Route of the request.
    pub route: Route,
    /// `model` of the request.
    pub request_model: Option<&'a str>,
    /// Time since the last byte of the request.
    pub waited: Duration,
    /// Size of the request body in bytes.
    pub request_bytes: u64,
    /// The SLO targets in the request itself.
    pub targets: Option<&'a Targets>,
}

/// Connection number, and request number on that connection.
pub(super) type RequestId = (u64, u64);

const WAITING: u8 = 0;
const ANSWERED: u8 = 1;
const CLOSED: u8 = 2;

/// A request for a stream.
#[derive(Debug)]
struct Entry {
    opening: Opening,
    /// Arrival of its last byte, since its first.
    requested: Duration,
    model: Option<Box<str>>,
    bytes: u64,
    targets: Option<Box<Targets>>,
    state: AtomicU8,
}

/// All such requests. The data path only pushes to a lock-free queue.
#[derive(Debug)]
pub(super) struct OpenRequests {
    arrived: Inbox<Arc<Entry>>,
    known: Mutex<HashMap<RequestId, Arc<Entry>>>,
    number: AtomicUsize,
}

impl Default for OpenRequests {
    fn default() -> OpenRequests {
        OpenRequests { arrived: Inbox::new(MOST), known: Mutex::default(), number: AtomicUsize::new(0) }
    }
}

impl OpenRequests {
    /// Watches one request.
    pub(super) fn watch(self: &Arc<Self>, opening: &Opening) -> Watches {
        Watches::of(Watcher { open: Arc::clone(self), opening: *opening, entry: None })
    }

    fn add(&self, entry: &Arc<Entry>) {
        // Over the limit, a request is evaluated when it ends, like any other.
        if self.number.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.number.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // Cannot fail: the queue has room for `MOST` entries.
        self.arrived.push(|| Arc::clone(entry));
    }

    /// The requests that are open now.
    pub(super) fn at(&self, now: Instant) -> Snapshot<'_> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(self.arrived.drain().map(|entry| ((entry.opening.connection, entry.opening.sequence), entry)));
        let before = known.len();
        known.retain(|_, entry| entry.state.load(Ordering::Acquire) != CLOSED);
        self.number.fetch_sub(before - known.len(), Ordering::Relaxed);
        Snapshot { known, now }
    }
}

/// The open requests at one moment.
#[derive(Debug)]
pub(super) struct Snapshot<'a> {
    known: MutexGuard<'a, HashMap<RequestId, Arc<Entry>>>,
    now: Instant,
}

impl Waiting for Snapshot<'_> {
    fn each(&self, show: &mut dyn FnMut(&Wait<'_>)) {
        for entry in self.known.values().filter(|entry| entry.state.load(Ordering::Acquire) == WAITING) {
            let since = entry.opening.started + entry.requested;
            show(&Wait {
                connection: entry.opening.connection,
                sequence: entry.opening.sequence,
                route: entry.opening.route,
                request_model: entry.model.as_deref(),
                waited: self.now.saturating_duration_since(since),
                request_bytes: entry.bytes,
                targets: entry.targets.as_deref(),
            });
        }
    }

    fn is_open(&self, connection: u64, sequence: u64) -> bool {
        let found = self.known.get(&(connection, sequence));
        found.is_some_and(|entry| entry.state.load(Ordering::Acquire) != CLOSED)
    }
}

/// Updates the state of one request.
struct Watcher {
    open: Arc<OpenRequests>,
    opening: Opening,
    entry: Option<Arc<Entry>>,
}

impl Watcher {
    fn set_has_response(&mut self) {
        if let Some(entry) = &self.entry {
            entry.state.store(ANSWERED, Ordering::Release);
        }
    }
}

impl Watch for Watcher {
    fn requested(&mut self, request: &Requested<'_>, at: Duration) {
        if request.streaming == Some(true) && self.entry.is_none() {
            let entry = Arc::new(Entry {
                opening: self.opening,
                requested: at,
                model: request.model.map(Into::into),
                bytes: request.bytes,
                targets: request.targets.cloned().map(Box::new),
                state: AtomicU8::new(WAITING),
            });
            self.open.add(&entry);
            self.entry = Some(entry);
        }
    }

    fn response_started(&mut self, status: u16, streaming: bool) {
        // Refused requests and non-streamed responses are evaluated when they end.
        if !(200..300).contains(&status) || !streaming {
            self.set_has_response();
        }
    }

    fn prefilling(&mut self, _at: Duration) {}

    fn token(&mut self, _at: Duration, _tokens: u64) -> bool {
        self.set_has_response();
        false
    }

    fn client_blocked(&mut self, _at: Duration) {}

    fn resumed(&mut self, _at: Duration) {}

    fn response_complete(&mut self) {
        self.set_has_response();
    }

    fn ended(self: Box<Self>, _record: &Record) {}
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            entry.state.store(CLOSED, Ordering::Release);
        }
    }
}
