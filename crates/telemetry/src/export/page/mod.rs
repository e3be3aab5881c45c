//! The Prometheus page: one snapshot, encoded by prometheus-client in the format that the scraper requested.

mod accept;
mod profile;
mod text;

/// The messages of the protobuf format.
pub mod protobuf;

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::export::series::snapshot::{Family, Value};
use tokometer_metrics::table::{Kind, Metric};

pub use profile::Profile;

pub(crate) use profile::Kept;

use accept::Form;

/// A response to a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The header `Content-Type`.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

/// The content of one page.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) families: Vec<Family>,
    /// Resource attributes with their label names, for `target_info`.
    pub(crate) resource: Vec<(String, String)>,
}

impl Content {
    /// Encodes the page in the format that this `Accept` header requests.
    pub(crate) fn write(self, accept: Option<&str>) -> Page {
        let form = accept::negotiate(accept);
        let content_type = form.content_type();
        if form == Form::Protobuf {
            return Page { content_type, body: protobuf::write(&self) };
        }
        let content = Arc::new(self);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&content)));
        let body = match form {
            Form::OpenMetrics => text::openmetrics(&registry, &content.families),
            _ => text::plain(&registry),
        };
        // Encoding fails only if the metric table is invalid, which the tests would detect.
        Page { content_type, body: body.unwrap_or_default().into_bytes() }
    }
}

impl Collector for Content {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for Family { metric, points } in self.families.iter().filter(|family| !family.points.is_empty()) {
            let name = metric.prometheus();
            let unit = (!name.unit.is_empty()).then(|| Unit::Other(name.unit.to_owned()));
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::UpDownCounter | Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            // Calls the encoder directly: a registry's own descriptor would append a full stop to the help text.
            let mut family = encoder.encode_descriptor(&name.stem, metric.help, unit.as_ref(), kind)?;
            for point in points {
                let labels: Vec<_> = point.attributes.labels(metric).collect();
                if labels.is_empty() {
                    write(metric, &point.value, &mut family)?;
                } else {
                    write(metric, &point.value, &mut family.encode_family(&labels)?)?;
                }
            }
        }
        let mut info = encoder.encode_descriptor("target", "Resource attributes", None, MetricType::Info)?;
        info.encode_info(&self.resource.as_slice())
    }
}

fn write(metric: &Metric, value: &Value, encoder: &mut MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
    let counter = metric.kind == Kind::Counter;
    match value {
        Value::Whole(n) => encoder.encode_counter::<NoLabelSet, u64, f64>(n, None),
        Value::Float(n) if counter => encoder.encode_counter::<NoLabelSet, f64, f64>(n, None),
        Value::Float(n) => encoder.encode_gauge(n),
        Value::Histogram(state) => {
            encoder.encode_histogram::<NoLabelSet>(state.sum, state.count, &state.buckets(), None)
        }
    }
}
