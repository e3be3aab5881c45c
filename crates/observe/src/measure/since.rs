//! Times since the start of an exchange, in half the room of an `Option<Duration>`: an open stream keeps several.

use std::time::Duration;

/// Stands for a time that is not known.
pub(super) const NEVER: u64 = u64::MAX;

/// Nanoseconds of a time; 584 years are more than any stream lasts.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
}

/// A time that may not have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since(u64);

impl Since {
    /// It has not come.
    pub(super) const NEVER: Since = Since(NEVER);

    /// It came then.
    pub(super) fn at(time: Duration) -> Since {
        Since(nanos(time))
    }

    /// The time, if it came.
    pub(super) fn get(self) -> Option<Duration> {
        (self != Since::NEVER).then(|| Duration::from_nanos(self.0))
    }

    /// It comes then, unless it came before.
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
    fn a_time_comes_back_to_the_nanosecond_and_the_first_one_stays() {
        let mut since = Since::NEVER;
        assert_eq!(since.get(), None);
        since.first(Duration::from_nanos(7));
        since.first(Duration::from_nanos(9));
        assert_eq!(since.get(), Some(Duration::from_nanos(7)));
        assert_eq!(Since::at(Duration::ZERO).get(), Some(Duration::ZERO));
        assert_eq!(Since::from(None), Since::NEVER);
    }

    #[test]
    fn a_time_longer_than_any_is_the_longest_not_none() {
        for time in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(u64::MAX - 1)] {
            assert_eq!(Since::from(Some(time)).get(), Some(Duration::from_nanos(u64::MAX - 1)));
        }
    }
}
