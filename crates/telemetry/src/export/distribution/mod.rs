//! A histogram for the Prometheus endpoint: classic buckets, native buckets and exemplars in one.
//!
//! prometheus-client 0.25 has no type with all three (its `HistogramWithExemplars` cannot be native, and an exemplar
//! cannot be made outside that crate), and takes its lock for every observation. This one takes a batch under one lock
//! and is written out through prometheus-client's encoders.

mod native;

use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::SystemTime;

pub(crate) use native::Native;

/// A pointer from a bucket to an exchange that fell in it.
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
    /// Not cumulative; the last one is `+Inf`.
    pub(crate) counts: Vec<u64>,
    /// The newest exemplar of each bucket; empty when the histogram has none.
    pub(crate) exemplars: Vec<Option<Exemplar>>,
    pub(crate) native: Option<Native>,
    /// Sums of the buckets, where [`State::means`] is needed; else empty.
    sums: Vec<f64>,
}

impl State {
    /// An empty one over these upper bounds.
    pub(crate) fn new(bounds: &'static [f64], native: bool, exemplars: bool, sums: bool) -> State {
        let buckets = bounds.len() + 1;
        State {
            bounds,
            sum: 0.0,
            count: 0,
            counts: vec![0; buckets],
            exemplars: if exemplars { vec![None; buckets] } else { Vec::new() },
            native: native.then(Native::default),
            sums: if sums { vec![0.0; buckets] } else { Vec::new() },
        }
    }

    /// Forgets every observation.
    pub(crate) fn clear(&mut self) {
        (self.sum, self.count) = (0.0, 0);
        self.counts.fill(0);
        self.exemplars.fill(None);
        self.sums.fill(0.0);
        self.native = self.native.as_ref().map(|_| Native::default());
    }

    /// The mean and the count of each bucket that has values. A mean lies in its bucket.
    pub(crate) fn means(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let above = self.bounds.iter().copied().chain([f64::INFINITY]);
        let below = [f64::NEG_INFINITY].into_iter().chain(self.bounds.iter().copied());
        let buckets = above.zip(below).zip(self.counts.iter().zip(&self.sums)).filter(|(_, (count, _))| **count > 0);
        buckets.map(|((above, below), (count, sum))| ((sum / *count as f64).clamp(below.next_up(), above), *count))
    }

    /// Takes `value` as seen `times` times; returns its bucket. What is no number is left out on both exporters.
    pub(crate) fn observe(&mut self, value: f64, times: u64) -> Option<usize> {
        if !value.is_finite() {
            return None;
        }
        let bucket = self.bucket(value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += times;
        }
        if let Some(sum) = self.sums.get_mut(bucket) {
            *sum += value * times as f64;
        }
        self.sum += value * times as f64;
        self.count += times;
        if let Some(native) = &mut self.native {
            native.observe(value, times);
        }
        Some(bucket)
    }

    fn bucket(&self, value: f64) -> usize {
        self.bounds.partition_point(|bound| *bound < value)
    }

    /// True when something fell in the bucket of `value`.
    pub(crate) fn has(&self, value: f64) -> bool {
        self.counts.get(self.bucket(value)).is_some_and(|count| *count > 0)
    }

    /// Lets the bucket of the exemplar's value point to it.
    pub(crate) fn point(&mut self, exemplar: Exemplar) {
        let bucket = self.bucket(exemplar.value);
        if let Some(place) = self.exemplars.get_mut(bucket) {
            *place = Some(exemplar);
        }
    }

    /// Adds the observations of `other`, which has the same bounds, or these and finer ones and the sums of its buckets.
    /// Exemplars stay.
    pub(crate) fn add(&mut self, other: &State) {
        if other.bounds.len() == self.bounds.len() {
            for (count, more) in self.counts.iter_mut().zip(&other.counts) {
                *count += more;
            }
        } else {
            for (mean, more) in other.means() {
                let bucket = self.bucket(mean);
                if let Some(count) = self.counts.get_mut(bucket) {
                    *count += more;
                }
            }
        }
        self.sum += other.sum;
        self.count += other.count;
        if let (Some(native), Some(other)) = (&mut self.native, &other.native) {
            native.add(other);
        }
    }

    /// Upper bound and count of each bucket, the last one `+Inf`.
    pub(crate) fn buckets(&self) -> Vec<(f64, u64)> {
        self.bounds.iter().copied().chain([f64::INFINITY]).zip(self.counts.iter().copied()).collect()
    }
}

/// A histogram that threads share. The data path does not use it: threads of a lower priority hold its lock.
#[derive(Debug)]
pub(crate) struct Distribution(Mutex<State>);

impl Distribution {
    /// An empty one over these upper bounds.
    pub(crate) fn new(bounds: &'static [f64], native: bool, exemplars: bool) -> Distribution {
        Distribution(Mutex::new(State::new(bounds, native, exemplars, false)))
    }

    /// The state, for a batch of observations.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock can leave it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one observation.
    pub(crate) fn observe(&self, value: f64, exemplar: Option<Exemplar>) {
        let mut state = self.lock();
        if let (Some(_), Some(exemplar)) = (state.observe(value, 1), exemplar) {
            state.point(exemplar);
        }
    }
}

#[cfg(test)]
mod tests;
