//! Exponential buckets: a native histogram (Prometheus, "Native histograms" specification, standard exponential schemas)
//! and an exponential histogram of OTLP have the same ones.

/// The finest schema used: 8 buckets per doubling, a relative error below 4.5 %.
const SCHEMA: i32 = 3;
/// The coarsest schema in the specification.
const SCHEMA_MIN: i32 = -4;
/// Maximum number of buckets in a window; for a wider window, adjacent buckets are merged.
const MAX_BUCKETS: usize = 160;
/// 2^(-k/8) for k = 8..1: lower bounds of the eight parts of [0.5, 1).
const PARTS: [f64; 8] = [
    0.5,
    0.5452538663326288,
    0.5946035575013605,
    0.6484197773255048,
    0.7071067811865475,
    0.7711054127039704,
    0.8408964152537144,
    0.9170040432046711,
];

/// Native buckets for values of 0 and above.
#[derive(Clone, Debug)]
pub(crate) struct Native {
    pub(crate) schema: i32,
    pub(crate) zero_count: u64,
    /// Index of the first bucket of the window.
    start: i32,
    /// Bucket counts of the window.
    counts: Vec<u64>,
}

impl Default for Native {
    fn default() -> Native {
        Native { schema: SCHEMA, zero_count: 0, start: 0, counts: Vec::new() }
    }
}

impl Native {
    /// Upper bound of the zero bucket: 2^-128, as the specification recommends.
    pub(crate) const ZERO_THRESHOLD: f64 = 2.938735877055719e-39;

    /// Observes a finite value `times` times. Negative values (which no metric here has) count as zero.
    pub(crate) fn observe(&mut self, value: f64, times: u64) {
        if value <= Native::ZERO_THRESHOLD {
            self.zero_count += times;
            return;
        }
        let finest = index(value);
        loop {
            let at = coarser(finest, SCHEMA - self.schema);
            // If `at` is below the window, the difference wraps to an index far above the window.
            if let Some(count) = self.counts.get_mut(at.wrapping_sub(self.start) as usize) {
                *count += times;
                return;
            }
            if !self.make_room(at) {
                self.merge();
            }
        }
    }

    /// Adds all observations of `other`.
    pub(super) fn add(&mut self, other: &Native) {
        self.zero_count += other.zero_count;
        let mut other = other.clone();
        while other.schema > self.schema {
            other.merge();
        }
        while self.schema > other.schema {
            self.merge();
        }
        for (at, count) in (other.start..).zip(&other.counts).filter(|(_, count)| **count > 0) {
            // This value lies just below the upper bound, so it is in this bucket and in every coarser bucket that
            // covers it.
            self.observe(2f64.powf(f64::from(at) * 2f64.powi(-other.schema)) * (1.0 - 1e-9), *count);
        }
    }

    /// Removes the observations of `earlier`, an earlier state of this histogram.
    pub(super) fn subtract(&mut self, earlier: &Native) {
        self.zero_count = self.zero_count.saturating_sub(earlier.zero_count);
        let mut earlier = earlier.clone();
        // A schema only ever becomes coarser.
        while earlier.schema > self.schema {
            earlier.merge();
        }
        for (at, before) in (earlier.start..).zip(&earlier.counts) {
            if let Some(count) = self.counts.get_mut(at.wrapping_sub(self.start) as usize) {
                *count = count.saturating_sub(*before);
            }
        }
    }

    /// Index of the first bucket, and the counts of this bucket and those after it. Bucket `i` holds the values in
    /// `(base^(i-1), base^i]`, where `base` is 2^2^-schema.
    pub(crate) fn dense(&self) -> (i32, &[u64]) {
        (self.start, &self.counts)
    }

    /// Widens the window to include `at`; false if it would become too wide.
    fn make_room(&mut self, at: i32) -> bool {
        if self.counts.is_empty() {
            self.start = at;
            self.counts.push(0);
            return true;
        }
        let end = self.start + self.counts.len() as i32;
        let wide = (end.max(at + 1) - self.start.min(at)) as usize;
        if wide > MAX_BUCKETS && self.schema > SCHEMA_MIN {
            return false;
        }
        if at < self.start {
            self.counts.splice(0..0, std::iter::repeat_n(0, (self.start - at) as usize));
            self.start = at;
        } else if at >= end {
            self.counts.resize(wide, 0);
        }
        true
    }

    /// Changes to the next coarser schema by merging pairs of buckets.
    fn merge(&mut self) {
        let start = coarser(self.start, 1);
        let mut merged: Vec<u64> = Vec::with_capacity(self.counts.len() / 2 + 1);
        for (offset, count) in (self.start..).zip(&self.counts) {
            let place = (coarser(offset, 1) - start) as usize;
            merged.resize(merged.len().max(place + 1), 0);
            merged[place] += count;
        }
        self.start = start;
        self.counts = merged;
        self.schema -= 1;
    }

    /// The buckets as spans and deltas, as in the exposition format. A span consists of the gap after the previous span
    /// (for the first span, its index) and its length. A delta is a count minus the previous count. Gaps of up to two
    /// empty buckets stay within a span, because a new span needs more bytes.
    pub(crate) fn sparse(&self) -> (Vec<(i32, u32)>, Vec<i64>) {
        let (mut spans, mut deltas) = (Vec::<(i32, u32)>::new(), Vec::new());
        let mut last_count = 0i64;
        let mut end: Option<i32> = None;
        for (at, count) in (self.start..).zip(&self.counts).filter(|(_, count)| **count > 0) {
            let gap = end.map_or(at, |end| at - end);
            match spans.last_mut() {
                Some((_, length)) if gap <= 2 => {
                    for _ in 0..gap {
                        deltas.push(-last_count);
                        last_count = 0;
                        *length += 1;
                    }
                    *length += 1;
                }
                _ => spans.push((gap, 1)),
            }
            deltas.push(*count as i64 - last_count);
            last_count = *count as i64;
            end = Some(at + 1);
        }
        // An empty span distinguishes an empty native histogram from a classic one.
        if spans.is_empty() && self.zero_count == 0 {
            spans.push((0, 0));
        }
        (spans, deltas)
    }
}

/// Index of the bucket `(2^((i-1)/8), 2^(i/8)]` that holds a positive finite value.
fn index(value: f64) -> i32 {
    let (fraction, exponent) = split(value);
    // Upper bounds are inclusive, so this counts the bounds below the fraction. Counting instead of searching avoids a
    // branch.
    PARTS.iter().filter(|bound| **bound < fraction).count() as i32 + (exponent - 1) * 8
}

/// `value` = fraction * 2^exponent with fraction in [0.5, 1). Wrong for subnormal values, but these are all counted in
/// the zero bucket.
fn split(value: f64) -> (f64, i32) {
    const EXPONENT: u64 = 0x7ff;
    let bits = value.to_bits();
    let exponent = (bits >> 52) & EXPONENT;
    (f64::from_bits((bits & !(EXPONENT << 52)) | (1022 << 52)), exponent as i32 - 1022)
}

/// The index of the bucket that covers this one in a schema that is `steps` coarser.
fn coarser(index: i32, steps: i32) -> i32 {
    (index + (1 << steps) - 1) >> steps
}
