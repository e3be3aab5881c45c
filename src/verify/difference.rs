//! Latency difference between direct and proxied requests, and its confidence interval.

use std::time::Duration;

use serde::Serialize;

/// A quantile of a time, for direct and for proxied requests, and the difference between the two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Direct to the server.
    pub direct_ms: f64,
    /// Through the proxy.
    pub proxied_ms: f64,
    /// Latency added by the proxy, if significant; negative when proxied requests were faster.
    pub added_ms: Option<f64>,
    /// Lower bound of the added latency, at 99 % confidence.
    pub low_ms: f64,
    /// Upper bound of the added latency, at 99 % confidence.
    pub high_ms: f64,
}

/// Times in milliseconds of one direct and one proxied canary, sent one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CanaryPair {
    pub(super) direct: Vec<f64>,
    pub(super) proxied: Vec<f64>,
}

impl CanaryPair {
    pub(super) fn of(direct: &[Duration], proxied: &[Duration]) -> CanaryPair {
        let ms = |times: &[Duration]| times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        CanaryPair { direct: ms(direct), proxied: ms(proxied) }
    }
}

/// Number of bootstrap samples.
const ROUNDS: usize = 1000;

/// Share of the samples cut off at each end.
const TAIL: f64 = 0.005;

/// Minimum number of pairs for a conclusion.
const MIN_PAIRS: usize = 6;

/// The difference at this quantile; `None` when one side has no times.
///
/// The confidence interval is from a paired bootstrap: pairs are drawn with replacement, and the middle 99 % of their
/// differences is the interval. A pair is drawn as a whole, with all gaps of its two responses, because the same load
/// slows down both responses.
pub(super) fn difference(pairs: &[CanaryPair], quantile: f64) -> Option<Difference> {
    let (mut direct, mut proxied) = (Vec::new(), Vec::new());
    let mut of = |drawn: &mut dyn Iterator<Item = &CanaryPair>| {
        direct.clear();
        proxied.clear();
        for pair in drawn {
            direct.extend_from_slice(&pair.direct);
            proxied.extend_from_slice(&pair.proxied);
        }
        Some((at(&mut direct, quantile)?, at(&mut proxied, quantile)?))
    };
    let (direct_ms, proxied_ms) = of(&mut pairs.iter())?;
    // A fixed seed makes the result reproducible.
    let mut chance = fastrand::Rng::with_seed(0x746f_6b6f);
    let mut drawn = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let places: Vec<usize> = pairs.iter().map(|_| chance.usize(..pairs.len())).collect();
        if let Some((direct, proxied)) = of(&mut places.iter().filter_map(|place| pairs.get(*place))) {
            drawn.push(proxied - direct);
        }
    }
    let (low_ms, high_ms) = (at(&mut drawn, TAIL)?, at(&mut drawn, 1.0 - TAIL)?);
    let is_significant = pairs.len() >= MIN_PAIRS && (low_ms > 0.0 || high_ms < 0.0);
    let added_ms = is_significant.then_some(proxied_ms - direct_ms);
    Some(Difference { direct_ms, proxied_ms, added_ms, low_ms, high_ms })
}

/// The smallest value with at least this share of the values at or below it.
fn at(values: &mut [f64], quantile: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let index = ((values.len() as f64 * quantile).ceil() as usize).saturating_sub(1).min(last);
    Some(*values.select_nth_unstable_by(index, f64::total_cmp).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs with one time on each side: 10 ms plus noise, and `added` on the proxied side.
    fn pairs(count: usize, added: f64) -> Vec<CanaryPair> {
        let mut chance = fastrand::Rng::with_seed(7);
        let mut time = || 10.0 + chance.f64();
        (0..count).map(|_| CanaryPair { direct: vec![time()], proxied: vec![time() + added] }).collect()
    }

    #[test]
    fn quantiles_are_observed_values() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|quantile| at(&mut values, quantile)), [Some(50.0), Some(99.0), Some(100.0)]);
        assert_eq!((at(&mut [7.0], 0.99), at(&mut [], 0.5)), (Some(7.0), None));
    }

    #[test]
    fn difference_within_the_noise_is_not_reported() {
        let same = difference(&pairs(20, 0.0), 0.5).unwrap();
        assert_eq!(same.added_ms, None, "{same:?}");
        for (count, added) in [(6, 80.0), (8, 80.0), (20, 3.0), (200, 0.4)] {
            let slower = difference(&pairs(count, added), 0.5).unwrap();
            let found = slower.added_ms.unwrap_or_else(|| panic!("{count}: {slower:?}"));
            assert!((found - added).abs() < 0.5 && slower.low_ms <= found && found <= slower.high_ms, "{slower:?}");
        }
        let faster = difference(&pairs(20, -3.0), 0.99).unwrap();
        assert!(faster.added_ms.unwrap() < -2.0, "{faster:?}");
    }

    #[test]
    fn one_slow_response_does_not_affect_p99() {
        let mut odd = pairs(20, 0.0);
        odd[7].proxied = vec![500.0];
        let slowest = difference(&odd, 0.99).unwrap();
        assert_eq!(slowest.added_ms, None, "{slowest:?}");
    }

    #[test]
    fn few_differences_are_significant_by_chance() {
        let mut chance = fastrand::Rng::with_seed(1);
        let over = (0..200).filter(|_| {
            let pairs: Vec<CanaryPair> =
                (0..12).map(|_| CanaryPair { direct: vec![chance.f64()], proxied: vec![chance.f64()] }).collect();
            difference(&pairs, 0.5).unwrap().added_ms.is_some()
        });
        let over = over.count();
        assert!(over <= 6, "{over} of 200");
    }

    #[test]
    fn few_pairs_give_no_difference() {
        for count in 1..MIN_PAIRS {
            assert_eq!(difference(&pairs(count, 100.0), 0.5).unwrap().added_ms, None, "{count}");
        }
        assert_eq!(difference(&[], 0.5), None);
        assert_eq!(difference(&[CanaryPair { direct: vec![1.0], proxied: Vec::new() }], 0.5), None);
    }
}
