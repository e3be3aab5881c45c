//! OTLP metrics: collects metrics from the OpenTelemetry SDK and exports them.
//!
//! The SDK's own periodic reader blocks a thread in each export and waits a fixed 5 s at shutdown. This module uses a
//! manual reader on tokometer's own runtime, so every export and the shutdown have time limits.

use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{
    Aggregation, Instrument, InstrumentKind, ManualReader, SdkMeterProvider, Stream, Temporality as SdkTemporality,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;

use crate::export::collect::telemetry::Telemetry;
use crate::export::otlp::delivery::Delivery;
use crate::export::otlp::{Closing, Command, bounded, delivery};
use crate::export::{Endpoint, Error, Settings, Temporality};
use tokometer_metrics::table::TABLE;

/// A reader shared between the provider and this module.
#[derive(Clone, Debug)]
struct Shared(Arc<ManualReader>);

impl MetricReader for Shared {
    fn register_pipeline(&self, pipeline: Weak<opentelemetry_sdk::metrics::Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> SdkTemporality {
        self.0.temporality(kind)
    }
}

/// The SDK's provider and reader, and the exporter.
pub(crate) struct Pipeline {
    provider: SdkMeterProvider,
    reader: Shared,
    exporter: MetricExporter,
    delivery: Delivery,
    interval: Duration,
    limit: Duration,
    telemetry: Arc<Telemetry>,
}

impl Pipeline {
    pub(crate) fn new(
        settings: &Settings,
        endpoint: &Endpoint,
        resource: Resource,
        telemetry: Arc<Telemetry>,
    ) -> Result<Pipeline, Error> {
        let temporality = match settings.metrics.temporality {
            Temporality::Cumulative => SdkTemporality::Cumulative,
            Temporality::Delta => SdkTemporality::Delta,
            Temporality::LowMemory => SdkTemporality::LowMemory,
        };
        let (exporter, delivery) = delivery::metric_exporter(endpoint, temporality)?;
        let reader = Shared(Arc::new(ManualReader::builder().with_temporality(temporality).build()));
        let exponential = settings.metrics.exponential;
        let (label_sets, classed) = (settings.max_label_sets, !settings.prompt_classes.is_off());
        let provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader.clone())
            .with_view(move |instrument: &Instrument| view(instrument, exponential, label_sets, classed))
            .build();
        Ok(Pipeline {
            provider,
            reader,
            exporter,
            delivery,
            interval: settings.metrics.interval.max(Duration::from_millis(1)),
            limit: endpoint.timeout,
            telemetry,
        })
    }

    pub(crate) fn meter(&self) -> Meter {
        let scope = InstrumentationScope::builder("tokometer").with_version(env!("CARGO_PKG_VERSION")).build();
        self.provider.meter_with_scope(scope)
    }

    /// Exports at each interval and on request, until it receives a command with `close`.
    pub(super) async fn run(
        self,
        mut refresh: Box<dyn FnMut() + Send>,
        mut commands: UnboundedReceiver<Command>,
        closing: Closing,
    ) {
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut metrics = ResourceMetrics::default();
        loop {
            let command = tokio::select! {
                _ = ticks.tick() => None,
                command = commands.recv() => match command {
                    Some(command) => Some(command),
                    None => return,
                },
            };
            refresh();
            let result = match self.reader.collect(&mut metrics) {
                Ok(()) => {
                    let exported = bounded(self.exporter.export(&metrics), self.limit, &closing).await;
                    self.delivery.outcome(exported).0
                }
                Err(error) => Err(error.to_string()),
            };
            let good = result.is_ok();
            self.telemetry.metrics.done("metrics", result);
            if command.is_some_and(|command| command.done(good)) {
                return;
            }
        }
    }
}

/// How the SDK aggregates an instrument. The cardinality limit is high enough for all series that the label limits
/// allow. With a lower limit, the SDK would fold series into an overflow series that the Prometheus page does not have.
fn view(instrument: &Instrument, exponential: bool, label_sets: usize, classed: bool) -> Option<Stream> {
    let metric = TABLE.iter().find(|metric| metric.name == instrument.name())?;
    // Prompt classes can double the number of series: up to `label_sets` combinations of label set and class, plus the
    // class `other` of each label set.
    let classes = if classed && !metric.optional.is_empty() { label_sets } else { 0 };
    let sets = label_sets.saturating_add(classes).saturating_add(64);
    let limit = sets.saturating_mul(metric.spread());
    let mut stream = Stream::builder().with_cardinality_limit(limit);
    if instrument.kind() == InstrumentKind::Histogram {
        // Omit minimum and maximum: the SDK (0.33) sends f64::MAX and f64::MIN for a series without values. For gaps,
        // they would be wrong, because the SDK receives bucket means.
        let record_min_max = false;
        stream = stream.with_aggregation(if exponential {
            // These values are the defaults of the SDK and of the specification.
            Aggregation::Base2ExponentialHistogram { max_size: 160, max_scale: 20, record_min_max }
        } else {
            Aggregation::ExplicitBucketHistogram { boundaries: metric.buckets.to_vec(), record_min_max }
        });
    }
    stream.build().ok()
}
