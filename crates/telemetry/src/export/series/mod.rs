//! Metrics and their series. Each value added to a series is recorded for the Prometheus page and for OTLP.

pub(crate) mod distribution;
pub(crate) mod handles;
pub(crate) mod histograms;
pub(crate) mod live;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use opentelemetry::metrics::{BoundCounter, BoundHistogram, Counter, Histogram, Meter};

use crate::export::labels::otel_attributes;
use crate::export::profile::Kept;
use crate::export::series::distribution::{Exemplar, State};
use crate::export::{Settings, page};
use tokometer_metrics::Attributes;
use tokometer_metrics::Values;
use tokometer_metrics::table::{Id, Kind, Metric, TABLE};

/// One series: its own state for the Prometheus page, and the OpenTelemetry instrument if metrics are exported over
/// OTLP. Counter methods have no effect on histograms, and vice versa.
#[derive(Debug)]
pub(crate) enum Series {
    Counter(AtomicU64, Option<BoundCounter<u64>>),
    Histogram(Mutex<State>, Option<BoundHistogram<f64>>),
}

impl Series {
    /// Adds `n` to a counter.
    pub(crate) fn add(&self, n: u64) {
        let Series::Counter(own, otel) = self else { return };
        own.fetch_add(n, Ordering::Relaxed);
        if let Some(otel) = otel {
            otel.add(n);
        }
    }

    /// Adds an observation to a histogram.
    pub(crate) fn observe(&self, value: f64, exemplar: Option<Exemplar>) {
        let Series::Histogram(own, otel) = self else { return };
        // Non-finite values are dropped here so that both exporters count the same observations.
        if !value.is_finite() {
            return;
        }
        let mut own = lock(own);
        own.observe(value, 1);
        if let Some(exemplar) = exemplar {
            own.attach_exemplar(Exemplar { value, ..exemplar });
        }
        drop(own);
        if let Some(otel) = otel {
            otel.record(value);
        }
    }

    /// Attaches an exemplar to the bucket of a value that was observed earlier, before its trace was known.
    pub(crate) fn attach_exemplar(&self, value: f64, exemplar: Exemplar) {
        let Series::Histogram(own, _) = self else { return };
        let mut own = lock(own);
        if own.has(value) {
            own.attach_exemplar(Exemplar { value, ..exemplar });
        }
    }

    /// Adds gathered observations to a histogram. OpenTelemetry accepts only single values, so it receives each
    /// bucket's mean once per value in the bucket.
    pub(crate) fn merge(&self, gathered: &State) {
        let Series::Histogram(own, otel) = self else { return };
        lock(own).add(gathered);
        if let Some(otel) = otel {
            for (mean, times) in gathered.means() {
                (0..times).for_each(|_| otel.record(mean));
            }
        }
    }

    fn value(&self) -> page::Value {
        match self {
            Series::Counter(own, _) => page::Value::Whole(own.load(Ordering::Relaxed)),
            Series::Histogram(own, _) => page::Value::Histogram(Box::new(lock(own).clone())),
        }
    }
}

/// Locks a histogram. Not for the data path: threads of lower priority hold the lock.
fn lock(own: &Mutex<State>) -> MutexGuard<'_, State> {
    // A poisoned lock can be used: no code under the lock can leave the state half changed.
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The OpenTelemetry instrument of a metric; `None` if metrics are not exported over OTLP.
#[derive(Debug)]
enum Instrument {
    Counter(Option<Counter<u64>>),
    Histogram(Option<Histogram<f64>>),
}

impl Instrument {
    fn new(metric: &'static Metric, meter: Option<&Meter>) -> Instrument {
        let Metric { name, unit, help, .. } = *metric;
        if metric.kind == Kind::Histogram {
            let builder = meter.map(|meter| meter.f64_histogram(name));
            Instrument::Histogram(builder.map(|builder| builder.with_unit(unit).with_description(help).build()))
        } else {
            let builder = meter.map(|meter| meter.u64_counter(name));
            Instrument::Counter(builder.map(|builder| builder.with_unit(unit).with_description(help).build()))
        }
    }
}

/// A metric and its series.
#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    instrument: Instrument,
    series: RwLock<HashMap<Attributes, Arc<Series>>>,
    /// What the page shows of the metric; `None` for nothing.
    kept: Option<Kept>,
    /// The values of removed series, by shown attributes: without them, the sum that contained them would decrease,
    /// which Prometheus takes for a restart. Only for sums that still have a series. Locked after `series`.
    removed: Mutex<HashMap<Attributes, page::Value>>,
}

