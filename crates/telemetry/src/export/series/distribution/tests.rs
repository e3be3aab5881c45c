//! Tests of native and classic buckets.

use std::sync::Mutex;

use super::*;
use crate::export::series::Series;

/// The state of a series after it observed these values.
fn observed(state: State, values: impl IntoIterator<Item = (f64, Option<Exemplar>)>) -> State {
    let series = Series::Histogram(Mutex::new(state));
    values.into_iter().for_each(|(value, exemplar)| series.observe(value, exemplar));
    match series {
        Series::Histogram(state) => state.into_inner().unwrap(),
        Series::Counter(_) => unreachable!("it is a histogram"),
    }
}

/// The bounds (lower, upper] of a native bucket.
fn bounds(schema: i32, index: i32) -> (f64, f64) {
    let base = 2f64.powf(2f64.powi(-schema));
    (base.powi(index - 1), base.powi(index))
}

/// The sparse form expanded to (index, count).
fn expanded((spans, deltas): (Vec<(i32, u32)>, Vec<i64>)) -> Vec<(i32, u64)> {
    let mut out = Vec::new();
    let (mut at, mut count) = (0, 0);
    let mut deltas = deltas.into_iter();
    for (gap, length) in spans {
        at += gap;
        for _ in 0..length {
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
    let values = [0.1, 0.100001, 1.0, 1.5, f64::NAN, f64::INFINITY];
    let state = observed(State::new(&[0.1, 1.0], false, false), values.map(|value| (value, None)));
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
        let (at, count) = expanded(native.sparse())[0];
        let (low, high) = bounds(native.schema, at);
        assert_eq!(count, 1);
        assert!(low * (1.0 - 1e-12) < value && value <= high * (1.0 + 1e-12), "{value} in ({low}, {high}]");
    }
    for power in -20..20 {
        let mut native = Native::default();
        native.observe(2f64.powi(power), 1);
        assert_eq!(expanded(native.sparse()), [(power * 8, 1)], "the upper bound is inclusive");
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
    let expanded = expanded(native.sparse());
    assert_eq!(expanded.iter().map(|(_, count)| count).sum::<u64>(), 2 * values.len() as u64);
    for value in values {
        assert!(expanded.iter().any(|(at, _)| {
            let (low, high) = bounds(native.schema, *at);
            low < value && value <= high
        }));
    }
}

#[test]
fn zeros_and_gaps_keep_their_positions() {
    let mut native = Native::default();
    assert_eq!(native.sparse().0, [(0, 0)], "an empty native histogram is still native");
    native.observe(0.0, 3);
    for value in [1.0, 1.0, 2.0, 1024.0] {
        native.observe(value, 1);
    }
    assert_eq!(native.zero_count, 3);
    assert_eq!(expanded(native.sparse()), [(0, 2), (8, 1), (80, 1)]);
    assert_eq!(native.sparse().0, [(0, 1), (7, 1), (71, 1)]);
}

#[test]
fn newest_exemplar_of_a_bucket_is_kept() {
    let exemplar = |value, span_id| Exemplar { trace_id: 7, span_id, value, at: SystemTime::UNIX_EPOCH };
    let values = [(0.5, Some(exemplar(0.5, 1))), (0.7, Some(exemplar(0.7, 2))), (0.8, None)];
    let state = observed(State::new(&[1.0], true, true), values);
    assert_eq!(state.exemplars, [Some(exemplar(0.7, 2)), None]);
}

#[test]
fn added_histograms_equal_one_with_all_values() {
    let values = |from: i32, to: i32| (from..to).map(|step| 1e-4 * 1.3f64.powi(step));
    // The second range spans so many buckets that its resolution differs from the first's.
    for (low, high) in [(30, 45), (-200, 200)] {
        let seen = |ranges: &[(i32, i32)]| {
            let all = ranges.iter().flat_map(|(from, to)| values(*from, *to)).chain([0.0]);
            observed(State::new(&[0.001, 0.01, 0.1], true, false), all.map(|value| (value, None)))
        };
        let (mut one, two, all) = (seen(&[(0, 40)]), seen(&[(low, high)]), seen(&[(0, 40), (low, high)]));
        one.add(&two);
        assert_eq!(one.counts.iter().sum::<u64>(), all.count + 1);
        assert_eq!(one.counts[1..], all.counts[1..]);
        assert!((one.sum - all.sum).abs() < 1e-9 * all.sum);
        let (one, all) = (one.native.unwrap(), all.native.unwrap());
        assert_eq!(one.zero_count, 2);
        assert_eq!((one.schema, expanded(one.sparse())), (all.schema, expanded(all.sparse())));
    }
}
