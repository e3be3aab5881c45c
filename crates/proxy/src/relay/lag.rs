//! How late the timers of the data path's threads fire: whatever waits for a thread waits as long.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

/// The clocks of all threads. The lock is taken at the start of a thread and by readers, never when a timer fires.
pub(crate) struct Lags {
    origin: Instant,
    clocks: Mutex<Vec<Arc<Clock>>>,
}

/// Nanoseconds; times count from `Lags::origin`.
struct Clock {
    /// The lag measured last; 0 while none was.
    last: AtomicU64,
    /// When the next timer is due.
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

    /// The greatest lag of any thread. A thread that is busy now has not measured it yet: its timer is overdue.
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
    /// The thread's timer is due then.
    pub fn expect(&self, due: Instant) {
        self.clock.due.store(nanos(due.saturating_duration_since(self.origin)), Ordering::Relaxed);
    }

    /// The timer fired this late.
    pub fn fired(&self, lag: Duration) {
        self.clock.last.store(nanos(lag).max(1), Ordering::Relaxed);
    }
}

/// A thread that has ended expects no timer.
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
    fn lag_is_the_greatest_of_all_threads_and_not_the_last_reported() {
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
    fn thread_that_is_still_blocked_lags_by_what_its_timer_is_overdue() {
        let lags = Lags::default();
        let clock = lags.clock();
        clock.fired(MS);
        let due = Instant::now();
        clock.expect(due);
        assert_eq!(lags.greatest(due + 5000 * MS), Some(5000 * MS));
        drop(clock);
        assert_eq!(lags.greatest(due + 9000 * MS), Some(MS), "a thread that ended is not late");
    }
}
