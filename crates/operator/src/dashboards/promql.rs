//! Expressions, made from the metric table: a name or a label that is not in it cannot be written.

use std::fmt;
use std::fmt::Display;

use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;

/// The labels of one process. Outside a cluster only `instance` is present.
pub(super) const POD: &str = "namespace, pod, instance";

/// Legend of a series of one process.
pub(super) const POD_LEGEND: &str = "{{pod}} {{instance}}";

/// Legend of a series by model.
pub(super) const MODEL_LEGEND: &str = "{{gen_ai_response_model}}";

/// The processes selected by the variables.
pub(super) const CHOSEN: &str = r#"job=~"$job",namespace=~"$namespace",pod=~"$pod",instance=~"$instance""#;

/// Every process of the selected jobs and namespaces, to compare the selected ones with.
const PEERS: &str = r#"job=~"$job",namespace=~"$namespace",pod=~".*",instance=~".+""#;

/// Window of a rate: at least four scrape intervals, and at least one point of the graph.
pub(super) const WINDOW: &str = "$__rate_interval";

/// An expression over one metric.
#[derive(Clone, Debug)]
pub(super) struct Expr {
    form: Form,
    id: Id,
    by: Vec<&'static str>,
    /// Matchers of the metric's own labels, each after a comma.
    matchers: String,
    processes: &'static str,
    window: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Series,
    Rate,
    /// An aggregation of the series.
    Aggregate(&'static str),
    Total,
    Growth,
    Quantile(f64),
    /// Rate of a histogram's `sum` or `count`.
    Part(&'static str),
    Mean,
    Buckets,
}

fn expr(form: Form, id: Id) -> Expr {
    Expr { form, id, by: Vec::new(), matchers: String::new(), processes: CHOSEN, window: WINDOW }
}

/// The selected series of a metric.
pub(super) fn series(id: Id) -> Expr {
    expr(Form::Series, id)
}

/// The rate of each series.
pub(super) fn rate(id: Id) -> Expr {
    expr(Form::Rate, id)
}

/// The sum of a counter's rates.
pub(super) fn total(id: Id) -> Expr {
    expr(Form::Total, id)
}

/// A counter's increase over the time range of the dashboard.
pub(super) fn growth(id: Id) -> Expr {
    expr(Form::Growth, id)
}

pub(super) fn sum(id: Id) -> Expr {
    expr(Form::Aggregate("sum"), id)
}

pub(super) fn min(id: Id) -> Expr {
    expr(Form::Aggregate("min"), id)
}

pub(super) fn max(id: Id) -> Expr {
    expr(Form::Aggregate("max"), id)
}

pub(super) fn avg(id: Id) -> Expr {
    expr(Form::Aggregate("avg"), id)
}

pub(super) fn count(id: Id) -> Expr {
    expr(Form::Aggregate("count"), id)
}

/// A quantile of a histogram, from classic buckets or, if the Prometheus stores none, from native ones.
pub(super) fn quantile(q: f64, id: Id) -> Expr {
    expr(Form::Quantile(q), id)
}

/// The rate of a histogram's sum.
pub(super) fn sum_rate(id: Id) -> Expr {
    expr(Form::Part("sum"), id)
}

/// The buckets of a histogram for a heatmap. `on ()`: the native form only if there is no classic one.
pub(super) fn buckets(id: Id) -> Expr {
    expr(Form::Buckets, id)
}

/// The mean of a histogram's observations.
pub(super) fn mean(id: Id) -> Expr {
    expr(Form::Mean, id)
}

impl Expr {
    /// Aggregates by one more of the metric's own labels.
    pub(super) fn by(self, key: Key) -> Expr {
        self.by_label(key.label())
    }

    /// Aggregates by process.
    pub(super) fn by_pod(self) -> Expr {
        self.by_label(POD)
    }

    /// Aggregates by one more label that the scrape adds.
    pub(super) fn by_label(mut self, label: &'static str) -> Expr {
        self.by.push(label);
        self
    }

    /// Only series with this value of a label.
    pub(super) fn only(self, key: Key, value: &str) -> Expr {
        self.matching(key, "=", value)
    }

    /// Only series without this value of a label.
    pub(super) fn without(self, key: Key, value: &str) -> Expr {
        self.matching(key, "!=", value)
    }

    /// Only series whose label matches this regular expression.
    pub(super) fn like(self, key: Key, value: &str) -> Expr {
        self.matching(key, "=~", value)
    }

    /// Only requests on paths that are parsed: the others have no tokens.
    pub(super) fn parsed(self) -> Expr {
        self.without(Key::Operation, "other")
    }

    fn matching(mut self, key: Key, operator: &str, value: &str) -> Expr {
        self.matchers += &format!(",{}{operator}\"{value}\"", key.label());
        self
    }

    /// Over a window of its own.
    pub(super) fn over(mut self, window: &'static str) -> Expr {
        self.window = window;
        self
    }

    /// Of the selected processes and all others of their jobs and namespaces.
    pub(super) fn of_peers(mut self) -> Expr {
        self.processes = PEERS;
        self
    }

    /// The series of the metric's name with this suffix.
    fn selector(&self, suffix: &str) -> String {
        let metric = metric(self.id);
        let model = [Key::ResponseModel, Key::Model].into_iter().filter(|model| metric.keys().any(|key| key == *model));
        let model: String = model.map(|key| format!(",{}=~\"$model\"", key.label())).collect();
        format!("{}{suffix}{{{}{model}{}}}", metric.prometheus().full(), self.processes, self.matchers)
    }
}

impl Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (own, window) = (self.selector(""), self.window);
        let labels = self.by.join(", ");
        let by = if labels.is_empty() { String::new() } else { format!(" by ({labels})") };
        match self.form {
            Form::Series => f.write_str(&own),
            Form::Rate => write!(f, "rate({own}[{window}])"),
            Form::Aggregate(name) => write!(f, "{name}{by} ({own})"),
            Form::Total => write!(f, "sum{by} (rate({own}[{window}]))"),
            Form::Growth => write!(f, "sum{by} (increase({own}[$__range]))"),
            Form::Quantile(q) => {
                let classic = self.selector("_bucket");
                let with_le = if labels.is_empty() { "le".to_owned() } else { format!("{labels}, le") };
                write!(f, "histogram_quantile({q}, sum by ({with_le}) (rate({classic}[{window}])))\nor\n")?;
                write!(f, "histogram_quantile({q}, sum{by} (rate({own}[{window}])))")
            }
            Form::Part(part) => {
                let classic = self.selector(&format!("_{part}"));
                write!(f, "sum{by} (rate({classic}[{window}])) or histogram_{part}(sum{by} (rate({own}[{window}])))")
            }
            Form::Mean => {
                let part = |part| Expr { form: Form::Part(part), ..self.clone() };
                write!(f, "({})\n/\n(({}) > 0)", part("sum"), part("count"))
            }
            Form::Buckets => {
                let classic = self.selector("_bucket");
                write!(f, "sum by (le) (increase({classic}[{window}]))\nor on ()\nsum (increase({own}[{window}]))")
            }
        }
    }
}

/// A value without labels, or NaN where a tokometer is scraped that has no such series yet because it had no request.
/// Dashboards show NaN as "no traffic"; what is not scraped stays without data.
pub(super) fn or_idle(value: impl Display) -> String {
    format!("({value})\nor\nNaN * {}", count(Id::BuildInfo))
}

/// A rate without labels, or 0 if a tokometer is scraped that has no such series yet.
pub(super) fn or_zero(value: impl Display) -> String {
    format!("({value})\nor\n0 * {}", count(Id::BuildInfo))
}

/// The ratio of two rates; NaN, which dashboards show as "no traffic", if the whole is 0.
pub(super) fn share(part: impl Display, whole: impl Display) -> String {
    format!("{part}\n/\n{whole}")
}

/// The largest series.
pub(super) fn top(n: u32, value: impl Display) -> String {
    format!("topk({n}, {value})")
}

/// Only values above 0.
pub(super) fn positive(value: impl Display) -> String {
    format!("{value} > 0")
}

/// As [`positive`], as an operand.
pub(super) fn divisor(value: impl Display) -> String {
    format!("({value} > 0)")
}
