//! The values of all series at one moment, for both exporters.

use crate::export::series::distribution::State;
use tokometer_metrics::Attributes;
use tokometer_metrics::table::Metric;

/// The value of one series.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Whole(u64),
    Float(f64),
    Histogram(Box<State>),
}

impl Value {
    /// Adds another series of the same metric.
    pub(crate) fn add(&mut self, other: &Value) {
        match (self, other) {
            (Value::Whole(sum), Value::Whole(n)) => *sum += n,
            (Value::Float(sum), Value::Float(n)) => *sum += n,
            (Value::Histogram(sum), Value::Histogram(more)) => sum.join(more),
            _ => {}
        }
    }

    /// What was added since `earlier`, an earlier value of the same series, or of a part of this sum.
    pub(crate) fn since(&self, earlier: &Value) -> Value {
        match (self, earlier) {
            (Value::Whole(n), Value::Whole(before)) => Value::Whole(n.saturating_sub(*before)),
            (Value::Float(n), Value::Float(before)) => Value::Float(n - before),
            (Value::Histogram(state), Value::Histogram(before)) => Value::Histogram(Box::new(state.since(before))),
            _ => self.clone(),
        }
    }

    /// True without any count or observation.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Value::Whole(n) => *n == 0,
            Value::Float(n) => *n == 0.0,
            Value::Histogram(state) => state.count == 0,
        }
    }

    /// Removes the native buckets of a histogram.
    pub(crate) fn without_native(&mut self) {
        if let Value::Histogram(state) = self {
            state.native = None;
        }
    }

    /// Removes the buckets of a histogram, except `+Inf`.
    pub(crate) fn without_buckets(&mut self) {
        if let Value::Histogram(state) = self {
            state.without_buckets();
        }
    }
}

/// One series.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) attributes: Attributes,
    pub(crate) value: Value,
}

/// One metric with its series.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) metric: &'static Metric,
    pub(crate) points: Vec<Point>,
}
