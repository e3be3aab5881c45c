//! The format of the definitions: one YAML file per dashboard, and `shared.yaml`. Unknown keys are errors.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// Names and their values, for lookup.
pub(super) type Named<T> = BTreeMap<String, T>;

/// Width in columns (of 24), and height in rows of about 30 pixels.
pub(super) type Size = (u32, u32);

/// The definitions shared by all dashboards.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shared {
    /// The dashboard JSON without panels, variables and annotations.
    pub(super) frame: Map<String, Value>,
    pub(super) variables: Vec<Variable>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) limits: Named<Limit>,
    /// Headings of label columns.
    pub(super) headings: Named<String>,
    /// Series colors, the same on every dashboard. Outer key: the label shown in the legend, or several labels
    /// separated by `|`. Inner key: the label's value, or the literal legend of a query.
    pub(super) colors: Named<Named<String>>,
    pub(super) expressions: Named<String>,
    /// Kinds of panels, and styles.
    pub(super) styles: Named<Style>,
}

/// A dashboard variable: a data source, or the values of a label.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variable {
    pub(super) name: String,
    /// The label in Grafana, if it differs from the name.
    pub(super) label: Option<String>,
    pub(super) description: String,
    /// Type of the data source.
    pub(super) source: Option<String>,
    /// The Prometheus query for the values.
    #[serde(default)]
    pub(super) query: String,
    /// The regular expression for "All".
    #[serde(default)]
    pub(super) all: String,
    /// If true, only dashboards that list the variable have it.
    #[serde(default)]
    pub(super) optional: bool,
}

/// An annotation from a Prometheus query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Annotation {
    pub(super) name: String,
    pub(super) expr: String,
    pub(super) color: String,
    /// Labels shown as tags.
    pub(super) labels: String,
    pub(super) text: String,
}

/// A limit that objectives set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    pub(super) value: String,
    /// The comparison that a violating value satisfies.
    pub(super) violated: String,
}

/// A kind of panel, or a style that panels add to their kind.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Style {
    /// The style that this style extends.
    pub(super) base: Option<String>,
    /// Grafana's panel type; `title` is Grafana's title of that type.
    pub(super) panel: Option<String>,
    pub(super) title: Option<String>,
    /// Whether queries return only the value at the end of the time range.
    pub(super) instant: Option<bool>,
    /// Format of the results: `time_series` (default), `table` or `heatmap`.
    pub(super) format: Option<String>,
    pub(super) thresholds: Option<Thresholds>,
    /// Merged into `fieldConfig.defaults`; null removes a key.
    pub(super) defaults: Value,
    /// Merged into `options`; null removes a key.
    pub(super) options: Value,
    pub(super) overrides: Vec<Override>,
    pub(super) links: Vec<Link>,
    /// Queries added after the panel's own. They can use `{value}`, `{limit}` and `{violated}` of the panel's limit.
    pub(super) queries: Vec<Query>,
}

/// Colors by lower bound: a number, `burn_1h` (the burn rate at which the alert with this long window fires), or
/// `reading_slow` (a decode rate of `slo.reading`). `base` is the color below all bounds.
pub(super) type Thresholds = Named<String>;

/// A dashboard.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition {
    pub(super) title: String,
    /// The question that the dashboard answers.
    pub(super) description: String,
    /// The optional variables of the dashboard.
    #[serde(default)]
    pub(super) variables: Vec<String>,
    /// Variables with exactly one value, without "All".
    #[serde(default)]
    pub(super) one_value: Vec<String>,
    #[serde(default)]
    pub(super) expressions: Named<String>,
    pub(super) rows: Vec<Row>,
}

/// A heading and its panels.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) title: String,
    /// Collapsed until a user opens the row. Until then, its panels run no queries.
    #[serde(default)]
    pub(super) collapsed: bool,
    /// Default size of the row's panels.
    pub(super) size: Size,
    pub(super) panels: Vec<Panel>,
}

