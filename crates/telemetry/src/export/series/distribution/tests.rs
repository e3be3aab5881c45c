//! Tests of native and classic buckets.

use super::native::Sparse;
use super::*;

/// The bounds (lower, upper] of a native bucket.
fn bounds(schema: i32, index: i32) -> (f64, f64) {
    let base = 2f64.powf(2f64.powi(-schema));
    (base.powi(index - 1), base.powi(index))
}

/// The sparse form expanded to (index, count).
fn spelled(sparse: &Sparse) -> Vec<(i32, u64)> {
    let mut out = Vec::new();
    let (mut at, mut count) = (0, 0);
    let mut deltas = sparse.deltas.iter();
    for (gap, length) in &sparse.spans {
        at += gap;
        for _ in 0..*length {
            count += deltas.next().unwrap();
            if count > 0 {
                out.push((at, count as u64));
            }
            at += 1;
        }
    }
    assert!(deltas.next().is_none());
    out
}

#[test]
fn classic_bucket_includes_its_upper_bound() {
    let own = Distribution::new(&[0.1, 1.0], false, false);
    for value in [0.1, 0.100001, 1.0, 1.5, f64::NAN, f64::INFINITY] {
        own.observe(value, None);
    }
    let state = own.lock();
    assert_eq!(state.counts, [1, 2, 1]);
    assert_eq!(state.count, 4);
    assert!((state.sum - 2.700001).abs() < 1e-12);
}

#[test]
fn every_value_is_in_its_native_bucket() {
    for step in 0..4000 {
        let value = 1e-6 * 1.007f64.powi(step);
        let mut native = Native::default();
        native.observe(value, 1);
        let (at, count) = spelled(&native.sparse())[0];
        let (low, high) = bounds(native.schema, at);
        assert_eq!(count, 1);
        assert!(low * (1.0 - 1e-12) < value && value <= high * (1.0 + 1e-12), "{value} in ({low}, {high}]");
    }
    for power in -20..20 {
        let mut native = Native::default();
        native.observe(2f64.powi(power), 1);
        assert_eq!(spelled(&native.sparse()), [(power * 8, 1)], "the upper bound is inclusive");
    }
}

#[test]
fn too_wide_window_is_merged_without_loss() {
    let mut native = Native::default();
    let values: Vec<f64> = (-60..60).map(|power| 1.3 * 2f64.powi(power)).collect();
    for value in &values {
        native.observe(*value, 2);
    }
    assert!(native.schema < 3);
    let spelled = spelled(&native.sparse());
    assert_eq!(spelled.iter().map(|(_, count)| count).sum::<u64>(), 2 * values.len() as u64);
    for value in values {
        assert!(spelled.iter().any(|(at, _)| {
            let (low, high) = bounds(native.schema, *at);
            low < value && value <= high
        }));
    }
}

#[test]
fn zeros_and_gaps_keep_their_positions() {
    let mut native = Native::default();
    assert_eq!(native.sparse().spans, [(0, 0)], "an empty native histogram is still native");
    native.observe(0.0, 3);
    for value in [1.0, 1.0, 2.0, 1024.0] {
        native.observe(value, 1);
    }
    assert_eq!(native.zero_count, 3);
    assert_eq!(spelled(&native.sparse()), [(0, 2), (8, 1), (80, 1)]);
    assert_eq!(native.sparse().spans, [(0, 1), (7, 1), (71, 1)]);
}

#[test]
fn newest_exemplar_of_a_bucket_is_kept() {
    let own = Distribution::new(&[1.0], true, true);
    let exemplar = |value, span_id| Exemplar { trace_id: 7, span_id, value, at: SystemTime::UNIX_EPOCH };
    own.observe(0.5, Some(exemplar(0.5, 1)));
    own.observe(0.7, Some(exemplar(0.7, 2)));
    own.observe(0.8, None);
    let state = own.lock();
    assert_eq!(state.exemplars, [Some(exemplar(0.7, 2)), None]);
}

#[test]
fn added_histograms_equal_one_with_all_values() {
    let values = |from: i32, to: i32| (from..to).map(|step| 1e-4 * 1.3f64.powi(step));
    // The second range spans so many buckets that its resolution differs from the first's.
    for (low, high) in [(30, 45), (-200, 200)] {
        let seen = |ranges: &[(i32, i32)]| {
            let own = Distribution::new(&[0.001, 0.01, 0.1], true, false);
            for (from, to) in ranges {
                values(*from, *to).for_each(|value| own.observe(value, None));
            }
            own.observe(0.0, None);
            own.lock().clone()
        };
        let (mut one, two, all) = (seen(&[(0, 40)]), seen(&[(low, high)]), seen(&[(0, 40), (low, high)]));
        one.add(&two);
        assert_eq!(one.counts.iter().sum::<u64>(), all.count + 1);
        assert_eq!(one.counts[1..], all.counts[1..]);
        assert!((one.sum - all.sum).abs() < 1e-9 * all.sum);
        let (one, all) = (one.native.unwrap(), all.native.unwrap());
        assert_eq!(one.zero_count, 2);
        assert_eq!((one.schema, spelled(&one.sparse())), (all.schema, spelled(&all.sparse())));
    }
}
