//! A histogram with explicit buckets, exponential buckets and exemplars: the source of both exporters.
//!
//! prometheus-client 0.25 has no type with all three, and its histograms lock for every observation.
//! `HistogramWithExemplars` cannot be native, and an exemplar cannot be created outside that crate. This type accepts a
//! batch under one lock and is encoded by prometheus-client's encoders.

mod native;

use std::time::SystemTime;

pub(crate) use native::Native;

/// A reference from a bucket to a request that is counted in the bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    pub(crate) value: f64,
    pub(crate) at: SystemTime,
}

/// The state of a histogram.
#[derive(Clone, Debug)]
pub(crate) struct State {
    bounds: &'static [f64],
    pub(crate) sum: f64,
    pub(crate) count: u64,
    /// Count of each bucket, not cumulative; the last bucket is `+Inf`.
    pub(crate) counts: Vec<u64>,
    /// The newest exemplar of each bucket; empty if exemplars are disabled.
    pub(crate) exemplars: Vec<Option<Exemplar>>,
    pub(crate) native: Option<Native>,
}

impl State {
    /// An empty histogram with these upper bounds.
    pub(crate) fn new(bounds: &'static [f64], native: bool, exemplars: bool) -> State {
        let buckets = bounds.len() + 1;
        State {
            bounds,
            sum: 0.0,
            count: 0,
            counts: vec![0; buckets],
            exemplars: if exemplars { vec![None; buckets] } else { Vec::new() },
            native: native.then(Native::default),
        }
    }

    /// Removes all observations.
    pub(crate) fn clear(&mut self) {
        (self.sum, self.count) = (0.0, 0);
        self.counts.fill(0);
        self.exemplars.fill(None);
        self.native = self.native.as_ref().map(|_| Native::default());
    }

    /// Observes a finite value `times` times.
    pub(crate) fn observe(&mut self, value: f64, times: u64) {
        let bucket = self.bucket(value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += times;
        }
        self.sum += value * times as f64;
        self.count += times;
        if let Some(native) = &mut self.native {
            native.observe(value, times);
        }
    }

    fn bucket(&self, value: f64) -> usize {
        self.bounds.partition_point(|bound| *bound < value)
    }

    /// True when the bucket of `value` is not empty.
    pub(crate) fn has(&self, value: f64) -> bool {
        self.counts.get(self.bucket(value)).is_some_and(|count| *count > 0)
    }

    /// Attaches the exemplar to the bucket of its value.
    pub(crate) fn attach_exemplar(&mut self, exemplar: Exemplar) {
        let bucket = self.bucket(exemplar.value);
        if let Some(place) = self.exemplars.get_mut(bucket) {
            *place = Some(exemplar);
        }
    }

    /// Adds the observations of `other`, which has the same bounds. Exemplars are unchanged.
    pub(crate) fn add(&mut self, other: &State) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
        self.count += other.count;
        if let (Some(native), Some(other)) = (&mut self.native, &other.native) {
            native.add(other);
        }
    }

    /// The observations since `earlier`, an earlier state of the same histogram.
    pub(crate) fn since(&self, earlier: &State) -> State {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        since.sum -= earlier.sum;
        since.count = since.count.saturating_sub(earlier.count);
        if let (Some(native), Some(earlier)) = (&mut since.native, &earlier.native) {
            native.subtract(earlier);
        }
        since
    }

    /// Adds the observations of a series of the same metric, and keeps the newest exemplar of each bucket.
    pub(crate) fn join(&mut self, other: &State) {
        self.add(other);
        for (own, other) in self.exemplars.iter_mut().zip(&other.exemplars) {
            if other.is_some_and(|other| own.is_none_or(|own| own.at < other.at)) {
                *own = *other;
            }
        }
    }

    /// Removes all classic buckets except `+Inf`.
    pub(crate) fn without_buckets(&mut self) {
        (self.bounds, self.counts) = (&[], vec![self.count]);
        self.exemplars = Vec::new();
    }

    /// The upper bounds of the buckets, without `+Inf`.
    pub(crate) fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// Upper bound and count of each bucket, the last one `+Inf`.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        self.bounds.iter().copied().chain([f64::INFINITY]).zip(self.counts.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests;
