//! Monotonic sums that any thread may add to.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use crate::accounting::Basis;
use crate::accounting::Unpriced;
use tokometer_observe::measure::Count;
use tokometer_observe::measure::CountSource;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Record;

/// A sum of money or tokens.
#[derive(Debug, Default)]
pub(super) struct Sum(AtomicU64);

impl Sum {
    /// Adds a finite value above 0; ignores others.
    pub(super) fn add(&self, value: f64) {
        if value.is_finite() && value > 0.0 {
            let more = |bits: u64| Some((f64::from_bits(bits) + value).to_bits());
            // Cannot fail: the closure always returns a value.
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok();
        }
    }

    pub(super) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Usage of one tenant.
#[derive(Debug, Default)]
pub(super) struct Used {
    ended: [AtomicU64; Outcome::ALL.len()],
    input: [AtomicU64; CountSource::ALL.len()],
    cached: AtomicU64,
    output: [AtomicU64; CountSource::ALL.len()],
}

/// Usage of one tenant at one moment. Zero counts are left out, except for outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Requests by outcome, for every outcome.
    pub ended: Vec<(Outcome, u64)>,
    /// Input tokens by source, including cached ones.
    pub input: Vec<(CountSource, u64)>,
    /// Input tokens from the engine's cache.
    pub cached_input: u64,
    /// Output tokens by source.
    pub output: Vec<(CountSource, u64)>,
}

impl Used {
    pub(super) fn add(&self, record: &Record) {
        let at = Outcome::ALL.iter().position(|outcome| *outcome == record.outcome);
        if let Some(counter) = at.and_then(|at| self.ended.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let count = |counters: &[AtomicU64], count: Option<Count>| {
            let at = |count: Count| CountSource::ALL.iter().position(|source| *source == count.source);
            if let Some(count) = count
                && let Some(counter) = at(count).and_then(|at| counters.get(at))
            {
                counter.fetch_add(count.tokens, Ordering::Relaxed);
            }
        };
        count(&self.input, record.input_tokens);
        count(&self.output, record.output_tokens);
        self.cached.fetch_add(record.cached_tokens.unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn usage(&self) -> Usage {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tokens = |counters: &[AtomicU64]| {
            let each = CountSource::ALL.into_iter().zip(counters).map(|(source, n)| (source, read(n)));
            each.filter(|(_, n)| *n > 0).collect()
        };
        Usage {
            ended: Outcome::ALL.into_iter().zip(&self.ended).map(|(outcome, n)| (outcome, read(n))).collect(),
            input: tokens(&self.input),
            cached_input: read(&self.cached),
            output: tokens(&self.output),
        }
    }
}

/// Cost of one model, or of one tenant of it.
#[derive(Debug, Default)]
pub(super) struct Cost([Sum; Basis::ALL.len()]);

impl Cost {
    pub(super) fn add(&self, money: f64, basis: Basis) {
        let at = Basis::ALL.iter().position(|known| *known == basis);
        if let Some(sum) = at.and_then(|at| self.0.get(at)) {
            sum.add(money);
        }
    }

    /// Costs by basis; zero sums are left out, except for the exact one.
    pub(super) fn by_basis(&self) -> Vec<(Basis, f64)> {
        let each = Basis::ALL.into_iter().zip(&self.0).map(|(basis, sum)| (basis, sum.get()));
        each.filter(|(basis, money)| *basis == Basis::Exact || *money > 0.0).collect()
    }
}

/// Responses without a price.
#[derive(Debug, Default)]
pub(super) struct Missing([AtomicU64; Unpriced::ALL.len()]);

impl Missing {
    pub(super) fn add(&self, why: Unpriced) {
        let at = Unpriced::ALL.iter().position(|known| *known == why);
        if let Some(counter) = at.and_then(|at| self.0.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn by_reason(&self) -> Vec<(Unpriced, u64)> {
        Unpriced::ALL.into_iter().zip(&self.0).map(|(why, n)| (why, n.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_ignores_negative_and_non_finite_values() {
        let sum = Sum::default();
        for value in [0.1, -5.0, f64::NAN, f64::INFINITY, 0.0, 0.2] {
            sum.add(value);
        }
        assert!((sum.get() - 0.3).abs() < 1e-12, "{}", sum.get());
    }

    #[test]
    fn concurrent_additions_are_not_lost() {
        let sum = Sum::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| sum.add(0.5)));
            }
        });
        assert_eq!(sum.get(), 20_000.0);
    }
}
