//! The single table of metrics: source of both exporters, `docs/METRICS.md`, the dashboards and the rules.

mod docs;
mod entries;
mod key;
mod naming;

pub use docs::metrics_markdown;
pub use entries::{Id, TABLE};
pub use key::Key;
pub use naming::{PrometheusName, prometheus_name};

use crate::export::Semconv;

tokometer_observe::closed_enum! {
    /// Type of a metric, named as in the documentation.
    pub enum Kind {
        /// Monotonic.
        Counter = "counter",
        /// Rises and falls; sums over processes are meaningful.
        UpDownCounter = "up-down counter",
        /// A current value.
        Gauge = "gauge",
        /// A distribution.
        Histogram = "histogram",
    }
}

/// Which common attributes every series of a metric has, in addition to the metric's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A request, with the attributes of the GenAI conventions.
    GenAi,
    /// A request, with the attributes of the GenAI conventions and `streaming`.
    Request,
    /// A listener (listen address and upstream).
    Server,
    /// The process.
    Process,
}

impl Scope {
    /// The attributes, in order.
    pub fn keys(self) -> &'static [Key] {
        const ALL: &[Key] = &[
            Key::Operation,
            Key::Provider,
            Key::RequestModel,
            Key::ResponseModel,
            Key::ServerAddress,
            Key::ServerPort,
            Key::Streaming,
        ];
        match self {
            Scope::GenAi => ALL.split_at(6).0,
            Scope::Request => ALL,
            Scope::Server => &[Key::ServerAddress, Key::ServerPort],
            Scope::Process => &[],
        }
    }
}

/// The generation of GenAI names with which a metric is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// With both generations.
    Every,
    /// Only with v1.41.
    V1_41,
    /// Only with the newest.
    Latest,
}

impl Generation {
    /// True when a metric of this generation is emitted with this setting.
    pub fn is_in(self, semconv: Semconv) -> bool {
        match self {
            Generation::Every => true,
            Generation::V1_41 => semconv != Semconv::Latest,
            Generation::Latest => semconv != Semconv::V1_41,
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Identifier in the table.
    pub id: Id,
    /// The OpenTelemetry name.
    pub name: &'static str,
    /// The unit in UCUM; empty for none.
    pub unit: &'static str,
    /// Type of the metric.
    pub kind: Kind,
    /// One sentence of description, on one line and without a full stop.
    pub help: &'static str,
    /// Upper bounds of the explicit buckets, for histograms.
    pub buckets: &'static [f64],
    /// The common attributes.
    pub scope: Scope,
    /// The metric's own attributes.
    pub extra: &'static [Key],
    /// Attributes added only if the settings enable them: the prompt classes.
    pub optional: &'static [Key],
    /// The generation of GenAI names with which it is emitted.
    pub generation: Generation,
    /// Whether its buckets carry exemplars (trace and span of a request counted in them).
    pub exemplar: bool,
    /// Recorded as requests proceed; else observed when a page or an export batch is made.
    pub(crate) recorded: bool,
}

impl Metric {
    const fn new(
        id: Id,
        help: &'static str,
        scope: Scope,
        name: &'static str,
        unit: &'static str,
        kind: Kind,
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
            generation: Generation::Every,
            exemplar: false,
            recorded: matches!(scope, Scope::GenAi | Scope::Request),
        }
    }

    /// With attributes of its own.
    const fn by(mut self, extra: &'static [Key]) -> Metric {
        self.extra = extra;
        self
    }

    /// With optional attributes for prompt length and cache hits.
    const fn by_prompt(mut self) -> Metric {
        self.optional = &[Key::InputLengthClass, Key::CacheHitClass];
        self
    }

    /// Recorded once per request: its buckets can carry an exemplar with the request's span.
    const fn exemplars(mut self) -> Metric {
        self.exemplar = true;
        self
    }

    /// Emitted with these GenAI names only.
    const fn only(mut self, generation: Generation) -> Metric {
        self.generation = generation;
        self
    }

    /// Recorded, although no metric of a request.
    const fn recorded(mut self) -> Metric {
        self.recorded = true;
        self
    }

    /// Attributes that are always enabled for its series, in order; the optional ones follow them.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.scope.keys().iter().chain(self.extra).copied()
    }

    /// The Prometheus name.
    pub fn prometheus(&self) -> PrometheusName {
        prometheus_name(self.name, self.unit, self.kind)
    }

    /// Upper bound of the series for one label set.
    pub(crate) fn spread(&self) -> usize {
        self.extra.iter().map(|key| key.values()).product()
    }
}

/// The entry of a metric.
pub fn metric(id: Id) -> &'static Metric {
    &TABLE[id as usize]
}

#[cfg(test)]
mod tests;
