//! Metrics and their series: one store, which the Prometheus page and the OTLP exporter read.

pub(crate) mod distribution;
pub(crate) mod handles;
pub(crate) mod histograms;
pub(crate) mod live;
pub(crate) mod snapshot;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokometer_metrics::table::{Id, Kind, Metric, TABLE};
use tokometer_metrics::{Attributes, Values};

use crate::export::Settings;
use crate::export::page::Kept;
use crate::export::series::distribution::{Exemplar, State};
use crate::export::series::snapshot::{Point, Value};

/// One series. Counter methods have no effect on histograms, and vice versa.
#[derive(Debug)]
pub(crate) enum Series {
    Counter(AtomicU64),
    Histogram(Mutex<State>),
}

impl Series {
    /// Adds `n` to a counter.
    pub(crate) fn add(&self, n: u64) {
        if let Series::Counter(count) = self {
            count.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Adds an observation to a histogram. Values that are not finite are dropped.
    pub(crate) fn observe(&self, value: f64, exemplar: Option<Exemplar>) {
        if let Series::Histogram(state) = self
            && value.is_finite()
        {
            let mut state = lock(state);
            state.observe(value, 1);
            if let Some(exemplar) = exemplar {
                state.attach_exemplar(Exemplar { value, ..exemplar });
            }
        }
    }

    /// Attaches an exemplar to the bucket of a value that was observed earlier, before its trace was known.
    pub(crate) fn attach_exemplar(&self, value: f64, exemplar: Exemplar) {
        let Series::Histogram(state) = self else { return };
        let mut state = lock(state);
        if state.has(value) {
            state.attach_exemplar(Exemplar { value, ..exemplar });
        }
    }

    /// Adds gathered observations to a histogram.
    pub(crate) fn merge(&self, gathered: &State) {
        if let Series::Histogram(state) = self {
            lock(state).add(gathered);
        }
    }

    fn value(&self) -> Value {
        match self {
            Series::Counter(count) => Value::Whole(count.load(Ordering::Relaxed)),
            Series::Histogram(state) => Value::Histogram(Box::new(lock(state).clone())),
        }
    }
}

/// Locks a histogram. Not for the data path: threads of lower priority hold the lock.
fn lock(own: &Mutex<State>) -> MutexGuard<'_, State> {
    // A poisoned lock can be used: no code under the lock can leave the state half changed.
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of removed series of one metric that wait for the next OTLP export.
const MAX_UNSENT: usize = 4096;

/// A metric and its series.
#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    series: RwLock<HashMap<Attributes, Arc<Series>>>,
    /// What the page shows of the metric; `None` for nothing.
    kept: Option<Kept>,
    /// The values of removed series, by shown attributes: without them, the sum that contained them would decrease,
    /// which Prometheus takes for a restart. Only for sums that still have a series. Locked after `series`.
    removed: Mutex<HashMap<Attributes, Value>>,
    /// Series that were removed since the last OTLP export, which still has to send their last values. Locked after
    /// `removed`.
    unsent: Mutex<HashMap<Attributes, Arc<Series>>>,
}

impl Family {
    /// All series. A series appears as soon as it has a handle, even when it is empty.
    fn points(&self) -> Vec<Point> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        let point = |(attributes, series): (&Attributes, &Arc<Series>)| Point {
            attributes: attributes.clone(),
            value: series.value(),
        };
        series.iter().map(point).collect()
    }

    /// Takes back a removed series that has not been exported over OTLP since. Call with `series` locked.
    fn resume(&self, attributes: &Attributes) -> Option<Arc<Series>> {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let back = self.unsent.lock().unwrap_or_else(PoisonError::into_inner).remove(attributes)?;
        let shown = self.kept.as_ref().and_then(|kept| kept.shown(attributes));
        if let Some(sum) = shown.and_then(|shown| removed.get_mut(&shown)) {
            *sum = sum.since(&back.value());
        }
        Some(back)
    }

    /// Removes the series whose handles have all been dropped. `pushed`: keeps them until the next OTLP export.
    fn remove_unused(&self, pushed: bool) {
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |attributes: &Attributes| self.kept.as_ref().and_then(|kept| kept.shown(attributes));
        let mut unsent = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        for (attributes, gone) in series.extract_if(|_, series| Arc::strong_count(series) == 1) {
            if pushed && unsent.len() < MAX_UNSENT {
                unsent.insert(attributes.clone(), Arc::clone(&gone));
            }
            let Some(shown) = shown(&attributes) else { continue };
            match removed.get_mut(&shown) {
                Some(sum) => sum.add(&gone.value()),
                None => drop(removed.insert(shown, gone.value())),
            }
        }
        if !removed.is_empty() {
            let live: HashSet<Attributes> = series.keys().filter_map(shown).collect();
            removed.retain(|shown, _| live.contains(shown));
        }
    }
}

/// Every metric, by [`Id`]. Counters and gauges that are observed at a scrape have no series here.
#[derive(Debug)]
pub(crate) struct Families {
    by_id: Vec<Option<Family>>,
    native: bool,
    exemplars: bool,
    /// True if metrics are exported over OTLP.
    pushed: bool,
    /// True if the page has native histograms.
    shows_native: bool,
}

