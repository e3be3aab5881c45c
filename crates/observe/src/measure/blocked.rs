//! When the client did not take bytes of an answer.

use std::time::Duration;

/// Intervals that are kept; further ones are in the sums alone.
const KEPT: usize = 8;

/// Time during which the client did not take bytes, by what the server did meanwhile. The sums have all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Before the first token; all of it where no token is known.
    pub waiting: Duration,
    /// Between the first and the last token.
    pub decoding: Duration,
    /// After the last token.
    pub finishing: Duration,
    /// Begin and end of the first 8 intervals, counted from the first byte of the request.
    pub intervals: Vec<(Duration, Duration)>,
}

impl Blocked {
    /// All of it.
    pub fn total(&self) -> Duration {
        self.waiting + self.decoding + self.finishing
    }

    /// No earlier than the end of the last interval that is kept, and late enough for all of them.
    pub(super) fn end(&self) -> Duration {
        self.intervals.last().map_or(Duration::ZERO, |(_, to)| *to).max(self.total())
    }

    /// Bytes waited from `from` until `to`. `begun`: a token has been seen.
    pub(super) fn add(&mut self, from: Duration, to: Duration, begun: bool) {
        let more = to.saturating_sub(from);
        if begun {
            // Until another token comes, it is after the last one.
            self.finishing += more;
        } else {
            self.waiting += more;
        }
        if self.intervals.len() < KEPT && !more.is_zero() {
            self.intervals.push((from, to));
        }
    }

    /// Another token came: what was after the last one is between two.
    pub(super) fn token(&mut self) {
        self.decoding += std::mem::take(&mut self.finishing);
    }
}
