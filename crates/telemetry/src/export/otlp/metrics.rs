//! OTLP metrics: encodes all series at each interval, and sends them to the collector.
//!
//! The series are those of the Prometheus page. The SDK's metrics are not used: they would aggregate every value a second
//! time, and accept neither gathered buckets nor exemplars.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram,
    HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, exemplar, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;
use tokometer_metrics::table::{self, Kind, Scope};
use tokometer_metrics::{Attributes, Value};

use crate::export::collect::telemetry::Telemetry;
use crate::export::otlp::collector_client::{CollectorClient, METRICS};
use crate::export::otlp::{Closing, Command, bounded};
use crate::export::series::distribution::{self, Native, State};
use crate::export::series::snapshot::{Family, Point, Value as Number};
use crate::export::{Endpoint, Error, Settings, Temporality};

/// Encodes the series and sends them.
pub(crate) struct Pipeline {
    collector: CollectorClient,
    encoder: Encoder,
    interval: Duration,
    limit: Duration,
    telemetry: Arc<Telemetry>,
}

impl Pipeline {
    pub(crate) fn new(settings: &Settings, endpoint: &Endpoint, telemetry: Arc<Telemetry>) -> Result<Pipeline, Error> {
        Ok(Pipeline {
            collector: CollectorClient::of(endpoint, METRICS)?,
            encoder: Encoder::new(settings, SystemTime::now()),
            interval: settings.metrics.interval.max(Duration::from_millis(1)),
            limit: endpoint.timeout,
            telemetry,
        })
    }

    /// Exports at each interval and on request, until it receives a command with `close`. `families` returns all series.
    pub(super) async fn run(
        mut self,
        families: Box<dyn Fn() -> Vec<Family> + Send>,
        mut commands: UnboundedReceiver<Command>,
        closing: Closing,
    ) {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let command = tokio::select! {
                _ = ticks.tick() => None,
                command = commands.recv() => match command {
                    Some(command) => Some(command),
                    None => return,
                },
            };
            let message = self.encoder.message(&families(), SystemTime::now()).encode_to_vec();
            let result = bounded(self.collector.deliver(message.into()), self.limit, &closing).await;
            let good = result.is_ok();
            self.telemetry.metrics.done("metrics", result.map_err(|why| self.collector.failure(&why)));
            if command.is_some_and(|command| command.done(good)) {
                return;
            }
        }
    }
}

/// The values last sent for each series, by metric.
type Sent = HashMap<(table::Id, Attributes), Number>;

/// Converts series to messages.
struct Encoder {
    resource: Resource,
    scope: InstrumentationScope,
    temporality: Temporality,
    exponential: bool,
    /// Start of the values, in nanoseconds since 1970: of this process, and of the values since the last message.
    began: u64,
    last: u64,
    /// For values that are sent as differences.
    sent: Sent,
}

/// The times of the points of one message, in nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Times {
    start: u64,
    now: u64,
    /// Time of the last message: older exemplars have been sent.
    last: u64,
}

fn nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

