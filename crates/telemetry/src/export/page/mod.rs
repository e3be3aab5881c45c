//! The Prometheus page: one snapshot, written by prometheus-client's encoders in the form that the scraper asked for.

mod accept;
mod openmetrics;
mod plain;
mod protobuf;

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::encoding::MetricEncoder;
use prometheus_client::encoding::NativeHistogram;
use prometheus_client::encoding::NativeHistogramBuckets;
use prometheus_client::encoding::NoLabelSet;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use prometheus_client::registry::Unit;

use crate::export::attributes::Attributes;
use crate::export::attributes::LabelSet;
use crate::export::distribution::Native;
use crate::export::distribution::State;
use crate::export::table::Kind;
use crate::export::table::Metric;

use accept::Form;

/// An answer to a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The header `Content-Type`.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

/// The value of one series.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Whole(u64),
    Signed(i64),
    Float(f64),
    Histogram(Box<State>),
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

/// Everything that one page says.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) families: Vec<Family>,
    /// Resource attributes with their names as labels, for `target_info`.
    pub(crate) resource: Vec<(String, String)>,
}

impl Content {
    /// Writes the page in the form that this `Accept` header asks for.
    pub(crate) fn write(self, accept: Option<&str>) -> Page {
        let content = Arc::new(self);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&content)));
        let form = accept::negotiate(accept);
        let body = match form {
            Form::Protobuf => protobuf::write(&registry, &content.families),
            Form::OpenMetrics => openmetrics::write(&registry, &content.families).map(String::into_bytes),
            Form::Plain => plain::write(&registry).map(String::into_bytes),
        };
        // Writing to memory fails only by a fault in the table, which the tests would show.
        Page { content_type: form.content_type(), body: body.unwrap_or_default() }
    }
}

impl Collector for Content {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for family in self.families.iter().filter(|family| !family.points.is_empty()) {
            let name = family.metric.prometheus();
            let unit = (!name.unit.is_empty()).then(|| Unit::Other(name.unit.clone()));
            // Straight to the encoder: a registry's own descriptor would put a full stop after the help.
            let mut metric = encoder.encode_descriptor(
                &name.stem,
                family.metric.help,
                unit.as_ref(),
                match family.metric.kind {
                    Kind::Counter => MetricType::Counter,
                    Kind::UpDownCounter | Kind::Gauge => MetricType::Gauge,
                    Kind::Histogram => MetricType::Histogram,
                },
            )?;
            for point in &family.points {
                let point = Labelled { metric: family.metric, point };
                if family.metric.keys().next().is_none() {
                    point.write(&mut metric)?;
                } else {
                    let labels = LabelSet { metric: family.metric, attributes: &point.point.attributes };
                    point.encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        let mut info = encoder.encode_descriptor("target", "Resource attributes", None, MetricType::Info)?;
        info.encode_info(&self.resource.as_slice())
    }
}

/// A point and what it belongs to.
struct Labelled<'a> {
    metric: &'static Metric,
    point: &'a Point,
}

impl Labelled<'_> {
    fn write(&self, encoder: &mut MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counter = self.metric.kind == Kind::Counter;
        match &self.point.value {
            Value::Whole(n) if counter => encoder.encode_counter::<NoLabelSet, u64, f64>(n, None),
            Value::Whole(n) => encoder.encode_gauge(n),
            Value::Float(n) if counter => encoder.encode_counter::<NoLabelSet, f64, f64>(n, None),
            Value::Float(n) => encoder.encode_gauge(n),
            Value::Signed(n) => encoder.encode_gauge(n),
            Value::Histogram(state) => write_histogram(state, encoder),
        }
    }
}

impl EncodeMetric for Labelled<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.write(&mut encoder)
    }

    fn metric_type(&self) -> MetricType {
        match self.metric.kind {
            Kind::Counter => MetricType::Counter,
            Kind::UpDownCounter | Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        }
    }
}

fn write_histogram(state: &State, encoder: &mut MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
    let buckets = state.buckets();
    let Some(native) = &state.native else {
        return encoder.encode_histogram::<NoLabelSet>(state.sum, state.count, &buckets, None);
    };
    let positive = native.sparse();
    encoder.encode_histogram_with_native::<NoLabelSet>(
        state.sum,
        state.count,
        &buckets,
        None,
        NativeHistogram {
            schema: native.schema,
            zero_threshold: Native::ZERO_THRESHOLD,
            zero_count: native.zero_count,
            negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
            positive: NativeHistogramBuckets { spans: &positive.spans, deltas: &positive.deltas },
            created: None,
        },
    )
}