impl Families {
    /// Creates the metrics of the configured semantic conventions.
    pub(crate) fn new(settings: &Settings) -> Families {
        let family = |metric: &'static Metric| {
            settings.semconv.has(metric.generation).then(|| Family {
                metric,
                series: RwLock::default(),
                kept: settings.prometheus.profile.of(metric),
                removed: Mutex::default(),
                unsent: Mutex::default(),
            })
        };
        Families {
            by_id: TABLE.iter().map(family).collect(),
            native: settings.gathers_native(),
            exemplars: settings.prometheus.exemplars,
            pushed: settings.metrics.endpoint.is_some(),
            shows_native: settings.prometheus.native_histograms,
        }
    }

    /// The series with these attributes, created on first use; `None` if the configured semantic conventions omit the
    /// metric.
    pub(crate) fn get(&self, id: Id, attributes: impl FnOnce(&Metric) -> Attributes) -> Option<Arc<Series>> {
        let family = self.by_id.get(id as usize)?.as_ref()?;
        let attributes = attributes(family.metric);
        if let Some(found) = family.series.read().unwrap_or_else(PoisonError::into_inner).get(&attributes) {
            return Some(Arc::clone(found));
        }
        let mut series = family.series.write().unwrap_or_else(PoisonError::into_inner);
        let make = |attributes: &Attributes| family.resume(attributes).unwrap_or_else(|| Arc::new(self.make(family)));
        Some(Arc::clone(series.entry(attributes).or_insert_with_key(make)))
    }

    fn make(&self, family: &Family) -> Series {
        if family.metric.kind == Kind::Histogram {
            let exemplars = self.exemplars && family.metric.exemplar;
            Series::Histogram(Mutex::new(State::new(family.metric.buckets, self.native, exemplars)))
        } else {
            Series::Counter(AtomicU64::new(0))
        }
    }

    /// Removes the series whose handles have all been dropped. A series that is created again later starts at zero,
    /// which Prometheus and OTLP backends treat as a counter reset.
    pub(crate) fn remove_unused(&self) {
        for family in self.by_id.iter().flatten().filter(|family| family.metric.is_recorded()) {
            family.remove_unused(self.pushed);
        }
    }

    /// Moves the values of histograms that are observed at a scrape from `values` to their series.
    pub(crate) fn observe(&self, values: &mut Values) {
        for metric in TABLE.iter().filter(|metric| !metric.is_recorded() && metric.kind == Kind::Histogram) {
            for (attributes, value) in values.get_mut(metric.id as usize).map(std::mem::take).unwrap_or_default() {
                if let Some(series) = self.get(metric.id, |_| attributes) {
                    series.observe(value, None);
                }
            }
        }
    }

    /// The series of the page: all recorded series, ordered by their attributes, and the given observed values, as far
    /// as the page has them.
    pub(crate) fn page(&self, mut observed: Values) -> Vec<snapshot::Family> {
        let families = self.by_id.iter().flatten().filter_map(|family| {
            let kept = family.kept.as_ref()?;
            let mut points = family.points();
            points.sort_by(|a, b| a.attributes.cmp(&b.attributes));
            points.extend(observed_points(&mut observed, family.metric));
            if !self.shows_native {
                points.iter_mut().for_each(|point| point.value.without_native());
            }
            let removed = family.removed.lock().unwrap_or_else(PoisonError::into_inner);
            Some(snapshot::Family { metric: family.metric, points: kept.reduce(family.metric, points, &removed) })
        });
        families.collect()
    }

    /// All series for OTLP: the recorded ones, including those removed since the last call, and the given observed
    /// values.
    pub(crate) fn all(&self, mut observed: Values) -> Vec<snapshot::Family> {
        let families = self.by_id.iter().flatten().map(|family| {
            let mut points = family.points();
            let unsent = std::mem::take(&mut *family.unsent.lock().unwrap_or_else(PoisonError::into_inner));
            points.extend(unsent.into_iter().map(|(attributes, series)| Point { attributes, value: series.value() }));
            points.extend(observed_points(&mut observed, family.metric));
            snapshot::Family { metric: family.metric, points }
        });
        families.collect()
    }
}

/// Takes the observed values of a metric.
fn observed_points(observed: &mut Values, metric: &Metric) -> impl Iterator<Item = Point> {
    let values = observed.get_mut(metric.id as usize).map(std::mem::take).unwrap_or_default();
    values.into_iter().map(|(attributes, value)| Point { attributes, value: Value::Float(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Series {
        /// A counter's value, or a histogram's number of observations.
        pub(crate) fn count(&self) -> u64 {
            match self {
                Series::Counter(own) => own.load(Ordering::Relaxed),
                Series::Histogram(own) => lock(own).count,
            }
        }
    }

    impl Families {
        /// Holds the lock of every family and of every histogram while `work` runs.
        pub(crate) fn while_locked(&self, work: impl FnOnce()) {
            let families: Vec<_> = self.by_id.iter().flatten().map(|family| family.series.write().unwrap()).collect();
            let histograms = families.iter().flat_map(|series| series.values()).filter_map(|series| match &**series {
                Series::Histogram(own) => Some(lock(own)),
                Series::Counter(_) => None,
            });
            let histograms: Vec<_> = histograms.collect();
            work();
            drop(histograms);
        }
    }
}
