//! The attributes of one series, shared by both exporters.

use std::sync::Arc;

use opentelemetry::KeyValue;
use prometheus_client::encoding::EncodeLabel;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::LabelSetEncoder;

use crate::export::table::Key;
use crate::export::table::Metric;

/// The value of an attribute. A key always uses the same variant, so that equal values compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Value {
    /// Text from an external source, cleaned and capped.
    Text(Arc<str>),
    /// A value from a closed set.
    Word(&'static str),
    /// A number.
    Number(i64),
    /// A flag.
    Flag(bool),
}

impl Value {
    fn to_otel(&self) -> opentelemetry::Value {
        match self {
            Value::Text(text) => Arc::clone(text).into(),
            Value::Word(word) => (*word).into(),
            Value::Number(number) => (*number).into(),
            Value::Flag(flag) => (*flag).into(),
        }
    }
}

/// Known attributes in the order of [`Metric::keys`], the optional ones last. Unknown ones are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Attributes(Vec<(Key, Value)>);

impl Attributes {
    /// Selects from `known` and `extra` the attributes that the metric has.
    pub(crate) fn of(metric: &Metric, known: &[(Key, Value)], extra: &[(Key, Value)]) -> Attributes {
        let find = |key| known.iter().chain(extra).find(|(k, _)| *k == key).cloned();
        Attributes(metric.keys().chain(metric.optional.iter().copied()).filter_map(find).collect())
    }

    /// For OpenTelemetry, sorted by name: the SDK creates a second series for the same attributes in another order.
    pub(crate) fn to_otel(&self) -> Vec<KeyValue> {
        let mut attributes: Vec<KeyValue> =
            self.0.iter().map(|(key, value)| KeyValue::new(key.name(), value.to_otel())).collect();
        attributes.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        attributes
    }

    fn get(&self, key: Key) -> Option<&Value> {
        self.0.iter().find(|(k, _)| *k == key).map(|(_, value)| value)
    }
}

/// For Prometheus: every label of the metric, unknown ones empty (which Prometheus treats as absent), because all
/// series of an OpenMetrics family should have the same labels. Optional labels are present in all of a metric's series
/// or in none.
#[derive(Debug)]
pub(crate) struct LabelSet<'a> {
    pub(crate) metric: &'a Metric,
    pub(crate) attributes: &'a Attributes,
}

impl EncodeLabelSet for LabelSet<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        let optional = self.metric.optional.iter().copied().filter(|key| self.attributes.get(*key).is_some());
        for key in self.metric.keys().chain(optional) {
            let label = encoder.encode_label();
            match self.attributes.get(key) {
                None => (key.label(), "").encode(label)?,
                Some(Value::Text(text)) => (key.label(), text.as_ref()).encode(label)?,
                Some(Value::Word(word)) => (key.label(), *word).encode(label)?,
                Some(Value::Number(number)) => (key.label(), *number).encode(label)?,
                Some(Value::Flag(flag)) => (key.label(), *flag).encode(label)?,
            }
        }
        Ok(())
    }
}