impl Encoder {
    fn new(settings: &Settings, began: SystemTime) -> Encoder {
        let text = |text: &String| AnyValue { value: Some(Any::StringValue(text.clone())) };
        let attributes = settings.resource.iter().map(|(name, value)| key_value(name, text(value)));
        let (name, version) = ("tokometer".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Encoder {
            resource: Resource { attributes: attributes.collect(), ..Resource::default() },
            scope: InstrumentationScope { name, version, ..InstrumentationScope::default() },
            temporality: settings.metrics.temporality,
            exponential: settings.metrics.exponential,
            began: nanos(began),
            last: nanos(began),
            sent: Sent::new(),
        }
    }

    /// True if the values of this metric are sent as differences from the last message.
    fn is_delta(&self, metric: &table::Metric) -> bool {
        let is_observed = !metric.is_recorded() && metric.kind != Kind::Histogram;
        match self.temporality {
            _ if !matches!(metric.kind, Kind::Counter | Kind::Histogram) => false,
            Temporality::Cumulative => false,
            Temporality::Delta => true,
            // Counters that are observed (asynchronous ones, in OpenTelemetry's terms) are cumulative.
            Temporality::LowMemory => !is_observed,
        }
    }

    fn message(&mut self, families: &[Family], now: SystemTime) -> ExportMetricsServiceRequest {
        let now = nanos(now);
        let before = std::mem::take(&mut self.sent);
        let metrics = families.iter().filter_map(|family| self.metric(family, &before, now)).collect();
        // The server's counters outlive failed scrapes. Other series are missing only when they have been removed.
        let kept = before.into_iter().filter(|((id, _), _)| table::metric(*id).scope == Scope::Server);
        for (key, value) in kept {
            self.sent.entry(key).or_insert(value);
        }
        self.last = now;
        let scope = ScopeMetrics { scope: Some(self.scope.clone()), metrics, ..ScopeMetrics::default() };
        let resource =
            ResourceMetrics { resource: Some(self.resource.clone()), scope_metrics: vec![scope], ..Default::default() };
        ExportMetricsServiceRequest { resource_metrics: vec![resource] }
    }

    fn metric(&mut self, Family { metric, points }: &Family, before: &Sent, now: u64) -> Option<Metric> {
        let delta = self.is_delta(metric);
        let times = Times { start: if delta { self.last } else { self.began }, now, last: self.last };
        let differences: Vec<Point>;
        let points = if delta {
            differences = points.iter().filter_map(|point| self.difference(metric, point, before)).collect();
            &differences
        } else {
            points
        };
        let mut data = None;
        for point in points {
            self.add(metric, point, delta, times, &mut data);
        }
        let (name, description, unit) = (metric.name.to_owned(), metric.help.to_owned(), metric.unit.to_owned());
        Some(Metric { name, description, unit, metadata: Vec::new(), data: Some(data?) })
    }

    /// The difference from the last message; `None` if a series has not changed.
    fn difference(&mut self, metric: &table::Metric, point: &Point, before: &Sent) -> Option<Point> {
        let key = (metric.id, point.attributes.clone());
        let last = before.get(&key);
        let value = match last {
            // The server restarted.
            Some(Number::Float(last)) if matches!(point.value, Number::Float(total) if total < *last) => {
                point.value.clone()
            }
            Some(last) => point.value.since(last),
            // The first total of a server was accumulated before it was observed.
            None if metric.scope == Scope::Server => point.value.since(&point.value),
            None => point.value.clone(),
        };
        self.sent.insert(key, point.value.clone());
        let is_news = last.is_none() || !value.is_zero();
        is_news.then(|| Point { attributes: point.attributes.clone(), value })
    }

    /// Adds a point to the metric's data.
    fn add(&self, metric: &table::Metric, point: &Point, delta: bool, times: Times, data: &mut Option<Data>) {
        let temporality = if delta { AggregationTemporality::Delta } else { AggregationTemporality::Cumulative };
        let aggregation_temporality = temporality.into();
        let attributes: Vec<KeyValue> =
            point.attributes.iter().map(|(key, value)| key_value(key.as_str(), any(value))).collect();
        let value = match &point.value {
            Number::Histogram(state) => {
                match (&state.native, self.exponential) {
                    (Some(native), true) => {
                        let empty = || {
                            Data::ExponentialHistogram(ExponentialHistogram {
                                data_points: Vec::new(),
                                aggregation_temporality,
                            })
                        };
                        if let Data::ExponentialHistogram(all) = data.get_or_insert_with(empty) {
                            all.data_points.push(exponential(state, native, attributes, times));
                        }
                    }
                    _ => {
                        let empty = || Data::Histogram(Histogram { data_points: Vec::new(), aggregation_temporality });
                        if let Data::Histogram(all) = data.get_or_insert_with(empty) {
                            all.data_points.push(explicit(state, attributes, times));
                        }
                    }
                }
                return;
            }
            Number::Whole(n) => number_data_point::Value::AsInt(i64::try_from(*n).unwrap_or(i64::MAX)),
            Number::Float(n) => number_data_point::Value::AsDouble(*n),
        };
        let (is_sum, is_monotonic) = (metric.kind != Kind::Gauge, metric.kind == Kind::Counter);
        let number = NumberDataPoint {
            attributes,
            start_time_unix_nano: if is_sum { times.start } else { 0 },
            time_unix_nano: times.now,
            value: Some(value),
            ..NumberDataPoint::default()
        };
        let empty = || {
            let data_points = Vec::new();
            if is_sum {
                Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic })
            } else {
                Data::Gauge(Gauge { data_points })
            }
        };
        match data.get_or_insert_with(empty) {
            Data::Sum(sum) => sum.data_points.push(number),
            Data::Gauge(gauge) => gauge.data_points.push(number),
            _ => {}
        }
    }
}

