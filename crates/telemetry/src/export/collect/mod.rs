//! Metrics that are observed rather than recorded: their owners report the values at each scrape or export.

mod carried;
mod lower_crates;
mod process;
pub(crate) mod telemetry;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use opentelemetry::metrics::{AsyncInstrument, Meter};

use crate::export::labels::{Attributes, Servers, Value};
use crate::export::table::{Id, Key, Kind, Scope, TABLE, metric};

pub(crate) use carried::Carried;
pub use process::{Process, open_descriptors};

/// An owner of values that are exported as metrics. Called from the admin and OTLP threads, never from the data path.
pub trait Collect: Send + Sync {
    /// Finishes recording requests that have already ended. Called for every owner before the first `collect`.
    fn settle(&self) {}

    /// Adds the current values. Counters count from the start of the process.
    fn collect(&self, points: &mut Points<'_>);
}

/// A value of a metric. If it is unknown (`None`), no series is exported. Durations are in seconds.
pub trait Number {
    /// The value in the metric's unit.
    fn number(self) -> Option<f64>;
}

macro_rules! numbers {
    ($($type:ty: $n:ident => $number:expr,)+) => {
        $(impl Number for $type {
            fn number(self) -> Option<f64> {
                let $n = self;
                Some($number)
            }
        })+
    };
}

numbers! {
    f64: n => n,
    u64: n => n as f64,
    usize: n => n as f64,
    bool: n => f64::from(u8::from(n)),
    Duration: n => n.as_secs_f64(),
    &AtomicU64: n => n.load(Ordering::Relaxed) as f64,
    &AtomicI64: n => n.load(Ordering::Relaxed) as f64,
}

impl<N: Number> Number for Option<N> {
    fn number(self) -> Option<f64> {
        self?.number()
    }
}

/// Current values by metric, in the order of the table.
pub(crate) type Values = Vec<Vec<(Attributes, f64)>>;

/// Receives the current values of one scrape or export.
#[derive(Debug)]
pub struct Points<'a> {
    servers: &'a Servers,
    values: Values,
}

impl Points<'_> {
    fn new(servers: &Servers) -> Points<'_> {
        Points { servers, values: TABLE.iter().map(|_| Vec::new()).collect() }
    }

    /// Adds a value of the process. For a histogram, this is one observation, which must be added only once.
    pub fn put(&mut self, id: Id, attributes: &[(Key, Value)], value: impl Number) {
        self.add(id, &[], attributes, value.number());
    }

    /// Adds a value of the process for each value of an attribute.
    pub fn put_each<V, N>(&mut self, id: Id, key: Key, values: impl IntoIterator<Item = (V, N)>)
    where
        V: Into<Value>,
        N: Number,
    {
        for (word, value) in values {
            self.put(id, &[(key, word.into())], value);
        }
    }

    /// Adds a value of a listener or of its server. If several listeners have the same server, only the first
    /// listener's value of the server is added.
    pub fn put_at(&mut self, listener: usize, id: Id, attributes: &[(Key, Value)], value: impl Number) {
        let servers = self.servers;
        if metric(id).scope == Scope::Listener {
            self.add(id, servers.of_listener(listener), attributes, value.number());
        } else if servers.is_first(listener) {
            self.add(id, servers.of(listener), attributes, value.number());
        }
    }

    fn add(&mut self, id: Id, known: &[(Key, Value)], attributes: &[(Key, Value)], value: Option<f64>) {
        if let (Some(value), Some(values)) = (value, self.values.get_mut(id as usize)) {
            values.push((Attributes::of(metric(id), known, attributes), value));
        }
    }
}

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

    /// The current values of all owners. First settles the owners, so that all ended requests are recorded.
    pub(crate) fn collect(&self) -> Values {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().for_each(|owner| owner.settle());
        let mut points = Points::new(&self.servers);
        all.iter().for_each(|owner| owner.collect(&mut points));
        points.values
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
                out.observe(*value, &attributes.to_otel());
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The values of one metric of this owner.
    pub(crate) fn values_of(owner: &dyn Collect, id: Id) -> Vec<f64> {
        let servers = Servers::new(&[]);
        let mut points = Points::new(&servers);
        owner.collect(&mut points);
        points.values[id as usize].iter().map(|(_, value)| *value).collect()
    }
}
