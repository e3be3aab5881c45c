//! Counters of the data path, for the exporters.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use tokometer_observe::closed_enum;
use tokometer_observe::input::Direction;

/// Totals since the start of the process. Bytes are added every 256 KiB and when a connection ends, not per read.
#[derive(Debug, Default)]
pub struct Stats {
    accepted: AtomicU64,
    ended: AtomicU64,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    connect_failures: AtomicU64,
    connect_timeouts: AtomicU64,
    handshake_failures: AtomicU64,
    observer_panics: AtomicU64,
    refused: [AtomicU64; Full::ALL.len()],
}

closed_enum! {
    /// Why a connection was refused.
    pub enum Full {
        /// The process has no descriptors for more connections.
        Descriptors = "descriptors",
        /// `Settings::max_connections` are open.
        MaxConnections = "max_connections",
    }
}

/// Bytes per direction that are added to the totals at once, so that an event of a few hundred bytes needs no write to
/// shared memory.
pub(crate) const REPORT_BYTES: u64 = 256 * 1024;

impl Stats {
    /// Connections accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections open now.
    pub fn open(&self) -> u64 {
        // In this order, a connection that is accepted and ends in between is not subtracted without having been added.
        let ended = self.ended.load(Ordering::Relaxed);
        self.accepted().saturating_sub(ended)
    }

    /// Bytes relayed in this direction (plaintext if a side uses TLS).
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.bytes_of(direction).load(Ordering::Relaxed)
    }

    /// Connections for which the server could not be reached.
    pub fn connect_failures(&self) -> u64 {
        self.connect_failures.load(Ordering::Relaxed)
    }

    /// Connections that the server did not accept within the configured time.
    pub fn connect_timeouts(&self) -> u64 {
        self.connect_timeouts.load(Ordering::Relaxed)
    }

    /// Connections that ended in the TLS handshake with the client.
    pub fn handshake_failures(&self) -> u64 {
        self.handshake_failures.load(Ordering::Relaxed)
    }

    /// Observers that panicked and were dropped; their connections continued unobserved.
    pub fn observer_panics(&self) -> u64 {
        self.observer_panics.load(Ordering::Relaxed)
    }

    /// Connections refused because a maximum was reached.
    pub fn refused(&self, why: Full) -> u64 {
        self.refused[why as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_refused(&self, why: Full) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_connect_timeout(&self) {
        self.connect_timeouts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_bytes(&self, direction: Direction, bytes: u64) {
        self.bytes_of(direction).fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_connect_failure(&self) {
        self.connect_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_handshake_failure(&self) {
        self.handshake_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_observer_panic(&self) {
        self.observer_panics.fetch_add(1, Ordering::Relaxed);
    }

    fn bytes_of(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Request => &self.request_bytes,
            Direction::Response => &self.response_bytes,
        }
    }
}

/// The clocks of all threads. Thread start and readers take the lock; a firing timer does not.
pub(crate) struct Lags {
    origin: Instant,
    clocks: Mutex<Vec<Arc<Clock>>>,
}

/// Nanoseconds; times are relative to `Lags::origin`.
struct Clock {
    /// The last measured lag; 0 before the first.
    last: AtomicU64,
    /// Due time of the next timer.
    due: AtomicU64,
}

impl Default for Lags {
    fn default() -> Lags {
        Lags { origin: Instant::now(), clocks: Mutex::default() }
    }
}

impl Lags {
    pub(crate) fn clock(&self) -> LagClock {
        let clock = Arc::new(Clock { last: AtomicU64::new(0), due: AtomicU64::new(u64::MAX) });
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&clock));
        LagClock { origin: self.origin, clock }
    }

    /// The maximum lag of all threads. A thread that is blocked now has not measured its lag yet, so overdue timers
    /// count.
    pub(crate) fn greatest(&self, now: Instant) -> Option<Duration> {
        let now = nanos(now.saturating_duration_since(self.origin));
        let clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        let lag = |clock: &Arc<Clock>| {
            let last = clock.last.load(Ordering::Relaxed);
            (last > 0).then(|| last.max(now.saturating_sub(clock.due.load(Ordering::Relaxed))))
        };
        clocks.iter().filter_map(lag).max().map(Duration::from_nanos)
    }
}

/// The clock of one thread.
pub struct LagClock {
    origin: Instant,
    clock: Arc<Clock>,
}

impl std::fmt::Debug for LagClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LagClock").finish_non_exhaustive()
    }
}

impl LagClock {
    /// Sets the due time of the thread's next timer.
    pub fn expect(&self, due: Instant) {
        self.clock.due.store(nanos(due.saturating_duration_since(self.origin)), Ordering::Relaxed);
    }

    /// Records how late the timer fired.
    pub fn fired(&self, lag: Duration) {
        self.clock.last.store(nanos(lag).max(1), Ordering::Relaxed);
    }
}

/// An ended thread has no timer due.
impl Drop for LagClock {
    fn drop(&mut self) {
        self.clock.due.store(u64::MAX, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn lag_is_the_maximum_over_all_threads() {
        let lags = Lags::default();
        let (slow, swift) = (lags.clock(), lags.clock());
        assert_eq!(lags.greatest(Instant::now()), None);
        slow.fired(40 * MS);
        swift.fired(MS);
        assert_eq!(lags.greatest(Instant::now()), Some(40 * MS));
        slow.fired(2 * MS);
        assert_eq!(lags.greatest(Instant::now()), Some(2 * MS));
    }

    #[test]
    fn lag_of_a_blocked_thread_includes_its_overdue_timer() {
        let lags = Lags::default();
        let clock = lags.clock();
        clock.fired(MS);
        let due = Instant::now();
        clock.expect(due);
        assert_eq!(lags.greatest(due + 5000 * MS), Some(5000 * MS));
        drop(clock);
        assert_eq!(lags.greatest(due + 9000 * MS), Some(MS), "an ended thread has no lag");
    }
}
