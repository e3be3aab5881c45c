//! Delimited protobuf, with native histograms and exemplars.

use std::fmt::Error;

use prometheus_client::encoding::prometheus_protobuf;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as model;
use prometheus_client::registry::Registry;
use prost::Message;

use crate::export::distribution::Exemplar;
use crate::export::page::Family;
use crate::export::page::Value;

/// Encodes the page. prometheus-client creates the messages but accepts exemplars only from its own metric types, so
/// they are set here, on the classic buckets and on the native histogram.
pub(super) fn write(registry: &Registry, families: &[Family]) -> Result<Vec<u8>, Error> {
    let mut messages = prometheus_protobuf::encode(registry)?;
    for family in families.iter().filter(|family| family.metric.exemplar) {
        let name = family.metric.prometheus().full();
        let Some(message) = messages.iter_mut().find(|message| message.name == name) else { continue };
        for (point, metric) in family.points.iter().zip(&mut message.metric) {
            if let (Value::Histogram(state), Some(histogram)) = (&point.value, &mut metric.histogram) {
                set(&state.exemplars, state.native.is_some(), histogram);
            }
        }
    }
    let mut body = Vec::new();
    for message in &messages {
        message.encode_length_delimited(&mut body).map_err(|_| Error)?;
    }
    Ok(body)
}

fn set(exemplars: &[Option<Exemplar>], native: bool, histogram: &mut model::Histogram) {
    for (exemplar, bucket) in exemplars.iter().zip(&mut histogram.bucket) {
        bucket.exemplar = exemplar.as_ref().map(message);
        if native {
            histogram.exemplars.extend(bucket.exemplar.clone());
        }
    }
}

fn message(exemplar: &Exemplar) -> model::Exemplar {
    let label = |name: &str, value: String| model::LabelPair { name: name.to_owned(), value };
    model::Exemplar {
        label: vec![
            label("trace_id", format!("{:032x}", exemplar.trace_id)),
            label("span_id", format!("{:016x}", exemplar.span_id)),
        ],
        value: exemplar.value,
        timestamp: Some(exemplar.at.into()),
    }
}
