//! How late the data path's timers fire.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

/// What is told holds for one to two of these: longer than most scrapes are apart, so that none misses a stall.
const WINDOW: Duration = Duration::from_secs(30);

/// The longest lag of the present window and of the one before. Threads that note something at the same moment as a window begins may
/// lose it; a stall is longer than that moment.
#[derive(Debug)]
pub(crate) struct Lag {
    began: Instant,
    /// Number of the present window, from 1; 0 before the first.
    window: AtomicU64,
    nanos: AtomicU64,
    before: AtomicU64,
}

impl Lag {
    pub(crate) fn new(began: Instant) -> Lag {
        Lag { began, window: AtomicU64::new(0), nanos: AtomicU64::new(0), before: AtomicU64::new(0) }
    }

    /// A timer fired this late.
    pub(crate) fn note(&self, lag: Duration, now: Instant) {
        let nanos = u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX).max(1);
        let window = self.window_of(now);
        let last = self.window.swap(window, Ordering::Relaxed);
        if last == window {
            self.nanos.fetch_max(nanos, Ordering::Relaxed);
        } else {
            let then = self.nanos.swap(nanos, Ordering::Relaxed);
            self.before.store(if last + 1 == window { then } else { 0 }, Ordering::Relaxed);
        }
    }

    /// The longest of the last 30 to 60 seconds; `None` while none was noted.
    pub(crate) fn longest(&self, now: Instant) -> Option<Duration> {
        let (present, before) = (self.nanos.load(Ordering::Relaxed), self.before.load(Ordering::Relaxed));
        let nanos = match self.window_of(now).saturating_sub(self.window.load(Ordering::Relaxed)) {
            0 => present.max(before),
            _ => present,
        };
        Some(nanos).filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    }

    fn window_of(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs() / WINDOW.as_secs() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_is_told_for_a_window_after_its_own() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let ms = Duration::from_millis;
        let lag = Lag::new(began);
        assert_eq!(lag.longest(at(0)), None);
        lag.note(ms(1), at(1));
        lag.note(ms(400), at(2));
        lag.note(ms(2), at(3));
        assert_eq!(lag.longest(at(29)), Some(ms(400)));
        lag.note(ms(1), at(31));
        assert_eq!(lag.longest(at(59)), Some(ms(400)), "of the window before");
        lag.note(ms(3), at(61));
        assert_eq!(lag.longest(at(61)), Some(ms(3)));
        lag.note(ms(1), at(200));
        assert_eq!(lag.longest(at(200)), Some(ms(1)), "windows in which nothing was noted lie between");
    }
}
