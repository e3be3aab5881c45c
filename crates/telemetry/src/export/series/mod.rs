//! Metrics and their series. Each series is one handle that records for both exporters.

pub(crate) mod distribution;
pub(crate) mod handles;
pub(crate) mod live;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use opentelemetry::metrics::BoundCounter;
use opentelemetry::metrics::BoundHistogram;
use opentelemetry::metrics::BoundUpDownCounter;
use opentelemetry::metrics::Meter;

use crate::export::Semconv;
use crate::export::labels::Attributes;
use crate::export::page;
use crate::export::series::distribution::Distribution;
use crate::export::series::distribution::Exemplar;
use crate::export::series::distribution::State;
use crate::export::table::Id;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::TABLE;

/// One series of a counter.
#[derive(Debug)]
pub(crate) struct Counter {
    own: AtomicU64,
    otel: Option<BoundCounter<u64>>,
}

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.own.fetch_add(n, Ordering::Relaxed);
        if let Some(otel) = &self.otel {
            otel.add(n);
        }
    }
}

#[cfg(test)]
impl Counter {
    pub(crate) fn get(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }
}

/// One series of an up-down counter.
#[derive(Debug)]
pub(crate) struct UpDown {
    own: AtomicI64,
    otel: Option<BoundUpDownCounter<i64>>,
}

impl UpDown {
    pub(crate) fn add(&self, n: i64) {
        self.own.fetch_add(n, Ordering::Relaxed);
        if let Some(otel) = &self.otel {
            otel.add(n);
        }
    }
}

/// One series of a histogram.
#[derive(Debug)]
pub(crate) struct Histogram {
    own: Distribution,
    otel: Option<BoundHistogram<f64>>,
}

impl Histogram {
    pub(crate) fn observe(&self, value: f64, exemplar: Option<Exemplar>) {
        // Non-finite values are dropped here so that both exporters count the same.
        if !value.is_finite() {
            return;
        }
        self.own.observe(value, exemplar.map(|exemplar| Exemplar { value, ..exemplar }));
        if let Some(otel) = &self.otel {
            otel.record(value);
        }
    }

