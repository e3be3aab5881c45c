//! A histogram with fixed buckets that several threads can fill.

use std::fmt::Write;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Bounds of vLLM's `time_to_first_token_seconds` (0.32.0).
pub(crate) const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];

/// Bounds of vLLM's `request_queue_time_seconds`, `e2e_request_latency_seconds` and similar (0.32.0).
pub(crate) const REQUEST: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// Counts of durations per bucket.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// One per bound, plus one above all bounds.
    counts: Vec<AtomicU64>,
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum_us: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Relaxed);
        }
        self.sum_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// Writes the samples in the Prometheus text format; `labels` without braces.
    pub(crate) fn write(&self, page: &mut String, name: &str, labels: &str) -> std::fmt::Result {
        let mut count = 0;
        for (index, bucket) in self.counts.iter().enumerate() {
            count += bucket.load(Relaxed);
            match self.bounds.get(index) {
                Some(bound) => writeln!(page, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}.0")?,
                None => writeln!(page, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}.0")?,
            }
        }
        writeln!(page, "{name}_count{{{labels}}} {count}.0")?;
        writeln!(page, "{name}_sum{{{labels}}} {:?}", self.sum_us.load(Relaxed) as f64 / 1e6)
    }
}
