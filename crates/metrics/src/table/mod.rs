//! The table of all metrics: the source of both exporters, `docs/reference/metrics.md`, the dashboards and the rules.

mod entries;
mod key;

pub use entries::{Id, TABLE};
pub use key::Key;

crate::closed_enum! {
    /// Type of a metric, named as in the documentation.
    pub enum Kind {
        /// Only increases, until the process restarts.
        Counter = "counter",
        /// Increases and decreases; sums over processes are meaningful.
        UpDownCounter = "up-down counter",
        /// A current value.
        Gauge = "gauge",
        /// A distribution.
        Histogram = "histogram",
    }
}

/// Common attributes of every series of a metric, in addition to the metric's own attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A request, with the attributes of the GenAI conventions.
    GenAi,
    /// A request, with the attributes of the GenAI conventions and `streaming`.
    Request,
    /// A server, with one or several listeners.
    Server,
    /// A listener (listen address and upstream).
    Listener,
    /// A request, by tenant.
    Tenant,
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
            Scope::Listener => &[Key::ServerAddress, Key::ServerPort, Key::Listener],
            Scope::Tenant => &[Key::Tenant, Key::PriorityClass],
            Scope::Process => &[],
        }
    }
}

/// The generations of GenAI names in which a metric is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// In both generations.
    Every,
    /// Only in v1.41.
    V1_41,
    /// Only in the newest generation.
    Latest,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Identifier in the table.
    pub id: Id,
    /// The OpenTelemetry name.
    pub name: &'static str,
    /// UCUM unit; empty if the metric has none.
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
    /// The generations of GenAI names in which the metric is emitted.
    pub generation: Generation,
    /// Whether the buckets carry exemplars (trace and span of a counted request).
    pub exemplar: bool,
}

impl Metric {
    /// Defaults for the fields that a catalog entry does not set.
    const PLAIN: Metric = Metric {
        id: Id::Requests,
        name: "",
        unit: "",
        kind: Kind::Counter,
        help: "",
        buckets: &[],
        scope: Scope::Process,
        extra: &[],
        optional: &[],
        generation: Generation::Every,
        exemplar: false,
    };

    /// True if values are recorded for each request; false if the value is observed when a page or an export batch is
    /// built.
    pub fn is_recorded(&self) -> bool {
        matches!(self.scope, Scope::GenAi | Scope::Request | Scope::Tenant)
    }

    /// Attributes that every series has, in order; optional attributes follow them.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.scope.keys().iter().chain(self.extra).copied()
    }

    /// The Prometheus name.
    pub fn prometheus(&self) -> PrometheusName {
        prometheus_name(self.name, self.unit, self.kind)
    }
}

/// The table entry of a metric.
pub fn metric(id: Id) -> &'static Metric {
    &TABLE[id as usize]
}

/// A metric's name in Prometheus, split into the parts that the exposition formats need separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusName {
    /// The name without its unit and `_total`.
    pub stem: String,
    /// The unit suffix, without its underscore; empty if there is none.
    pub unit: &'static str,
    /// Whether `_total` is appended.
    pub total: bool,
}

impl PrometheusName {
    /// The name of the metric family in OpenMetrics: without `_total`.
    pub fn family(&self) -> String {
        if self.unit.is_empty() { self.stem.clone() } else { format!("{}_{}", self.stem, self.unit) }
    }

    /// The name as queried: with `_total` for a counter. Histograms additionally get `_bucket`, `_sum` or `_count`.
    pub fn full(&self) -> String {
        if self.total { format!("{}_total", self.family()) } else { self.family() }
    }
}

/// The Prometheus name of an entry by the strategy `UnderscoreEscapingWithSuffixes` of the OpenTelemetry specification
/// (compatibility/prometheus_and_openmetrics.md). Prometheus uses the same name for a metric received over OTLP.
/// Supports only the units in the table, which the tests check.
fn prometheus_name(name: &str, unit: &str, kind: Kind) -> PrometheusName {
    let unit = match unit {
        "s" => "seconds",
        "By" => "bytes",
        // Only gauges get the suffix `ratio`.
        "1" if kind == Kind::Gauge => "ratio",
        _ if unit.ends_with("}/s") => "per_second",
        // Annotations in braces (`{token}`) add no suffix.
        _ => "",
    };
    let name = name.replace('.', "_");
    // A suffix that the name already has is not repeated.
    let stem = name.strip_suffix(unit).and_then(|name| name.strip_suffix('_')).unwrap_or(&name).to_owned();
    PrometheusName { stem, unit, total: kind == Kind::Counter }
}

#[cfg(test)]
mod tests;