/// A panel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) description: String,
    /// A style of `shared.yaml` with a panel type.
    pub(super) kind: String,
    #[serde(default)]
    pub(super) styles: Vec<String>,
    pub(super) size: Option<Size>,
    /// A unit of Grafana.
    pub(super) unit: String,
    pub(super) decimals: Option<u32>,
    pub(super) min: Option<Value>,
    /// A number, or an expression that evaluates to a number.
    pub(super) max: Option<Value>,
    /// Text shown if there is no data.
    pub(super) no_value: Option<String>,
    pub(super) thresholds: Option<Thresholds>,
    #[serde(default)]
    pub(super) defaults: Value,
    #[serde(default)]
    pub(super) options: Value,
    #[serde(default)]
    pub(super) overrides: Vec<Override>,
    #[serde(default)]
    pub(super) links: Vec<Link>,
    /// The limited value, for the style `limit` and the kind `evaluated`.
    pub(super) limit: Option<Limited>,
    #[serde(default)]
    pub(super) queries: Vec<Query>,
    /// Columns of a table, in place of queries. Their results are joined into one row per label set.
    #[serde(default)]
    pub(super) columns: Vec<Column>,
    /// The label columns of a table, in order; `group_by` expands to the labels by which objectives are grouped.
    #[serde(default)]
    pub(super) labels: Vec<String>,
    /// The column by which a table is sorted. A leading minus sign selects descending order.
    pub(super) sort: Option<String>,
    #[serde(default)]
    pub(super) transformations: Vec<Value>,
    /// A query of the traces data source, in place of queries.
    pub(super) traceql: Option<String>,
    /// Why all queries of the panel may have no result.
    pub(super) may_be_empty: Option<String>,
}

/// The value of a panel that an objective limits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limited {
    pub(super) value: String,
    /// A limit of `shared.yaml`.
    pub(super) objective: String,
}

/// A Prometheus query.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Query {
    /// Legend of the series.
    #[serde(default)]
    pub(super) legend: String,
    /// PromQL with placeholders (see `expression`).
    pub(super) expr: String,
    /// Whether exemplars are shown.
    #[serde(default)]
    pub(super) exemplars: bool,
    /// Why the query may have no result although Prometheus scrapes a tokometer with traffic.
    pub(super) may_be_empty: Option<String>,
}

/// A value column of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    /// The heading.
    pub(super) title: String,
    pub(super) expr: String,
    pub(super) unit: String,
    pub(super) decimals: Option<u32>,
    /// Width in pixels; default: the width of the heading.
    pub(super) width: Option<usize>,
    /// Colors of the text.
    pub(super) thresholds: Option<Thresholds>,
    /// Styles; only their `defaults` apply.
    #[serde(default)]
    pub(super) styles: Vec<String>,
    #[serde(default)]
    pub(super) properties: Named<Value>,
    pub(super) may_be_empty: Option<String>,
}

/// Properties of some series or of one field.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Override {
    /// A regular expression of names.
    pub(super) series: Option<String>,
    /// One name, in place of `series`.
    pub(super) field: Option<String>,
    pub(super) color: Option<String>,
    pub(super) thresholds: Option<Thresholds>,
    #[serde(default)]
    pub(super) links: Vec<Link>,
    #[serde(default)]
    pub(super) properties: Named<Value>,
}

/// A link to another dashboard, a runbook or traces.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub(super) title: String,
    /// The dashboard's uid.
    pub(super) dashboard: Option<String>,
    /// Dashboard variables to set, each from a variable of Grafana's data links. If empty, all variables are kept.
    #[serde(default)]
    pub(super) set: Named<String>,
    /// To link an alert's runbook in place of a dashboard: the variable of Grafana's data links that contains the
    /// alert's name. Without `slo.rules.runbook_url`, there is no link.
    pub(super) runbook: Option<String>,
    /// TraceQL or the id of a trace, in place of a dashboard.
    #[serde(default)]
    pub(super) traces: String,
    #[serde(default)]
    pub(super) new_tab: bool,
}
