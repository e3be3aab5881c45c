//! Lock-free histogram with logarithmic buckets, four per octave (doubling of the value).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Buckets per octave. Bounds are 19 % apart, so quantiles are accurate to 10 %.
const PER_OCTAVE: usize = 4;

/// Lower bound, upper bound (`None`: unbounded), count.
pub(super) type Bucket = (f64, Option<f64>, u64);

/// Range of a histogram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Upper bound of the first bucket, which also counts all smaller values.
    least: f64,
    octaves: usize,
}

impl Scale {
    /// Seconds, from 1 ms to 524 s.
    pub(super) const SECONDS: Scale = Scale { least: 0.001, octaves: 19 };
    /// Tokens per second of one stream, from 0.25 to 8192.
    pub(super) const TOKENS_PER_SECOND: Scale = Scale { least: 0.25, octaves: 15 };

    fn buckets(self) -> usize {
        self.octaves * PER_OCTAVE + 2
    }

    /// Lower bound of a bucket.
    fn bound(self, at: usize) -> f64 {
        match at {
            0 => 0.0,
            at => self.least * ((at - 1) as f64 / PER_OCTAVE as f64).exp2(),
        }
    }

    /// Index of the bucket for `value`.
    fn place(self, value: f64) -> usize {
        // NaN and negative values are counted in the first bucket.
        let steps = (value / self.least).log2() * PER_OCTAVE as f64;
        let near = if steps >= 0.0 { (steps as usize).saturating_add(1) } else { 0 };
        let near = near.min(self.buckets() - 1);
        // Because of rounding, `near` may be an adjacent bucket, so compare the value with the bounds. A bound belongs
        // to the bucket above it.
        match near {
            near if near + 1 < self.buckets() && value >= self.bound(near + 1) => near + 1,
            near if value < self.bound(near) => near.saturating_sub(1),
            near => near,
        }
    }
}

/// Histogram counts.
#[derive(Debug)]
pub(super) struct Buckets {
    scale: Scale,
    counts: Box<[AtomicU64]>,
}

impl Buckets {
    pub(super) fn new(scale: Scale) -> Buckets {
        Buckets { scale, counts: (0..scale.buckets()).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(super) fn add(&self, value: f64) {
        if let Some(count) = self.counts.get(self.scale.place(value)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// The counts so far, truncated to 32 bits. Although they wrap, differences between two calls are correct if they
    /// fit into 32 bits.
    pub(super) fn counts(&self) -> Box<[u32]> {
        self.counts.iter().map(|count| count.load(Relaxed) as u32).collect()
    }
}

/// Non-empty buckets of the values added between two calls of [`Buckets::counts`], lowest first.
pub(super) fn between(scale: Scale, before: &[u32], after: &[u32]) -> Vec<Bucket> {
    let counts = before.iter().zip(after).map(|(before, after)| u64::from(after.wrapping_sub(*before)));
    let bucket = |(at, count): (usize, u64)| {
        let upper = (at + 1 < scale.buckets()).then(|| scale.bound(at + 1));
        (count > 0).then(|| (scale.bound(at), upper, count))
    };
    counts.enumerate().filter_map(bucket).collect()
}

/// The quantile `share` (0 to 1), interpolated linearly within its bucket. `None` if there are no values.
pub(super) fn quantile(buckets: &[Bucket], share: f64) -> Option<f64> {
    let all: u64 = buckets.iter().map(|(_, _, count)| count).sum();
    let mut left = share * all as f64;
    for (lower, upper, count) in buckets {
        let count = *count as f64;
        if left <= count {
            return Some(upper.map_or(*lower, |upper| lower + (upper - lower) * left / count));
        }
        left -= count;
    }
    buckets.last().map(|(lower, upper, _)| upper.unwrap_or(*lower))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(scale: Scale, values: &[f64]) -> Vec<Bucket> {
        let buckets = Buckets::new(scale);
        let before = buckets.counts();
        values.iter().for_each(|value| buckets.add(*value));
        between(scale, &before, &buckets.counts())
    }

    #[test]
    fn values_outside_the_scale_are_counted() {
        let buckets = of(Scale::SECONDS, &[0.0, 0.0005, 0.001, 600.0, f64::INFINITY, f64::NAN, -1.0]);
        let (first, last) = (buckets[0], buckets[2]);
        assert_eq!((first.0, first.1, first.2), (0.0, Some(0.001), 4));
        assert_eq!((buckets[1].0, buckets[1].2), (0.001, 1));
        assert!((last.0 - 524.288).abs() < 1e-9 && last.1.is_none() && last.2 == 2, "{last:?}");
    }

    #[test]
    fn quantiles_lie_in_their_bucket_and_are_none_when_empty() {
        assert_eq!(quantile(&[], 0.5), None);
        let buckets = of(Scale::SECONDS, &[0.1; 100]);
        let (lower, upper) = (buckets[0].0, buckets[0].1.unwrap());
        for share in [0.01, 0.5, 0.99, 1.0] {
            let value = quantile(&buckets, share).unwrap();
            assert!(lower <= value && value <= upper, "{share}: {value}");
        }
        assert_eq!(quantile(&of(Scale::SECONDS, &[1e9]), 0.5).map(f64::round), Some(524.0));
    }

    #[test]
    fn quantiles_are_accurate_to_ten_percent() {
        let values: Vec<f64> = (1..=1000).map(|n| f64::from(n) / 100.0).collect();
        let buckets = of(Scale::SECONDS, &values);
        for (share, truth) in [(0.1, 1.0), (0.5, 5.0), (0.9, 9.0), (0.99, 9.9)] {
            let value = quantile(&buckets, share).unwrap();
            assert!((value / truth - 1.0).abs() < 0.1, "{share}: {value}, not {truth}");
        }
    }

    #[test]
    fn wrapped_counts_give_correct_differences() {
        assert_eq!(between(Scale::SECONDS, &[u32::MAX - 1], &[2]), [(0.0, Some(0.001), 4)]);
    }

    proptest::proptest! {
        #[test]
        fn value_is_within_the_bounds_of_its_bucket(value in 0.0_f64..2000.0) {
            for scale in [Scale::SECONDS, Scale::TOKENS_PER_SECOND] {
                let (lower, upper, count) = of(scale, &[value])[0];
                proptest::prop_assert!(lower <= value && upper.is_none_or(|upper| value < upper) && count == 1);
            }
        }

        #[test]
        fn bound_belongs_to_the_bucket_above(at in 1_usize..60) {
            for scale in [Scale::SECONDS, Scale::TOKENS_PER_SECOND] {
                proptest::prop_assert_eq!(scale.place(scale.bound(at)), at);
            }
        }
    }
}
