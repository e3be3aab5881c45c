//! Delimited protobuf: the only format with native histograms.
//!
//! The messages are those of `io.prometheus.client`
//! (<https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto>), with the fields used
//! here. prometheus-client's own messages are not used, because they need a protobuf compiler at build time.
#![allow(missing_docs, reason = "metrics.proto documents the fields")]

use std::time::UNIX_EPOCH;

use prost::{Enumeration, Message};

use crate::export::page::Content;
use crate::export::series::distribution;
use crate::export::series::distribution::{Native, State};
use crate::export::series::snapshot::{Point, Value};
use tokometer_metrics::table::Kind;

#[derive(Clone, PartialEq, Message)]
pub struct LabelPair {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
pub enum MetricType {
    Counter = 0,
    Gauge = 1,
    Histogram = 4,
}

/// The messages `Gauge` and `Counter`, which have the same field.
#[derive(Clone, PartialEq, Message)]
pub struct Number {
    #[prost(double, tag = "1")]
    pub value: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    #[prost(uint64, tag = "1")]
    pub sample_count: u64,
    #[prost(double, tag = "2")]
    pub sample_sum: f64,
    #[prost(message, repeated, tag = "3")]
    pub bucket: Vec<Bucket>,
    #[prost(sint32, tag = "5")]
    pub schema: i32,
    #[prost(double, tag = "6")]
    pub zero_threshold: f64,
    #[prost(uint64, tag = "7")]
    pub zero_count: u64,
    #[prost(message, repeated, tag = "12")]
    pub positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "13")]
    pub positive_delta: Vec<i64>,
    #[prost(message, repeated, tag = "16")]
    pub exemplars: Vec<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Bucket {
    #[prost(uint64, tag = "1")]
    pub cumulative_count: u64,
    #[prost(double, tag = "2")]
    pub upper_bound: f64,
    #[prost(message, optional, tag = "3")]
    pub exemplar: Option<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BucketSpan {
    #[prost(sint32, tag = "1")]
    pub offset: i32,
    #[prost(uint32, tag = "2")]
    pub length: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    pub label: Vec<LabelPair>,
    #[prost(double, tag = "2")]
    pub value: f64,
    #[prost(message, optional, tag = "3")]
    pub timestamp: Option<Timestamp>,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metric {
    #[prost(message, repeated, tag = "1")]
    pub label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    pub gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    pub counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    pub histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MetricFamily {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub help: String,
    #[prost(enumeration = "MetricType", tag = "3")]
    pub r#type: i32,
    #[prost(message, repeated, tag = "4")]
    pub metric: Vec<Metric>,
    #[prost(string, tag = "5")]
    pub unit: String,
}

/// Encodes the page.
pub(super) fn write(content: &Content) -> Vec<u8> {
    let families = content.families.iter().filter(|family| !family.points.is_empty()).map(|family| {
        let name = family.metric.prometheus();
        MetricFamily {
            name: name.full(),
            help: family.metric.help.to_owned(),
            r#type: match family.metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::UpDownCounter | Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            }
            .into(),
            metric: family.points.iter().map(|point| metric(family.metric, point)).collect(),
            unit: name.unit.to_owned(),
        }
    });
    let resource = content.resource.iter().map(|(name, value)| label(name, value.as_str())).collect();
    let target = MetricFamily {
        name: "target_info".to_owned(),
        help: "Resource attributes".to_owned(),
        r#type: MetricType::Gauge.into(),
        metric: vec![Metric { label: resource, gauge: Some(Number { value: 1.0 }), ..Metric::default() }],
        unit: String::new(),
    };
    families.chain([target]).flat_map(|family| family.encode_length_delimited_to_vec()).collect()
}

fn metric(of: &tokometer_metrics::table::Metric, point: &Point) -> Metric {
    let mut metric = Metric {
        label: point.attributes.labels(of).map(|(name, value)| label(name, value)).collect(),
        ..Metric::default()
    };
    let value = match &point.value {
        Value::Histogram(state) => {
            metric.histogram = Some(histogram(state));
            return metric;
        }
        Value::Whole(n) => *n as f64,
        Value::Float(n) => *n,
    };
    let number = if of.kind == Kind::Counter { &mut metric.counter } else { &mut metric.gauge };
    *number = Some(Number { value });
    metric
}

fn label(name: &str, value: impl Into<String>) -> LabelPair {
    LabelPair { name: name.to_owned(), value: value.into() }
}

fn histogram(state: &State) -> Histogram {
    let mut cumulative_count = 0;
    let exemplars = state.exemplars.iter().map(|found| found.as_ref().map(exemplar)).chain(std::iter::repeat(None));
    let bucket = state.buckets().into_iter().zip(exemplars).map(|((upper_bound, count), exemplar)| {
        cumulative_count += count;
        Bucket { cumulative_count, upper_bound, exemplar }
    });
    let histogram = Histogram {
        sample_count: state.count,
        sample_sum: state.sum,
        bucket: bucket.collect(),
        ..Histogram::default()
    };
    let Some(native) = &state.native else { return histogram };
    let (spans, positive_delta) = native.sparse();
    Histogram {
        schema: native.schema,
        zero_threshold: Native::ZERO_THRESHOLD,
        zero_count: native.zero_count,
        positive_span: spans.into_iter().map(|(offset, length)| BucketSpan { offset, length }).collect(),
        positive_delta,
        exemplars: histogram.bucket.iter().filter_map(|bucket| bucket.exemplar.clone()).collect(),
        ..histogram
    }
}

fn exemplar(exemplar: &distribution::Exemplar) -> Exemplar {
    let since = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Exemplar {
        label: vec![
            label("trace_id", format!("{:032x}", exemplar.trace_id)),
            label("span_id", format!("{:016x}", exemplar.span_id)),
        ],
        value: exemplar.value,
        timestamp: Some(Timestamp {
            seconds: since.as_secs().cast_signed(),
            nanos: since.subsec_nanos().cast_signed(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_numbers_of_metrics_proto() {
        let pair = label("a", "b");
        let exemplar =
            Exemplar { label: vec![pair.clone()], value: 2.0, timestamp: Some(Timestamp { seconds: 1, nanos: 2 }) };
        let histogram = Histogram {
            sample_count: 1,
            sample_sum: 2.0,
            bucket: vec![Bucket { cumulative_count: 1, upper_bound: 2.0, exemplar: Some(exemplar.clone()) }],
            schema: 3,
            zero_threshold: 2.0,
            zero_count: 1,
            positive_span: vec![BucketSpan { offset: -1, length: 1 }],
            positive_delta: vec![1],
            exemplars: vec![exemplar],
        };
        let metric = Metric { label: vec![pair], histogram: Some(histogram), ..Metric::default() };
        let (name, help, unit) = ("n".to_owned(), "h".to_owned(), "u".to_owned());
        let family = MetricFamily { name, help, r#type: MetricType::Histogram.into(), metric: vec![metric], unit };
        // Field number and wire type precede each value, in one byte for field numbers below 16 (protobuf encoding,
        // "Message structure").
        let two = [0, 0, 0, 0, 0, 0, 0, 0x40];
        let pair = [&[0x0a, 6, 0x0a, 1, b'a', 0x12, 1, b'b'][..]].concat();
        let exemplar = [&pair[..], &[0x11], &two, &[0x1a, 4, 0x08, 1, 0x10, 2]].concat();
        let bucket = [&[0x08, 1, 0x11][..], &two, &[0x1a, 23], &exemplar].concat();
        let numbers = [&[0x08, 1, 0x11][..], &two, &[0x1a, 36], &bucket, &[0x28, 6, 0x31], &two, &[0x38, 1]].concat();
        let native = [&[0x62, 4, 0x08, 1, 0x10, 1, 0x6a, 1, 2, 0x82, 1, 23][..], &exemplar].concat();
        let histogram = [numbers, native].concat();
        let metric = [&pair[..], &[0x3a, histogram.len() as u8], &histogram].concat();
        let text = [0x0a, 1, b'n', 0x12, 1, b'h', 0x18, 4, 0x22, metric.len() as u8];
        assert_eq!(family.encode_to_vec(), [&text[..], &metric, &[0x2a, 1, b'u']].concat());
        let value = |metric: Metric| metric.encode_to_vec();
        let gauge = Some(Number { value: 2.0 });
        assert_eq!(value(Metric { gauge, ..Metric::default() }), [&[0x12, 9, 0x09][..], &two].concat());
        let counter = Some(Number { value: 2.0 });
        assert_eq!(value(Metric { counter, ..Metric::default() }), [&[0x1a, 9, 0x09][..], &two].concat());
    }
}
