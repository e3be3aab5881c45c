//! A rate limit per second; after a quiet second, a full second's quota may pass at once.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Instant;

const SECOND: u64 = 1_000_000_000;

/// The generic cell rate algorithm (ITU-T I.371), with one atomic and no lock. Late or unordered times never let more
/// pass.
#[derive(Debug)]
pub(crate) struct Rate {
    start: Instant,
    /// Nanoseconds per item; `None` without a limit.
    each: Option<u64>,
    /// When everything passed so far would have passed at the steady rate, in nanoseconds after `start`.
    due: AtomicU64,
}

impl Rate {
    /// A limit of `per_second`; `None` for no limit.
    pub(crate) fn new(per_second: Option<u64>, start: Instant) -> Rate {
        let each = per_second.map(|n| (SECOND / n.max(1)).max(1));
        Rate { start, each, due: AtomicU64::new(0) }
    }

    /// Takes one item at time `at` if the limit allows it.
    pub(crate) fn take(&self, at: Instant) -> bool {
        let Some(each) = self.each else { return true };
        let now = u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        let next = |due: u64| {
            let due = due.max(now).saturating_add(each);
            (due <= now.saturating_add(SECOND)).then_some(due)
        };
        self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn taken(rate: &Rate, at: Instant, asked: usize) -> usize {
        (0..asked).filter(|_| rate.take(at)).count()
    }

    #[test]
    fn each_second_allows_the_cap_and_no_more_accumulate() {
        let start = Instant::now();
        let rate = Rate::new(Some(10), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(taken(&rate, at(0), 100), 10);
        assert_eq!(taken(&rate, at(99), 100), 0);
        assert_eq!(taken(&rate, at(350), 100), 3);
        assert_eq!(taken(&rate, at(1350), 100), 10);
        assert_eq!(taken(&rate, at(100_000), 100), 10);
    }

    #[test]
    fn times_out_of_order_let_no_more_pass() {
        let start = Instant::now();
        let rate = Rate::new(Some(4), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(taken(&rate, at(5000), 9), 4);
        assert_eq!(taken(&rate, at(0), 9), 0);
        assert_eq!(taken(&rate, at(5250), 9), 1);
    }

    #[test]
    fn no_cap_and_the_maximum_cap_let_all_pass() {
        let start = Instant::now();
        assert_eq!(taken(&Rate::new(None, start), start, 100_000), 100_000);
        assert_eq!(taken(&Rate::new(Some(u64::MAX), start), start, 1000), 1000);
    }
}
