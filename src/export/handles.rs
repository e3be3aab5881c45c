//! The series of one label set, found once and kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::RwLock;

use crate::export::attributes::Attributes;
use crate::export::attributes::Value;
use crate::export::distribution::Exemplar;
use crate::export::live::LiveHandles;
use crate::export::series::Counter;
use crate::export::series::Families;
use crate::export::series::Histogram;
use crate::export::series::Series;
use crate::export::table::Id;
use crate::export::table::Key;

/// At most two attributes beside those of the label set.
pub(crate) type Extra = [Option<(Key, Value)>; 2];

/// No further attributes.
pub(crate) const NONE: Extra = [None, None];

/// One further attribute.
pub(crate) fn one(key: Key, value: Value) -> Extra {
    [Some((key, value)), None]
}

/// The series of one label set.
#[derive(Debug)]
pub(crate) struct Handles {
    families: Arc<Families>,
    known: Vec<(Key, Value)>,
    /// A hash of a few words per look-up, in place of one over all attributes on either exporter.
    found: RwLock<HashMap<(Id, Extra), Option<Series>>>,
    live: OnceLock<Arc<LiveHandles>>,
}

impl Handles {
    pub(crate) fn new(families: Arc<Families>, known: Vec<(Key, Value)>) -> Handles {
        Handles { families, known, found: RwLock::default(), live: OnceLock::new() }
    }

    fn series(&self, id: Id, extra: Extra) -> Option<Series> {
        let key = (id, extra);
        if let Some(found) = self.found.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return found.clone();
        }
        let extra: Vec<(Key, Value)> = key.1.iter().flatten().cloned().collect();
        let series = self.families.get(id, |metric| Attributes::of(metric, &self.known, &extra));
        self.found.write().unwrap_or_else(PoisonError::into_inner).insert(key, series.clone());
        series
    }

    /// The series of a counter; `None` when this generation has no such metric.
    pub(crate) fn counter(&self, id: Id, extra: Extra) -> Option<Arc<Counter>> {
        match self.series(id, extra) {
            Some(Series::Counter(counter)) => Some(counter),
            _ => None,
        }
    }

    /// The series of a histogram; `None` when this generation has no such metric.
    pub(crate) fn histogram(&self, id: Id, extra: Extra) -> Option<Arc<Histogram>> {
        match self.series(id, extra) {
            Some(Series::Histogram(histogram)) => Some(histogram),
            _ => None,
        }
    }

    pub(crate) fn add(&self, id: Id, extra: Extra, n: u64) {
        if let Some(counter) = self.counter(id, extra) {
            counter.add(n);
        }
    }

    pub(crate) fn observe(&self, id: Id, extra: Extra, value: f64, exemplar: Option<Exemplar>) {
        if let Some(histogram) = self.histogram(id, extra) {
            histogram.observe(value, exemplar);
        }
    }

    /// What moves while a stream runs.
    pub(crate) fn live(&self) -> Arc<LiveHandles> {
        Arc::clone(self.live.get_or_init(|| Arc::new(LiveHandles::new(self))))
    }
}
