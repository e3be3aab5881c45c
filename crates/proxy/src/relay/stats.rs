//! Counters of the data path, for the exporters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokometer_observe::input::Direction;
use tokometer_observe::{Counter, closed_enum};

/// Totals of one listener. Bytes are added every 256 KiB and when a connection ends, not per read.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections that the server accepted.
    pub connected: Counter,
    /// Connections for which the server could not be reached.
    pub connect_failures: Counter,
    /// Connections that the server did not accept within the configured time.
    pub connect_timeouts: Counter,
    /// Connections that ended in the TLS handshake with the client.
    pub handshake_failures: Counter,
    /// Observers that panicked and were dropped; their connections continued unobserved.
    pub observer_panics: Counter,
    pub(crate) ended: Counter,
    request_bytes: Counter,
    response_bytes: Counter,
    refused: [Counter; Full::ALL.len()],
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
    /// Connections open now.
    pub fn open(&self) -> u64 {
        // In this order, a connection that is accepted and ends in between is not subtracted without having been added.
        let ended = self.ended.get();
        self.accepted.get().saturating_sub(ended)
    }

    /// Bytes relayed in this direction (plaintext if a side uses TLS).
    pub fn bytes(&self, direction: Direction) -> &Counter {
        match direction {
            Direction::Request => &self.request_bytes,
            Direction::Response => &self.response_bytes,
        }
    }

    /// Connections refused because a maximum was reached.
    pub fn refused(&self, why: Full) -> &Counter {
        &self.refused[why as usize]
    }
}

/// The clocks of all threads. Thread start and readers take the lock; a firing timer does not.
#[derive(Default)]
pub(crate) struct Lags(Mutex<Vec<Weak<LagClock>>>);

/// The clock of one thread, in nanoseconds.
pub(crate) struct LagClock {
    origin: Instant,
    /// The last measured lag; 0 before the first.
    last: AtomicU64,
    /// Due time of the next timer, relative to `origin`.
    due: AtomicU64,
}

impl Lags {
    /// A clock for a thread; dropped when the thread ends.
    pub(crate) fn clock(&self) -> Arc<LagClock> {
        let (last, due) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let clock = Arc::new(LagClock { origin: Instant::now(), last, due });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&clock));
        clock
    }

    /// The maximum lag of all running threads. A thread that is blocked now has not measured its lag yet, so overdue
    /// timers count.
    pub(crate) fn greatest(&self, now: Instant) -> Option<Duration> {
        let clocks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        clocks.iter().filter_map(|clock| clock.upgrade()?.lag(now)).max()
    }
}

impl LagClock {
    fn lag(&self, now: Instant) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed);
        let overdue =
            nanos(now.saturating_duration_since(self.origin)).saturating_sub(self.due.load(Ordering::Relaxed));
        (last > 0).then(|| Duration::from_nanos(last.max(overdue)))
    }

    /// Sets the due time of the thread's next timer.
    pub(crate) fn expect(&self, due: Instant) {
        self.due.store(nanos(due.saturating_duration_since(self.origin)), Ordering::Relaxed);
    }

    /// Records how late the timer fired.
    pub(crate) fn fired(&self, lag: Duration) {
        self.last.store(nanos(lag).max(1), Ordering::Relaxed);
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
        assert_eq!(lags.greatest(due + 9000 * MS), None, "an ended thread has no lag");
    }
}
