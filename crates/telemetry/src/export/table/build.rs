//! Constructors for entries of the metric table.

use crate::export::table::Generation;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::Stability;

pub(super) const fn entry(
    id: Id,
    name: &'static str,
    unit: &'static str,
    kind: Kind,
    scope: Scope,
    help: &'static str,
) -> Metric {
    Metric {
        id,
        name,
        unit,
        kind,
        help,
        buckets: &[],
        scope,
        extra: &[],
        optional: &[],
        stability: Stability::Stable,
        generation: Generation::Every,
        exemplar: false,
    }
}

/// A metric of the GenAI conventions.
pub(super) const fn of_gen_ai(mut metric: Metric, generation: Generation) -> Metric {
    metric.stability = Stability::Development;
    metric.generation = generation;
    metric
}

pub(super) const fn counter(
    id: Id,
    name: &'static str,
    unit: &'static str,
    scope: Scope,
    help: &'static str,
) -> Metric {
    entry(id, name, unit, Kind::Counter, scope, help)
}

pub(super) const fn gauge(id: Id, name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    entry(id, name, unit, Kind::Gauge, Scope::Process, help)
}

pub(super) const fn histogram(
    id: Id,
    name: &'static str,
    unit: &'static str,
    scope: Scope,
    bounds: &'static [f64],
    help: &'static str,
) -> Metric {
    let mut metric = entry(id, name, unit, Kind::Histogram, scope, help);
    metric.buckets = bounds;
    metric
}

pub(super) const fn by(mut metric: Metric, extra: &'static [Key]) -> Metric {
    metric.extra = extra;
    metric
}

/// A time to the first token, which can also be labelled by prompt length and cache hits.
pub(super) const fn by_prompt(mut metric: Metric) -> Metric {
    metric.optional = &[Key::InputLengthClass, Key::CacheHitClass];
    metric
}

/// Recorded once per request: its buckets can carry an exemplar with the request's span.
pub(super) const fn traced(mut metric: Metric) -> Metric {
    metric.exemplar = true;
    metric
}
