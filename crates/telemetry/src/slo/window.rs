//! SLO counts of the last five minutes, computed from totals stored every ten seconds. The caller passes in all times.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokometer_metrics::closed_enum;

use super::evaluator::Model;
use crate::slo::{Counts, Evaluated, Reason};

/// Length of the window: the short window of the fast burn alert.
const REACH: Duration = Duration::from_secs(300);

/// Interval between stored totals.
const STEP: Duration = Duration::from_secs(10);

closed_enum! {
    /// State of an objective, derived from recent counts.
    pub enum ObjectiveState {
        /// No request was evaluated.
        Idle = "idle",
        /// The bad requests are within the target.
        Ok = "ok",
        /// More requests were bad than the target allows.
        Over = "over",
        /// The fast burn alert fires if this state persists.
        Burning = "burning",
    }
}

/// Totals by objective and model. Separate models prevent the totals of a removed model from being subtracted from
/// those of other models.
type Stored = BTreeMap<(String, Model), Counts>;

/// Totals stored in the last five minutes, oldest first.
#[derive(Debug)]
pub struct Window(Mutex<VecDeque<(Instant, Stored)>>);

impl Window {
    /// Creates an empty window.
    pub fn new(start: Instant) -> Window {
        Window(Mutex::new(VecDeque::from([(start, BTreeMap::new())])))
    }

    /// Stores the totals returned by `evaluated`, unless the last totals were stored less than ten seconds ago. Call
    /// about once per second.
    pub fn note(&self, now: Instant, evaluated: impl FnOnce() -> Vec<Evaluated>) {
        let age = |at: &Instant| now.saturating_duration_since(*at);
        let is_time = |kept: &VecDeque<(Instant, _)>| kept.back().is_none_or(|(at, _)| age(at) >= STEP);
        if !is_time(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let stored = evaluated().into_iter().map(|one| ((one.objective, one.model), one.counts)).collect();
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((now, stored));
        // The first entry is the baseline, and stays until the second entry is also as old as the window.
        while kept.get(1).is_some_and(|(at, _)| age(at) >= REACH) {
            kept.pop_front();
        }
    }

    /// The length of the window, and the counts of each objective within it. `evaluated` contains the current totals.
    pub fn lately(&self, now: Instant, mut evaluated: Vec<Evaluated>) -> (Duration, BTreeMap<String, Counts>) {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((at, before)) = kept.front() else { return (Duration::ZERO, sums(&evaluated)) };
        for Evaluated { objective, model, counts } in &mut evaluated {
            if let Some(before) = before.get(&(objective.clone(), model.clone())) {
                *counts = counts.since(before);
            }
        }
        (now.saturating_duration_since(*at), sums(&evaluated))
    }
}

/// Good and bad requests of each objective, over all models.
pub fn sums(evaluated: &[Evaluated]) -> BTreeMap<String, Counts> {
    let mut sums: BTreeMap<String, Counts> = BTreeMap::new();
    for Evaluated { objective, counts, .. } in evaluated {
        let sum = sums.entry(objective.clone()).or_default();
        sum.good += counts.good;
        for (reason, n) in &counts.bad {
            *sum.bad.entry(*reason).or_default() += n;
        }
    }
    sums
}

impl Counts {
    /// Share of bad requests; `None` if no request was evaluated.
    fn share(&self) -> Option<f64> {
        let (bad, all) = (self.all_bad(), self.good + self.all_bad());
        (all > 0).then(|| bad as f64 / all as f64)
    }

    /// Share of bad requests divided by the share that the target allows; above 1 the error budget is spent too fast.
    /// `None` if no request was evaluated, or if the target allows no bad requests.
    pub fn burn_rate(&self, target: f64) -> Option<f64> {
        let allowed = 1.0 - target;
        self.share().filter(|_| allowed > 0.0).map(|share| share / allowed)
    }

    /// State of the objective. An alert fires if the share of bad requests exceeds `alarming` and at least `min_bad`
    /// requests are bad.
    pub fn state(&self, target: f64, alarming: f64, min_bad: u64) -> ObjectiveState {
        match self.share() {
            None => ObjectiveState::Idle,
            Some(share) if share > alarming && self.all_bad() >= min_bad => ObjectiveState::Burning,
            // The factor tolerates rounding: a share exactly at the limit may be computed slightly above it.
            Some(share) if share > (1.0 - target) * (1.0 + 1e-9) => ObjectiveState::Over,
            Some(_) => ObjectiveState::Ok,
        }
    }

