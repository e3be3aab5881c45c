//! A cap on how often something happens: so many in a second, and as many at once after a quiet second.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Instant;

const SECOND: u64 = 1_000_000_000;

/// The generic cell rate algorithm (ITU-T I.371), with one atomic and no lock. Times may come late or out of order; they
/// never let more pass.
#[derive(Debug)]
pub(crate) struct Rate {
    start: Instant,
    /// Nanoseconds that one takes; `None` where there is no cap.
    each: Option<u64>,
    /// When all that has passed would have passed at the steady rate, in nanoseconds after `start`.
    due: AtomicU64,
}

impl Rate {
    /// So many per second; `None`: as many as come.
    pub(crate) fn new(per_second: Option<u64>, start: Instant) -> Rate {
        let each = per_second.map(|n| (SECOND / n.max(1)).max(1));
        Rate { start, each, due: AtomicU64::new(0) }
    }

    /// Takes one at `at`, if there is one left.
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
    fn a_second_brings_as_many_as_the_cap_and_no_more_are_saved_up() {
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
    fn without_a_cap_all_pass_and_the_greatest_cap_is_one() {
        let start = Instant::now();
        assert_eq!(taken(&Rate::new(None, start), start, 100_000), 100_000);
        assert_eq!(taken(&Rate::new(Some(u64::MAX), start), start, 1000), 1000);
    }
}
