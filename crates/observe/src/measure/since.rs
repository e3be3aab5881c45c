//! Times since the start of a request in half the size of an `Option<Duration>`: an open stream keeps several.

use std::time::Duration;

/// Marks an unknown time.
pub(super) const NEVER: u64 = u64::MAX;

/// Time in nanoseconds, saturated at 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
}

/// Time of an event that may not have happened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since(u64);

impl Since {
    /// Not happened.
    pub(super) const NEVER: Since = Since(NEVER);

    /// Happened at `time`.
    pub(super) fn at(time: Duration) -> Since {
        Since(nanos(time))
    }

    /// The time, if it happened.
    pub(super) fn get(self) -> Option<Duration> {
        (self != Since::NEVER).then(|| Duration::from_nanos(self.0))
    }

    /// Sets the time, unless it is already set.
    pub(super) fn first(&mut self, time: Duration) {
        if *self == Since::NEVER {
            *self = Since::at(time);
        }
    }
}

impl From<Option<Duration>> for Since {
    fn from(time: Option<Duration>) -> Since {
        time.map_or(Since::NEVER, Since::at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_and_the_first_one_is_kept() {
        let mut since = Since::NEVER;
        assert_eq!(since.get(), None);
        since.first(Duration::from_nanos(7));
        since.first(Duration::from_nanos(9));
        assert_eq!(since.get(), Some(Duration::from_nanos(7)));
        assert_eq!(Since::at(Duration::ZERO).get(), Some(Duration::ZERO));
        assert_eq!(Since::from(None), Since::NEVER);
    }

    #[test]
    fn overlong_times_saturate_instead_of_being_none() {
        for time in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(u64::MAX - 1)] {
            assert_eq!(Since::from(Some(time)).get(), Some(Duration::from_nanos(u64::MAX - 1)));
        }
    }
}
