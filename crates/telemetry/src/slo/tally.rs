//! Counters of one objective and model.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use crate::slo::Exclusion;
use crate::slo::Goal;
use crate::slo::Reason;
use crate::slo::Verdict;
use tokometer_observe::measure::Count;
use tokometer_observe::measure::CountSource;

/// Evaluated requests so far. All counters are exported as zero from the start, so that `rate` sees the first event.
#[derive(Debug, Default)]
pub(super) struct Tally {
    good: AtomicU64,
    bad: [AtomicU64; Reason::ALL.len()],
    excluded: [AtomicU64; Exclusion::ALL.len()],
    /// By source: counts from different sources are never in one series.
    tokens: [AtomicU64; CountSource::ALL.len()],
}

/// Counter values at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Good requests.
    pub good: u64,
    /// Bad requests by reason; only reasons possible for the goal.
    pub bad: Vec<(Reason, u64)>,
    /// Excluded requests by cause; only causes possible for the goal.
    pub excluded: Vec<(Exclusion, u64)>,
    /// Output tokens of good requests; empty except for [`Goal::Goodput`].
    pub good_tokens: Vec<(CountSource, u64)>,
}

impl Counts {
    /// Total bad requests.
    pub fn all_bad(&self) -> u64 {
        self.bad.iter().map(|(_, n)| n).sum()
    }
}

impl Tally {
    /// Counts a verdict, and the output tokens if it is good.
    pub(super) fn add(&self, verdict: Verdict, output: Option<Count>) {
        let one = |counters: &[AtomicU64], at: Option<usize>| {
            if let Some(counter) = at.and_then(|at| counters.get(at)) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        };
        match verdict {
            Verdict::Good => {
                self.good.fetch_add(1, Ordering::Relaxed);
                if let Some(output) = output
                    && let Some(at) = CountSource::ALL.iter().position(|source| *source == output.source)
                    && let Some(counter) = self.tokens.get(at)
                {
                    counter.fetch_add(output.tokens, Ordering::Relaxed);
                }
            }
            Verdict::Bad(reason) => one(&self.bad, Reason::ALL.iter().position(|known| *known == reason)),
            Verdict::Excluded(why) => one(&self.excluded, Exclusion::ALL.iter().position(|known| *known == why)),
        }
    }

    /// The counter values that are possible for this goal.
    pub(super) fn counts(&self, goal: &Goal) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of = |counters: &[AtomicU64], at: Option<usize>| at.and_then(|at| counters.get(at)).map_or(0, read);
        let bad = Reason::of(goal).map(|r| (r, of(&self.bad, Reason::ALL.iter().position(|known| *known == r))));
        let excluded =
            Exclusion::of(goal).map(|e| (e, of(&self.excluded, Exclusion::ALL.iter().position(|known| *known == e))));
        let tokens = CountSource::ALL.iter().zip(&self.tokens).map(|(source, n)| (*source, read(n)));
        Counts {
            good: read(&self.good),
            bad: bad.collect(),
            excluded: excluded.collect(),
            good_tokens: if matches!(goal, Goal::Goodput) { tokens.collect() } else { Vec::new() },
        }
    }
}