    /// Attaches an exemplar to the bucket of a value that was observed earlier, before its trace was known.
    pub(crate) fn point(&self, value: f64, exemplar: Exemplar) {
        let mut own = self.own.lock();
        if own.has(value) {
            own.point(Exemplar { value, ..exemplar });
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.own.lock().count
    }

    /// Adds observations gathered elsewhere. OpenTelemetry accepts single values only: it gets the mean of a bucket
    /// once per value in it.
    pub(crate) fn add(&self, gathered: &State) {
        self.own.lock().add(gathered);
        if let Some(otel) = &self.otel {
            for (mean, times) in gathered.means() {
                (0..times).for_each(|_| otel.record(mean));
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Series {
    Counter(Arc<Counter>),
    UpDown(Arc<UpDown>),
    Histogram(Arc<Histogram>),
}

impl Series {
    pub(crate) fn counter(&self) -> Option<Arc<Counter>> {
        if let Series::Counter(counter) = self { Some(Arc::clone(counter)) } else { None }
    }

    pub(crate) fn up_down(&self) -> Option<Arc<UpDown>> {
        if let Series::UpDown(up_down) = self { Some(Arc::clone(up_down)) } else { None }
    }

    pub(crate) fn histogram(&self) -> Option<Arc<Histogram>> {
        if let Series::Histogram(histogram) = self { Some(Arc::clone(histogram)) } else { None }
    }

    /// True while a handle to it exists outside its family.
    fn is_used(&self) -> bool {
        match self {
            Series::Counter(counter) => Arc::strong_count(counter) > 1,
            Series::UpDown(up_down) => Arc::strong_count(up_down) > 1,
            Series::Histogram(histogram) => Arc::strong_count(histogram) > 1,
        }
    }
}

/// The OpenTelemetry instrument of a metric.
#[derive(Debug)]
enum Instrument {
    Counter(opentelemetry::metrics::Counter<u64>),
    UpDown(opentelemetry::metrics::UpDownCounter<i64>),
    Histogram(opentelemetry::metrics::Histogram<f64>),
}

/// A metric and its series.
#[derive(Debug)]
struct Family {
    metric: &'static Metric,
    otel: Option<Instrument>,
    series: RwLock<HashMap<Attributes, Series>>,
}

/// How histograms are kept for the Prometheus endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forms {
    pub(crate) native: bool,
    pub(crate) exemplars: bool,
}

/// Every recorded metric, by [`Id`]. Metrics that are observed at a scrape have no series here.
#[derive(Debug)]
pub(crate) struct Families {
    by_id: Vec<Option<Family>>,
    forms: Forms,
}

impl Families {
    /// Creates the metrics of this generation, with OpenTelemetry instruments if there is a meter.
    pub(crate) fn new(semconv: Semconv, meter: Option<&Meter>, forms: Forms) -> Families {
        let family = |metric: &'static Metric| {
            metric.generation.is_in(semconv).then(|| Family {
                metric,
                otel: meter.filter(|_| metric.recorded).map(|m| instrument(m, metric)),
                series: RwLock::default(),
            })
        };
        Families { by_id: TABLE.iter().map(family).collect(), forms }
    }

    /// The series with these attributes, created on first use; `None` when the metric is not of this generation.
    pub(crate) fn get(&self, id: Id, attributes: impl FnOnce(&Metric) -> Attributes) -> Option<Series> {
        let family = self.by_id.get(id as usize)?.as_ref()?;
        let attributes = attributes(family.metric);
        if let Some(found) = family.series.read().unwrap_or_else(PoisonError::into_inner).get(&attributes) {
            return Some(found.clone());
        }
        let mut series = family.series.write().unwrap_or_else(PoisonError::into_inner);
        let made = series.entry(attributes).or_insert_with_key(|known| family.make(known, self.forms));
        Some(made.clone())
    }

    /// Removes the series without a remaining handle. A series that is created again starts at zero, which readers
    /// treat as a counter reset.
    pub(crate) fn remove_unused(&self) {
        for family in self.by_id.iter().flatten() {
            family.series.write().unwrap_or_else(PoisonError::into_inner).retain(|_, series| series.is_used());
        }
    }

    /// Holds the lock of every family and of every histogram while `work` runs.
    #[cfg(test)]
    pub(crate) fn while_locked(&self, work: impl FnOnce()) {
        let families: Vec<_> = self.by_id.iter().flatten().map(|family| family.series.write().unwrap()).collect();
        let histograms = families.iter().flat_map(|series| series.values()).filter_map(|series| match series {
            Series::Histogram(histogram) => Some(histogram.own.lock()),
            _ => None,
        });
        let histograms: Vec<_> = histograms.collect();
        work();
        drop(histograms);
    }

    /// Everything recorded so far, with series ordered by their attributes.
    pub(crate) fn snapshot(&self) -> Vec<page::Family> {
        // A series appears as soon as its handle exists, even when empty. The SDK pushes bound instruments likewise, so
        // both exporters show the same.
        let point = |(attributes, series): (&Attributes, &Series)| {
            let value = match series {
                Series::Counter(counter) => page::Value::Whole(counter.own.load(Ordering::Relaxed)),
                Series::UpDown(up_down) => page::Value::Signed(up_down.own.load(Ordering::Relaxed)),
                Series::Histogram(histogram) => page::Value::Histogram(Box::new(histogram.own.lock().clone())),
            };
            page::Point { attributes: attributes.clone(), value }
        };
        let families = self.by_id.iter().flatten().map(|family| {
            let series = family.series.read().unwrap_or_else(PoisonError::into_inner);
            let mut points: Vec<page::Point> = series.iter().map(point).collect();
            points.sort_by(|a, b| a.attributes.cmp(&b.attributes));
            page::Family { metric: family.metric, points }
        });
        families.collect()
    }
}

impl Family {
    fn make(&self, attributes: &Attributes, forms: Forms) -> Series {
        let metric = self.metric;
        match metric.kind {
            Kind::Counter => {
                let otel = match &self.otel {
                    Some(Instrument::Counter(counter)) => Some(counter.bind(&attributes.to_otel())),
                    _ => None,
                };
                // A series starts at zero on both sides.
                if let Some(otel) = &otel {
                    otel.add(0);
                }
                Series::Counter(Arc::new(Counter { own: AtomicU64::new(0), otel }))
            }
            Kind::UpDownCounter | Kind::Gauge => {
                let otel = match &self.otel {
                    Some(Instrument::UpDown(up_down)) => Some(up_down.bind(&attributes.to_otel())),
                    _ => None,
                };
                if let Some(otel) = &otel {
                    otel.add(0);
                }
                Series::UpDown(Arc::new(UpDown { own: AtomicI64::new(0), otel }))
            }
            Kind::Histogram => {
                let otel = match &self.otel {
                    Some(Instrument::Histogram(histogram)) => Some(histogram.bind(&attributes.to_otel())),
                    _ => None,
                };
                let own = Distribution::new(metric.buckets, forms.native, forms.exemplars && metric.exemplar);
                Series::Histogram(Arc::new(Histogram { own, otel }))
            }
        }
    }
}

fn instrument(meter: &Meter, metric: &'static Metric) -> Instrument {
    match metric.kind {
        Kind::Counter => Instrument::Counter(
            meter.u64_counter(metric.name).with_unit(metric.unit).with_description(metric.help).build(),
        ),
        Kind::UpDownCounter | Kind::Gauge => Instrument::UpDown(
            meter.i64_up_down_counter(metric.name).with_unit(metric.unit).with_description(metric.help).build(),
        ),
        Kind::Histogram => Instrument::Histogram(
            meter
                .f64_histogram(metric.name)
                .with_unit(metric.unit)
                .with_description(metric.help)
                .with_boundaries(metric.buckets.to_vec())
                .build(),
        ),
    }
}
