//! Conversion of monotonic times to wall-clock times.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

/// Interval at which an anchor is checked against the wall clock.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// Maximum difference: beyond it, the wall clock was set or has drifted, and a new anchor is taken.
const TOLERANCE: Duration = Duration::from_millis(5);

/// The same moment on both clocks. All times of one request are converted by one anchor, so that its spans stay
/// consistent even if the wall clock was set meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    instant: Instant,
    system: SystemTime,
}

impl Anchor {
    /// The wall-clock time of this moment.
    pub(crate) fn at(&self, moment: Instant) -> SystemTime {
        match moment.checked_duration_since(self.instant) {
            Some(after) => self.system + after,
            None => self.system - self.instant.duration_since(moment),
        }
    }
}

/// Provides anchors.
#[derive(Debug)]
pub(crate) struct Clock(Mutex<(Anchor, Instant)>);

impl Clock {
    pub(crate) fn new() -> Clock {
        let (instant, system) = (Instant::now(), SystemTime::now());
        Clock(Mutex::new((Anchor { instant, system }, instant)))
    }

    /// The anchor for `now`, or for a moment shortly before, which saves reading the clock.
    pub(crate) fn anchor(&self, now: Instant) -> Anchor {
        self.anchor_at(now, SystemTime::now)
    }

    fn anchor_at(&self, instant: Instant, wall: impl FnOnce() -> SystemTime) -> Anchor {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (anchor, checked) = &mut *kept;
        if instant.saturating_duration_since(*checked) >= CHECK_EVERY {
            *checked = instant;
            let (reported, system) = (anchor.at(instant), wall());
            let off = reported.duration_since(system).unwrap_or_else(|error| error.duration());
            if off > TOLERANCE {
                *anchor = Anchor { instant, system };
            }
        }
        *anchor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_around_the_anchor_have_their_wall_times() {
        let anchor = Anchor { instant: Instant::now() + Duration::from_secs(10), system: SystemTime::UNIX_EPOCH };
        let second = Duration::from_secs(1);
        assert_eq!(anchor.at(anchor.instant + second), SystemTime::UNIX_EPOCH + second);
        assert_eq!(anchor.at(anchor.instant - second), SystemTime::UNIX_EPOCH - second);
    }

    #[test]
    fn clock_steps_are_followed_and_jitter_is_ignored() {
        let clock = Clock::new();
        let start = clock.0.lock().unwrap().0;
        let minute = Duration::from_secs(61);
        let at = |n: u32| start.instant + minute * n;
        let jitter = clock.anchor_at(at(1), || start.system + minute + Duration::from_millis(1));
        assert_eq!(jitter.at(at(1)), start.system + minute);
        let unseen = clock.anchor_at(at(1) + Duration::from_secs(1), || unreachable!("checked a second ago"));
        assert_eq!(unseen.instant, start.instant);
        let hour = Duration::from_secs(3600);
        let set = clock.anchor_at(at(2), || start.system + minute * 2 + hour);
        assert_eq!(set.at(at(2)), start.system + minute * 2 + hour);
    }
}
