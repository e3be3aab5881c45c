//! Metrics with their series: each series is one handle that records for both exporters.

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
use crate::export::attributes::Attributes;
use crate::export::distribution::Distribution;
use crate::export::distribution::Exemplar;
use crate::export::distribution::State;
use crate::export::page;
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
    /// Observations that another series has too, kept once for both: the gap of an event with one token is an
    /// inter-token latency and a chunk gap, and nothing is recorded as often.
    shared: Option<Arc<Distribution>>,
    otel: Option<BoundHistogram<f64>>,
}

impl Histogram {
    pub(crate) fn observe(&self, value: f64, exemplar: Option<Exemplar>) {
        // Neither side takes what is no number: they must count the same.
        if !value.is_finite() {
            return;
        }
        self.own.observe(value, exemplar.map(|exemplar| Exemplar { value, ..exemplar }));
        if let Some(otel) = &self.otel {
            otel.record(value);
        }
    }

    /// Lets a bucket point to an exchange whose value fell in it before, when nothing was known of its trace.
    pub(crate) fn point(&self, value: f64, exemplar: Exemplar) {
        let seen = self.own.lock().has(value) || self.shared.as_ref().is_some_and(|shared| shared.lock().has(value));
        if seen {
            self.own.lock().point(Exemplar { value, ..exemplar });
        }
    }

    /// What it has seen, for the page.
    fn state(&self) -> State {
        let mut state = self.own.lock().clone();
        if let Some(shared) = &self.shared {
            state.add(&shared.lock());
        }
        state
    }

    /// Takes finite values for this series and for `other`, which share them.
    pub(crate) fn observe_with(&self, other: &Histogram, values: impl Iterator<Item = f64> + Clone) {
        if let Some(shared) = &self.shared {
            let mut state = shared.lock();
            for value in values.clone() {
                state.observe(value, 1);
            }
        }
        for otel in [&self.otel, &other.otel].into_iter().flatten() {
            values.clone().for_each(|value| otel.record(value));
        }
    }

    /// Takes finite values, each as seen so many times, under one lock.
    pub(crate) fn observe_all(&self, values: impl Iterator<Item = (f64, u32)> + Clone) {
        {
            let mut state = self.own.lock();
            for (value, times) in values.clone() {
                state.observe(value, u64::from(times));
            }
        }
        if let Some(otel) = &self.otel {
            for (value, times) in values {
                for _ in 0..times {
                    otel.record(value);
                }
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

/// Every metric that is recorded, by [`Id`]. Those that are observed at a scrape have no series here.
#[derive(Debug)]
pub(crate) struct Families {
    by_id: Vec<Option<Family>>,
    forms: Forms,
    /// What inter-token latencies and chunk gaps share.
    gaps: RwLock<HashMap<Attributes, Arc<Distribution>>>,
}

impl Families {
    /// Those of this generation; on the OpenTelemetry side too when there is a meter.
    pub(crate) fn new(semconv: Semconv, meter: Option<&Meter>, forms: Forms) -> Families {
        let family = |metric: &'static Metric| {
            metric.generation.is_in(semconv).then(|| Family {
                metric,
                otel: meter.filter(|_| !crate::export::observed::is_observed(metric.id)).map(|m| instrument(m, metric)),
                series: RwLock::default(),
            })
        };
        Families { by_id: TABLE.iter().map(family).collect(), forms, gaps: RwLock::default() }
    }

    /// The series of these attributes, made at its first use; `None` when the metric is not of this generation.
    pub(crate) fn get(&self, id: Id, attributes: impl FnOnce(&Metric) -> Attributes) -> Option<Series> {
        let family = self.by_id.get(id as usize)?.as_ref()?;
        let attributes = attributes(family.metric);
        if let Some(found) = family.series.read().unwrap_or_else(PoisonError::into_inner).get(&attributes) {
            return Some(found.clone());
        }
        let shared = matches!(id, Id::InterTokenLatency | Id::ChunkGap).then(|| self.shared(family, &attributes));
        let mut series = family.series.write().unwrap_or_else(PoisonError::into_inner);
        let made = series.entry(attributes).or_insert_with_key(|known| family.make(known, self.forms, shared));
        Some(made.clone())
    }

    fn shared(&self, family: &Family, attributes: &Attributes) -> Arc<Distribution> {
        let mut gaps = self.gaps.write().unwrap_or_else(PoisonError::into_inner);
        let made = || Arc::new(Distribution::new(family.metric.buckets, self.forms.native, false));
        Arc::clone(gaps.entry(attributes.clone()).or_insert_with(made))
    }

    /// Everything recorded so far, series in the order of their attributes.
    pub(crate) fn snapshot(&self) -> Vec<page::Family> {
        // A series is there from the moment its handle is, with nothing in it: so it is in what the SDK pushes of bound
        // instruments, and both exporters show the same.
        let point = |(attributes, series): (&Attributes, &Series)| {
            let value = match series {
                Series::Counter(counter) => page::Value::Whole(counter.own.load(Ordering::Relaxed)),
                Series::UpDown(up_down) => page::Value::Signed(up_down.own.load(Ordering::Relaxed)),
                Series::Histogram(histogram) => page::Value::Histogram(Box::new(histogram.state())),
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
    fn make(&self, attributes: &Attributes, forms: Forms, shared: Option<Arc<Distribution>>) -> Series {
        let metric = self.metric;
        match metric.kind {
            Kind::Counter => {
                let otel = match &self.otel {
                    Some(Instrument::Counter(counter)) => Some(counter.bind(&attributes.to_otel())),
                    _ => None,
                };
                // A series exists on both sides from the start, at zero.
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
                Series::Histogram(Arc::new(Histogram { own, shared, otel }))
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