impl Family {
    /// Removes the series whose handles have all been dropped.
    fn remove_unused(&self) {
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |attributes: &Attributes| self.kept.as_ref().and_then(|kept| kept.shown(attributes));
        for (attributes, gone) in series.extract_if(|_, series| Arc::strong_count(series) == 1) {
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
    native_histograms: bool,
    exemplars: bool,
}

impl Families {
    /// Creates the metrics of the configured semantic conventions, with OpenTelemetry instruments if there is a meter.
    pub(crate) fn new(settings: &Settings, meter: Option<&Meter>) -> Families {
        let family = |metric: &'static Metric| {
            settings.semconv.has(metric.generation).then(|| Family {
                metric,
                instrument: Instrument::new(
                    metric,
                    meter.filter(|_| metric.is_recorded() || metric.kind == Kind::Histogram),
                ),
                series: RwLock::default(),
                kept: settings.profile.of(metric),
                removed: Mutex::default(),
            })
        };
        let (native_histograms, exemplars) = (settings.native_histograms, settings.exemplars);
        Families { by_id: TABLE.iter().map(family).collect(), native_histograms, exemplars }
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
        Some(Arc::clone(series.entry(attributes).or_insert_with_key(|known| Arc::new(self.make(family, known)))))
    }

    fn make(&self, family: &Family, attributes: &Attributes) -> Series {
        match &family.instrument {
            Instrument::Counter(otel) => {
                let otel = otel.as_ref().map(|otel| otel.bind(&otel_attributes(&attributes)));
                // Exports the new series with the value zero over OTLP too, as on the Prometheus page.
                if let Some(otel) = &otel {
                    otel.add(0);
                }
                Series::Counter(AtomicU64::new(0), otel)
            }
            Instrument::Histogram(otel) => {
                let exemplars = self.exemplars && family.metric.exemplar;
                let own = State::new(family.metric.buckets, self.native_histograms, exemplars, false);
                Series::Histogram(Mutex::new(own), otel.as_ref().map(|otel| otel.bind(&otel_attributes(&attributes))))
            }
        }
    }

    /// Removes the series whose handles have all been dropped. A series that is created again starts at zero, which
    /// Prometheus and OTLP backends treat as a counter reset.
    pub(crate) fn remove_unused(&self) {
        for family in self.by_id.iter().flatten().filter(|family| family.metric.is_recorded()) {
            family.remove_unused();
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

    /// All recorded series, ordered by their attributes, and the given observed values.
    pub(crate) fn snapshot(&self, mut observed: Values) -> Vec<page::Family> {
        let families = self.by_id.iter().flatten().filter_map(|family| {
            let kept = family.kept.as_ref()?;
            let series = family.series.read().unwrap_or_else(PoisonError::into_inner);
            // A series appears as soon as its handle exists, even when empty. The SDK does the same for bound
            // instruments, so both exporters report the same series.
            let mut points: Vec<page::Point> = series
                .iter()
                .map(|(attributes, series)| page::Point { attributes: attributes.clone(), value: series.value() })
                .collect();
            points.sort_by(|a, b| a.attributes.cmp(&b.attributes));
            let observed = observed.get_mut(family.metric.id as usize).map(std::mem::take).unwrap_or_default();
            let point = |(attributes, value)| page::Point { attributes, value: page::Value::Float(value) };
            points.extend(observed.into_iter().map(point));
            let removed = family.removed.lock().unwrap_or_else(PoisonError::into_inner);
            Some(page::Family { metric: family.metric, points: kept.reduce(family.metric, points, &removed) })
        });
        families.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Series {
        /// A counter's value, or a histogram's number of observations.
        pub(crate) fn count(&self) -> u64 {
            match self {
                Series::Counter(own, _) => own.load(Ordering::Relaxed),
                Series::Histogram(own, _) => lock(own).count,
            }
        }
    }

    impl Families {
        /// Holds the lock of every family and of every histogram while `work` runs.
        pub(crate) fn while_locked(&self, work: impl FnOnce()) {
            let families: Vec<_> = self.by_id.iter().flatten().map(|family| family.series.write().unwrap()).collect();
            let histograms = families.iter().flat_map(|series| series.values()).filter_map(|series| match &**series {
                Series::Histogram(own, _) => Some(lock(own)),
                Series::Counter(..) => None,
            });
            let histograms: Vec<_> = histograms.collect();
            work();
            drop(histograms);
        }
    }
}