    /// The good and bad requests since `before`.
    fn since(&self, before: &Counts) -> Counts {
        let less = |(reason, n): (&Reason, &u64)| {
            (*reason, n.saturating_sub(before.bad.get(reason).copied().unwrap_or_default()))
        };
        Counts {
            good: self.good.saturating_sub(before.good),
            bad: self.bad.iter().map(less).collect(),
            ..Counts::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(objective: &str, model: &str, good: u64, bad: &[(Reason, u64)]) -> Evaluated {
        let counts = Counts { good, bad: bad.iter().copied().collect(), ..Counts::default() };
        Evaluated { objective: objective.to_owned(), model: Some(model.into()), counts }
    }

    #[test]
    fn window_sums_models_and_drops_counts_older_than_five_minutes() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let window = Window::new(start);
        let of =
            |n| vec![evaluated("ttft", "a", 10 * n, &[(Reason::LateFirstToken, n)]), evaluated("ttft", "b", n, &[])];
        for second in 1..=700 {
            window.note(at(second), || of(second));
        }
        let (over, lately) = window.lately(at(700), of(700));
        let sum = &lately["ttft"];
        assert_eq!(over, Duration::from_secs(300));
        assert_eq!((sum.good, sum.all_bad(), sum.bad[&Reason::LateFirstToken]), (11 * 300, 300, 300));
        assert!(window.0.lock().unwrap().len() <= 32);
    }

    #[test]
    fn window_is_shorter_after_the_start_and_samples_sparingly() {
        let start = Instant::now();
        let window = Window::new(start);
        let calls = std::cell::Cell::new(0);
        for second in 0..=20 {
            window.note(start + Duration::from_secs(second), || {
                calls.set(calls.get() + 1);
                vec![evaluated("ttft", "a", 5, &[])]
            });
        }
        assert_eq!(calls.get(), 2);
        let (over, lately) = window.lately(start + Duration::from_secs(20), vec![evaluated("ttft", "a", 9, &[])]);
        assert_eq!((over, lately["ttft"].good), (Duration::from_secs(20), 9));
    }

    #[test]
    fn counter_resets_give_no_negative_counts() {
        let start = Instant::now();
        let window = Window::new(start);
        window.note(start + Duration::from_secs(10), || vec![evaluated("a", "m", 100, &[(Reason::Stalled, 7)])]);
        window.note(start + Duration::from_secs(311), || vec![evaluated("a", "m", 3, &[])]);
        let (_, lately) = window.lately(start + Duration::from_secs(311), vec![evaluated("a", "m", 3, &[])]);
        assert_eq!((lately["a"].good, lately["a"].all_bad()), (0, 0));
    }

    #[test]
    fn models_that_are_no_longer_counted_do_not_change_the_counts_of_others() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let window = Window::new(start);
        let kept = |good, bad| evaluated("ttft", "kept", good, &[(Reason::LateFirstToken, bad)]);
        window.note(at(10), || vec![evaluated("ttft", "evicted", 50_000, &[]), kept(100, 1)]);
        window.note(at(311), Vec::new);
        let (_, lately) = window.lately(at(311), vec![kept(160, 7)]);
        assert_eq!((lately["ttft"].good, lately["ttft"].all_bad()), (60, 6));
    }

    #[test]
    fn state_follows_the_share_of_bad_requests() {
        let sum = |good, bad| Counts { good, bad: BTreeMap::from([(Reason::Stalled, bad)]), ..Counts::default() };
        let state = |good, bad| sum(good, bad).state(0.99, 0.144, 5);
        assert_eq!(Counts::default().state(0.99, 0.144, 5), ObjectiveState::Idle);
        assert_eq!(state(99, 1), ObjectiveState::Ok, "exactly at the limit");
        assert_eq!(state(98, 2), ObjectiveState::Over);
        assert_eq!(state(50, 50), ObjectiveState::Burning);
        assert_eq!(state(1, 4), ObjectiveState::Over, "below the minimum for an alert");
        assert_eq!(sum(90, 10).burn_rate(0.9).map(|rate| (rate * 1e9).round() / 1e9), Some(1.0));
        assert_eq!(Counts::default().burn_rate(0.9), None);
    }
}
