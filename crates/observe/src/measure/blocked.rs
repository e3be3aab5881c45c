//! Intervals during which delivery of a response was blocked on the client (backpressure).

use std::time::Duration;

/// Maximum number of recorded intervals; later ones only add to the sums.
const KEPT: usize = 8;

/// Time blocked on the client, by what the server was doing meanwhile. The sums include every interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Before the first token; all blocked time if no token was seen.
    pub waiting: Duration,
    /// Between the first and the last token.
    pub decoding: Duration,
    /// After the last token.
    pub finishing: Duration,
    /// Start and end of the first 8 intervals, relative to the first byte of the request.
    pub intervals: Vec<(Duration, Duration)>,
}

impl Blocked {
    /// Total blocked time.
    pub fn total(&self) -> Duration {
        self.waiting + self.decoding + self.finishing
    }

    /// Lower bound of the end of the last interval: not before the last recorded interval, and not before the total.
    pub(super) fn end(&self) -> Duration {
        self.intervals.last().map_or(Duration::ZERO, |(_, to)| *to).max(self.total())
    }

    /// Adds the interval from `from` to `to`. `begun`: a token has been seen.
    pub(super) fn add(&mut self, from: Duration, to: Duration, begun: bool) {
        let more = to.saturating_sub(from);
        if begun {
            // Counts as after the last token until another token arrives.
            self.finishing += more;
        } else {
            self.waiting += more;
        }
        if self.intervals.len() < KEPT && !more.is_zero() {
            self.intervals.push((from, to));
        }
    }

    /// Another token arrived: blocked time since the previous token counts as decoding.
    pub(super) fn token(&mut self) {
        self.decoding += std::mem::take(&mut self.finishing);
    }
}