fn key_value(key: &str, value: AnyValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn any(value: &Value) -> AnyValue {
    let value = match value {
        Value::Number(number) => Any::IntValue(*number),
        Value::Flag(flag) => Any::BoolValue(*flag),
        Value::Text(_) | Value::Word(_) | Value::Unknown => Any::StringValue(value.to_text().into_owned()),
    };
    AnyValue { value: Some(value) }
}

fn explicit(state: &State, attributes: Vec<KeyValue>, times: Times) -> HistogramDataPoint {
    HistogramDataPoint {
        attributes,
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count: state.count,
        sum: Some(state.sum),
        bucket_counts: state.counts.clone(),
        explicit_bounds: state.bounds().to_vec(),
        exemplars: exemplars(state, times),
        ..HistogramDataPoint::default()
    }
}

fn exponential(
    state: &State,
    native: &Native,
    attributes: Vec<KeyValue>,
    times: Times,
) -> ExponentialHistogramDataPoint {
    let (start, counts) = native.dense();
    ExponentialHistogramDataPoint {
        attributes,
        start_time_unix_nano: times.start,
        time_unix_nano: times.now,
        count: state.count,
        sum: Some(state.sum),
        scale: native.schema,
        zero_count: native.zero_count,
        // Bucket `i` of OTLP is bucket `i + 1` of Prometheus.
        positive: Some(Buckets { offset: start - 1, bucket_counts: counts.to_vec() }),
        exemplars: exemplars(state, times),
        zero_threshold: Native::ZERO_THRESHOLD,
        ..ExponentialHistogramDataPoint::default()
    }
}

/// The exemplars since the last message.
fn exemplars(state: &State, times: Times) -> Vec<Exemplar> {
    let new = state.exemplars.iter().flatten().filter(|exemplar| nanos(exemplar.at) >= times.last);
    let encoded = |exemplar: &distribution::Exemplar| Exemplar {
        filtered_attributes: Vec::new(),
        time_unix_nano: nanos(exemplar.at),
        span_id: exemplar.span_id.to_be_bytes().to_vec(),
        trace_id: exemplar.trace_id.to_be_bytes().to_vec(),
        value: Some(exemplar::Value::AsDouble(exemplar.value)),
    };
    new.map(encoded).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokometer_metrics::table::{Id, Key, TABLE};

    use super::*;
    use crate::export::series::{Families, Series};
    use crate::export::{Metrics, Prometheus};

    const SECOND: Duration = Duration::from_secs(1);

    fn settings(temporality: Temporality, exponential: bool) -> Settings {
        let url = "http://127.0.0.1:4318/v1/metrics".to_owned();
        let (protocol, headers, timeout) = (crate::export::Protocol::HttpProtobuf, Vec::new(), SECOND);
        let endpoint = Endpoint { url, protocol, headers, gzip: false, timeout, ca: None, identity: None };
        let metrics = Metrics { endpoint: Some(endpoint), temporality, exponential, ..Metrics::default() };
        let prometheus = Prometheus { native_histograms: false, ..Prometheus::default() };
        Settings { metrics, prometheus, ..Settings::default() }
    }

    fn attributes(id: Id, tenant: &'static str) -> Attributes {
        Attributes::of(table::metric(id), &[(Key::Outcome, tenant.into())], &[])
    }

    /// The data of each metric in a message.
    fn data(message: ExportMetricsServiceRequest) -> BTreeMap<String, Data> {
        let scopes = message.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
        let metrics = scopes.flat_map(|scope| scope.metrics);
        metrics.map(|metric| (metric.name, metric.data.unwrap())).collect()
    }

    /// The numbers of a sum, in order, and its temporality.
    fn sum(all: &BTreeMap<String, Data>, id: Id) -> (Vec<f64>, i32) {
        match all.get(table::metric(id).name) {
            None => (Vec::new(), 0),
            Some(Data::Sum(sum)) => {
                let number = |point: &NumberDataPoint| match point.value.unwrap() {
                    number_data_point::Value::AsInt(n) => n as f64,
                    number_data_point::Value::AsDouble(n) => n,
                };
                (sum.data_points.iter().map(number).collect(), sum.aggregation_temporality)
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn differences_of_a_server_survive_failed_scrapes_and_restarts() {
        let counter = TABLE.iter().find(|metric| metric.scope == Scope::Server && metric.kind == Kind::Counter);
        let metric = counter.expect("servers have counters");
        let began = SystemTime::now();
        let mut encoder = Encoder::new(&settings(Temporality::Delta, false), began);
        let mut after = |total: Option<f64>| {
            let point = |total| Point { attributes: Attributes::default(), value: Number::Float(total) };
            let family = Family { metric, points: total.into_iter().map(point).collect() };
            sum(&data(encoder.message(&[family], began)), metric.id).0
        };
        assert_eq!(after(None), [0.0; 0]);
        assert_eq!(after(Some(1000.0)), [0.0], "the total from before this process");
        assert_eq!(after(Some(1030.0)), [30.0]);
        assert_eq!(after(Some(1030.0)), [0.0; 0], "nothing new");
        assert_eq!(after(None), [0.0; 0], "a failed scrape");
        assert_eq!(after(Some(1050.0)), [20.0]);
        assert_eq!(after(Some(7.0)), [7.0], "the server restarted");
    }

    #[test]
    fn temporality_follows_the_kind_of_the_metric() {
        let (cumulative, delta) = (AggregationTemporality::Cumulative as i32, AggregationTemporality::Delta as i32);
        for (temporality, recorded, observed) in [
            (Temporality::Cumulative, cumulative, cumulative),
            (Temporality::Delta, delta, delta),
            (Temporality::LowMemory, delta, cumulative),
        ] {
            let mut encoder = Encoder::new(&settings(temporality, false), SystemTime::now());
            let family = |id| Family {
                metric: table::metric(id),
                points: vec![Point { attributes: Attributes::default(), value: Number::Whole(1) }],
            };
            let ids = [Id::Requests, Id::Cpu, Id::ConnectionsOpen];
            let found = data(encoder.message(&ids.map(family), SystemTime::now()));
            assert_eq!(ids.map(|id| sum(&found, id).1), [recorded, observed, cumulative], "{temporality:?}");
        }
    }

    #[test]
    fn removed_series_is_sent_once_more_and_continues_if_it_returns_before() {
        for temporality in [Temporality::Cumulative, Temporality::Delta] {
            let settings = settings(temporality, false);
            let (families, mut encoder) = (Families::new(&settings), Encoder::new(&settings, SystemTime::now()));
            let get = |tenant| families.get(Id::Requests, |_| attributes(Id::Requests, tenant)).unwrap();
            let values = || TABLE.iter().map(|_| Vec::new()).collect();
            let mut send = || sum(&data(encoder.message(&families.all(values()), SystemTime::now())), Id::Requests).0;
            let add = |series: Arc<Series>, n| series.add(n);
            add(get("a"), 5);
            families.remove_unused();
            assert_eq!(families.page(values()).iter().map(|family| family.points.len()).sum::<usize>(), 0);
            add(get("a"), 2);
            families.remove_unused();
            assert_eq!(send(), [7.0], "{temporality:?}");
            assert_eq!(send(), [0.0; 0], "{temporality:?}");
            add(get("a"), 3);
            assert_eq!(send(), [3.0], "{temporality:?}: a series that returns later starts at zero");
        }
    }

    #[test]
    fn histograms_of_differences_have_the_buckets_and_exemplars_since_the_last_message() {
        let began = SystemTime::now();
        for exponential in [false, true] {
            let settings = settings(Temporality::Delta, exponential);
            let (families, mut encoder) = (Families::new(&settings), Encoder::new(&settings, began));
            let series = families.get(Id::QueueTime, |_| Attributes::default()).unwrap();
            let values = || TABLE.iter().map(|_| Vec::new()).collect();
            let mut send = |second| data(encoder.message(&families.all(values()), began + SECOND * second));
            let observe = |value, second| {
                let exemplar = distribution::Exemplar { trace_id: 1, span_id: 2, value, at: began + SECOND * second };
                series.observe(value, Some(exemplar));
            };
            observe(0.3, 1);
            observe(4.0, 1);
            send(2);
            observe(0.3, 3);
            observe(0.0, 3);
            let mut all = send(4);
            let (count, sum, times, exemplars, buckets) = match all.remove(table::metric(Id::QueueTime).name).unwrap() {
                Data::Histogram(histogram) => {
                    let [point] = &histogram.data_points[..] else { panic!("{histogram:?}") };
                    let counts = point.bucket_counts.iter().zip(&point.explicit_bounds);
                    let full = counts.filter(|(count, _)| **count > 0).map(|(_, bound)| *bound).collect();
                    let times = (point.start_time_unix_nano, point.time_unix_nano);
                    (point.count, point.sum, times, point.exemplars.len(), full)
                }
                Data::ExponentialHistogram(histogram) => {
                    let [point] = &histogram.data_points[..] else { panic!("{histogram:?}") };
                    let Buckets { offset, bucket_counts } = point.positive.clone().unwrap();
                    let base = 2f64.powf(2f64.powi(-point.scale));
                    let counts = (offset..).zip(bucket_counts).filter(|(_, count)| *count > 0);
                    let full: Vec<f64> = counts.map(|(index, _)| base.powi(index + 1)).collect();
                    assert_eq!((full.len(), point.zero_count), (1, 1));
                    assert!(full[0] >= 0.3 && full[0] / base < 0.3, "{full:?}");
                    let times = (point.start_time_unix_nano, point.time_unix_nano);
                    (point.count, point.sum, times, point.exemplars.len(), vec![0.001, 0.3])
                }
                other => panic!("{other:?}"),
            };
            let times_expected = (nanos(began + SECOND * 2), nanos(began + SECOND * 4));
            assert_eq!((count, times, exemplars), (2, times_expected, 2), "{exponential}");
            assert!((sum.unwrap() - 0.3).abs() < 1e-12);
            assert_eq!(buckets, [0.001, 0.3]);
        }
    }
}
