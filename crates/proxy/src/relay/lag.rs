//! Measures how late the data path's threads run, with a timer on each thread.
//!
//! Anything that keeps a thread from running (no CPU, a stopped process, a long task) delays its timer and its reads
//! alike. The timer is due every 100 ms, so the measured delay is up to 100 ms too short. Kernel timestamps
//! (`SO_TIMESTAMPNS`) would show the full delay, but add a control message to every read. Instead, the first read of a
//! connection after a delay asks the kernel how long the connection's bytes have waited.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two timers of a thread.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// Smaller delays are within the resolution of the runtime's timers and normal scheduling.
const LATE: Duration = Duration::from_millis(5);

/// Buckets of delays: up to 1 ms, 2 ms, 4 ms, ... 8.192 s, and longer.
const BUCKETS: usize = 15;

/// The lag clocks of all threads. Only starting threads and readers lock the list; a firing timer does not.
#[derive(Default)]
pub(crate) struct Lags(Mutex<Vec<Weak<LagClock>>>);

/// The lag measurements of one thread; times are in nanoseconds.
pub(crate) struct LagClock {
    thread: Arc<str>,
    origin: Instant,
    /// The last measured lag; 0 before the first.
    last: AtomicU64,
    /// Due time of the next timer, relative to `origin`.
    due: AtomicU64,
    /// Number and sum of the measured lags by bucket, since the last read.
    delays: [(AtomicU64, AtomicU64); BUCKETS],
}

/// Timer delays of one thread since the last read.
#[derive(Clone, Debug, PartialEq)]
pub struct Delays {
    /// Name of the thread.
    pub thread: Arc<str>,
    /// Mean delay and number of timers by bucket.
    pub buckets: Vec<(Duration, u64)>,
}

impl Lags {
    /// A clock for this thread; dropped when the thread ends.
    fn clock(&self) -> Arc<LagClock> {
        let clock = Arc::new(LagClock {
            thread: thread::current().name().unwrap_or("relay").into(),
            origin: Instant::now(),
            last: AtomicU64::new(0),
            due: AtomicU64::new(u64::MAX),
            delays: Default::default(),
        });
        self.lock().push(Arc::downgrade(&clock));
        clock
    }

    /// The maximum lag of all running threads. A thread that is blocked now has not measured its lag yet, so overdue
    /// timers count too.
    pub(crate) fn greatest(&self, now: Instant) -> Option<Duration> {
        self.lock().iter().filter_map(|clock| clock.upgrade()?.lag(now)).max()
    }

    /// The maximum time for which a timer is overdue now; zero while all threads run.
    pub(crate) fn overdue(&self, now: Instant) -> Duration {
        let overdue = self.lock().iter().filter_map(|clock| Some(clock.upgrade()?.overdue(now))).max();
        overdue.filter(|overdue| *overdue >= LATE).unwrap_or_default()
    }

