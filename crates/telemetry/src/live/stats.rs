//! Figures of the exchanges in flight, for the exporters.

use std::time::Duration;

use crate::live::slot::Doing;
use crate::live::slot::NEVER;
use crate::live::slot::Seen;
use crate::live::witness::Verdict;

/// One pair's exchanges in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Those without a token yet, and those with some.
    pub phases: [Phases; 2],
    /// Streams whose next token is waited for longer than the stall threshold, and whose clients take bytes.
    pub stalled: u64,
    /// What the engine is found to be.
    pub verdict: Verdict,
}

/// The exchanges in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// How many.
    pub exchanges: u64,
    /// Their ages, from the first bytes of their requests, together.
    pub ages: Duration,
    /// The oldest one's age.
    pub oldest: Duration,
    /// Longest that one of them has waited for its next token.
    pub waited: Duration,
}

/// Adds up what the exchanges of one pair say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) phases: [Phases; 2],
    pub(super) stalled: u64,
}

impl Sums {
    pub(super) fn take(&mut self, seen: &Seen, now: u64, stall: Duration) {
        let since = |then: u64| Duration::from_nanos(now.saturating_sub(then));
        let doing = seen.doing();
        let waited = match doing {
            Doing::Nothing | Doing::HeldUp => Duration::ZERO,
            Doing::Prefilling | Doing::Decoding | Doing::Whole => since(seen.waits_since()),
        };
        self.stalled += u64::from(doing == Doing::Decoding && waited > stall);
        let [waiting, streaming] = &mut self.phases;
        let phase = if seen.first_token == NEVER { waiting } else { streaming };
        let age = since(seen.started);
        phase.exchanges += 1;
        phase.ages = phase.ages.saturating_add(age);
        phase.oldest = phase.oldest.max(age);
        phase.waited = phase.waited.max(waited);
    }
}
