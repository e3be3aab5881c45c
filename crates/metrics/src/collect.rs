//! Values that are observed rather than recorded: their owners report them at each scrape or export.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::attributes::{Attributes, Servers, Value};
use crate::counter::Counter;
use crate::table::{Id, Key, Scope, TABLE, metric};

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
    &Counter: n => n.get() as f64,
}

impl<N: Number> Number for Option<N> {
    fn number(self) -> Option<f64> {
        self?.number()
    }
}

/// Current values by metric, in the order of the table.
pub type Values = Vec<Vec<(Attributes, f64)>>;

/// Receives the current values of one scrape or export.
#[derive(Debug)]
pub struct Points<'a> {
    servers: &'a Servers,
    values: Values,
}

impl Points<'_> {
    /// The current values of these owners. First settles them, so that all ended requests are recorded.
    pub fn of<'a>(owners: impl Iterator<Item = &'a dyn Collect> + Clone, servers: &Servers) -> Values {
        let mut points = Points { servers, values: TABLE.iter().map(|_| Vec::new()).collect() };
        owners.clone().for_each(|owner| owner.settle());
        owners.for_each(|owner| owner.collect(&mut points));
        points.values
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

/// The values of one metric of this owner, for its tests.
pub fn values_of(owner: &dyn Collect, id: Id) -> Vec<f64> {
    let values = Points::of([owner].into_iter(), &Servers::new(&[]));
    values.get(id as usize).into_iter().flatten().map(|(_, value)| *value).collect()
}