    /// The delays of all threads since the last call.
    pub(crate) fn take(&self) -> Vec<Delays> {
        self.lock().iter().filter_map(|clock| Some(clock.upgrade()?.take())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<LagClock>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LagClock {
    fn lag(&self, now: Instant) -> Option<Duration> {
        let last = Duration::from_nanos(self.last.load(Ordering::Relaxed));
        (!last.is_zero()).then(|| last.max(self.overdue(now)))
    }

    fn overdue(&self, now: Instant) -> Duration {
        let due = Duration::from_nanos(self.due.load(Ordering::Relaxed));
        now.saturating_duration_since(self.origin).saturating_sub(due)
    }

    /// Sets the due time of the thread's next timer.
    fn expect(&self, due: Instant) {
        self.due.store(nanos(due.saturating_duration_since(self.origin)), Ordering::Relaxed);
    }

    /// Records how late the timer was.
    fn fired(&self, lag: Duration) {
        self.last.store(nanos(lag).max(1), Ordering::Relaxed);
        let bucket = (0..BUCKETS - 1).find(|bucket| lag <= Duration::from_millis(1 << bucket)).unwrap_or(BUCKETS - 1);
        let (number, sum) = &self.delays[bucket];
        number.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(nanos(lag), Ordering::Relaxed);
    }

    fn take(&self) -> Delays {
        let taken = self.delays.iter().map(|(number, sum)| {
            let (number, sum) = (number.swap(0, Ordering::Relaxed), sum.swap(0, Ordering::Relaxed));
            (Duration::from_nanos(sum.checked_div(number).unwrap_or_default()), number)
        });
        Delays { thread: Arc::clone(&self.thread), buckets: taken.filter(|(_, number)| *number > 0).collect() }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Delays of this thread so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    /// Due time of the next timer; `None` on a thread without a timer.
    due: Option<Instant>,
    /// End of the last delay.
    until: Option<Instant>,
    /// The last delay.
    last_ms: u32,
    /// Sum of all delays; wraps after 49 days of delay.
    pub total_ms: u32,
}

impl Lateness {
    /// The total lateness known to a connection accepted at `now`. Excludes a delay that has just ended, because the
    /// connection's first data may have waited during that delay.
    pub(crate) fn before(&self, now: Instant) -> u32 {
        let fresh = self.until.is_some_and(|until| now.saturating_duration_since(until) < PERIOD);
        self.total_ms.wrapping_sub(if fresh { self.last_ms } else { 0 })
    }
}

thread_local! {
    static LATENESS: Cell<Lateness> = const {
        Cell::new(Lateness { due: None, until: None, last_ms: 0, total_ms: 0 })
    };
    static CLOCK: RefCell<Option<Arc<LagClock>>> = const { RefCell::new(None) };
}

/// Delays of this thread until `now`. Counts an overdue timer first, because after a delay, a read may run before the
/// timer does.
pub fn lateness(now: Instant) -> Lateness {
    let kept = LATENESS.get();
    if kept.due.is_none_or(|due| now < due + LATE) {
        return kept;
    }
    fire(now);
    LATENESS.get()
}

/// Records the delay of the timer, if it is due, and sets the next due time.
fn fire(now: Instant) {
    let mut kept = LATENESS.get();
    let Some(lag) = kept.due.and_then(|due| now.checked_duration_since(due)) else { return };
    if lag >= LATE {
        kept.last_ms = u32::try_from(lag.as_millis()).unwrap_or(u32::MAX);
        kept.total_ms = kept.total_ms.wrapping_add(kept.last_ms);
        kept.until = Some(now);
    }
    kept.due = Some(now + PERIOD);
    LATENESS.set(kept);
    CLOCK.with_borrow(|clock| {
        if let Some(clock) = clock {
            clock.fired(lag);
            clock.expect(now + PERIOD);
        }
    });
}

/// Ends the measurement on this thread when dropped.
struct Watching;

impl Drop for Watching {
    fn drop(&mut self) {
        LATENESS.set(Lateness { due: None, ..LATENESS.get() });
        CLOCK.set(None);
    }
}

/// Starts the measurement on this thread.
fn watch_from(lags: &Lags, now: Instant) -> Watching {
    let clock = lags.clock();
    clock.expect(now + PERIOD);
    CLOCK.set(Some(clock));
    LATENESS.set(Lateness { due: Some(now + PERIOD), ..LATENESS.get() });
    Watching
}

/// Measures the lateness of this thread until it is dropped.
pub(crate) async fn watch(lags: &Lags) {
    let _watching = watch_from(lags, Instant::now());
    while let Some(due) = LATENESS.get().due {
        tokio::time::sleep_until(due.into()).await;
        fire(Instant::now());
    }
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
        assert_eq!((lags.overdue(due + 5000 * MS), lags.overdue(due + 4 * MS)), (5000 * MS, Duration::ZERO));
        drop(clock);
        assert_eq!(lags.greatest(due + 9000 * MS), None, "an ended thread has no lag");
    }

    #[test]
    fn delays_are_read_once_and_none_is_lost() {
        let lags = Lags::default();
        let clock = lags.clock();
        [MS / 2, MS, 3 * MS, 2500 * MS, 60_000 * MS].into_iter().for_each(|lag| clock.fired(lag));
        let buckets = lags.take().remove(0).buckets;
        assert_eq!(buckets, [(MS * 3 / 4, 2), (3 * MS, 1), (2500 * MS, 1), (60_000 * MS, 1)]);
        assert!(lags.take().remove(0).buckets.is_empty());
    }

    #[test]
    fn delay_is_counted_once_by_read_or_timer_and_small_ones_are_ignored() {
        let lags = Lags::default();
        let start = Instant::now();
        let _watching = watch_from(&lags, start);
        let first = lateness(start).total_ms;
        let late = |at: u32| lateness(start + at * MS).total_ms.wrapping_sub(first);
        assert_eq!([late(99), late(104)], [0, 0], "within the resolution");
        fire(start + 104 * MS);
        assert_eq!(late(110), 0);
        // The process is stopped for 2.5 s; the first read runs before the timer.
        assert_eq!([late(2610), late(2611)], [2406, 2406]);
        fire(start + 2612 * MS);
        assert_eq!(late(2613), 2406, "the timer was moved");
        fire(start + 2810 * MS);
        assert_eq!(late(2811), 2506);
        let kept = lateness(start + 2812 * MS);
        assert_eq!(
            kept.before(start + 2812 * MS).wrapping_sub(first),
            2406,
            "a connection accepted just after a delay"
        );
        assert_eq!(kept.before(start + 3000 * MS).wrapping_sub(first), 2506);
        let timers: u64 = lags.take().remove(0).buckets.iter().map(|(_, number)| number).sum();
        assert_eq!(timers, 3);
    }
}
