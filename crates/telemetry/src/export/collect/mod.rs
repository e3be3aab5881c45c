//! Metrics that are observed rather than recorded: their owners report the values at each scrape or export.

mod carried;
mod process;
pub(crate) mod telemetry;

use std::sync::{Arc, PoisonError, RwLock};

use arc_swap::ArcSwap;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use tokometer_metrics::table::{Kind, TABLE};
use tokometer_metrics::{Collect, Points, Servers, Values};

use crate::export::labels::otel_attributes;

pub(crate) use carried::Carried;
pub use process::{Process, open_descriptors};

/// Every owner of observed values.
pub(crate) struct Owners {
    servers: Servers,
    all: RwLock<Vec<Arc<dyn Collect>>>,
}

impl Owners {
    pub(crate) fn new(servers: Servers) -> Owners {
        Owners { servers, all: RwLock::default() }
    }

    pub(crate) fn add(&self, owner: Arc<dyn Collect>) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).push(owner);
    }

    /// The current values of all owners.
    pub(crate) fn collect(&self) -> Values {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner).clone();
        Points::of(all.iter().map(|owner| &**owner), &self.servers)
    }
}

/// The latest values, for the OpenTelemetry callbacks. Set before each collection, so that all callbacks of one
/// collection report the same moment.
pub(crate) type Latest = Arc<ArcSwap<Values>>;

/// Creates the observable instruments that read `latest`.
pub(crate) fn instruments(meter: &Meter, latest: &Latest) {
    for metric in TABLE.iter().filter(|metric| !metric.is_recorded() && metric.kind != Kind::Histogram) {
        let latest = Arc::clone(latest);
        let callback = move |out: &dyn AsyncInstrument<f64>| {
            for (attributes, value) in latest.load().get(metric.id as usize).into_iter().flatten() {
                out.observe(*value, &otel_attributes(attributes));
            }
        };
        macro_rules! build {
            // The SDK keeps the callback, so the handle can be dropped.
            ($kind:ident) => {
                drop(
                    meter
                        .$kind(metric.name)
                        .with_unit(metric.unit)
                        .with_description(metric.help)
                        .with_callback(callback)
                        .build(),
                )
            };
        }
        match metric.kind {
            Kind::Counter => build!(f64_observable_counter),
            Kind::UpDownCounter => build!(f64_observable_up_down_counter),
            Kind::Gauge | Kind::Histogram => build!(f64_observable_gauge),
        }
    }
}
