//! Timer lag of the data path's threads: all work that waits for a thread is delayed by as much.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

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
