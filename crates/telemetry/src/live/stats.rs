//! Metrics of the requests in flight, for the exporters.

use std::time::Duration;

use crate::live::slot::Doing;
use crate::live::slot::NEVER;
use crate::live::slot::Seen;
use crate::live::witness::Verdict;

/// Requests in flight of one listener.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Requests without a token yet, and requests with tokens.
    pub phases: [Phases; 2],
    /// Streams whose next token takes longer than the stall threshold, without those blocked on the client.
    pub stalled: u64,
    /// State of the engine.
    pub verdict: Verdict,
}

/// The requests in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// Number of requests.
    pub exchanges: u64,
    /// Sum of their ages, from the first byte of each request.
    pub ages: Duration,
    /// Age of the oldest request.
    pub oldest: Duration,
    /// Longest current wait for a next token.
    pub waited: Duration,
}

/// Accumulates the requests of one listener.
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
