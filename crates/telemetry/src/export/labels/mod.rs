//! The attributes of series: label sets and their limits, and the conversion to OpenTelemetry.

use std::sync::Arc;

use opentelemetry::KeyValue;
use tokometer_metrics::table::Key;
use tokometer_metrics::{Attributes, Value};

pub(crate) mod classes;
pub(crate) mod failure;
pub(crate) mod names;
pub(crate) mod sets;

/// The value for OpenTelemetry.
pub(crate) fn otel_value(value: &Value) -> opentelemetry::Value {
    match value {
        Value::Text(text) => Arc::clone(text).into(),
        Value::Word(word) => (*word).into(),
        Value::Number(number) => (*number).into(),
        Value::Flag(flag) => (*flag).into(),
        Value::Unknown => "".into(),
    }
}

/// The attributes for OpenTelemetry, sorted by name: the SDK treats the same attributes in another order as a different
/// series.
pub(crate) fn otel_attributes(attributes: &Attributes) -> Vec<KeyValue> {
    let mut attributes: Vec<KeyValue> =
        attributes.iter().map(|(key, value)| KeyValue::new(key.as_str(), otel_value(value))).collect();
    attributes.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    attributes
}

/// At most three attributes in addition to those of a label set.
pub(crate) type Extra = [Option<(Key, Value)>; 3];

/// No additional attributes.
pub(crate) const NONE: Extra = [None, None, None];

/// One additional attribute.
pub(crate) fn one(key: Key, value: impl Into<Value>) -> Extra {
    [Some((key, value.into())), None, None]
}
