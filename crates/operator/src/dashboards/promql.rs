//! Expressions, made from the metric table: a name or a label that is not in it cannot be written down.

use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;

/// A label to aggregate by, or to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// One of the metric's own.
    Of(Key),
    /// The Kubernetes namespace, where the scrape gives one.
    Namespace,
    /// The Kubernetes pod, where the scrape gives one.
    Pod,
    /// The scraped address.
    Instance,
}

impl Label {
    pub(super) fn name(self) -> &'static str {
        match self {
            Label::Of(key) => key.label(),
            Label::Namespace => "namespace",
            Label::Pod => "pod",
            Label::Instance => "instance",
        }
    }
}

/// What tells one process from another. Without a cluster only `instance` is there.
pub(super) const POD: [Label; 3] = [Label::Namespace, Label::Pod, Label::Instance];

/// How a series of one process is called in a legend.
pub(super) const POD_LEGEND: &str = "{{pod}} {{instance}}";

/// The model that answered.
pub(super) const MODEL: Label = Label::Of(Key::ResponseModel);

/// The process that the variables choose.
pub(super) const CHOSEN: &str = r#"job=~"$job",namespace=~"$namespace",pod=~"$pod",instance=~"$instance""#;

/// Every process of the chosen jobs and namespaces, to compare the chosen ones with.
const PEERS: &str = r#"job=~"$job",namespace=~"$namespace",pod=~".*",instance=~".+""#;

/// The window of a rate: at least four scrapes, and at least a point of the graph.
pub(super) const WINDOW: &str = "$__rate_interval";

/// A matcher of one of the metric's own labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matcher {
    key: Key,
    operator: &'static str,
    value: &'static str,
}

pub(super) fn is(key: Key, value: &'static str) -> Matcher {
    Matcher { key, operator: "=", value }
}

pub(super) fn is_not(key: Key, value: &'static str) -> Matcher {
    Matcher { key, operator: "!=", value }
}

pub(super) fn like(key: Key, value: &'static str) -> Matcher {
    Matcher { key, operator: "=~", value }
}

/// Exchanges of paths that are read: the others have no tokens.
pub(super) fn read() -> Matcher {
    is_not(Key::Operation, "other")
}

fn selector(processes: &str, name: &str, id: Id, matchers: &[Matcher]) -> String {
    let has = |key: Key| metric(id).keys().any(|own| own == key);
    let mut all = processes.to_owned();
    if has(Key::ResponseModel) {
        all += &format!(",{}=~\"$model\"", Key::ResponseModel.label());
    }
    if has(Key::Model) {
        all += &format!(",{}=~\"$model\"", Key::Model.label());
    }
    for Matcher { key, operator, value } in matchers {
        all += &format!(",{}{operator}\"{value}\"", key.label());
    }
    format!("{name}{{{all}}}")
}

/// The chosen series of a metric.
pub(super) fn series(id: Id, matchers: &[Matcher]) -> String {
    selector(CHOSEN, &metric(id).prometheus().full(), id, matchers)
}

/// A rate over the graph's own window.
pub(super) fn rate(id: Id, matchers: &[Matcher]) -> String {
    format!("rate({}[{WINDOW}])", series(id, matchers))
}

/// Labels as PromQL lists them.
pub(super) fn list(labels: &[Label]) -> String {
    labels.iter().map(|label| label.name()).collect::<Vec<_>>().join(", ")
}

/// ` by (...)`, or nothing for a total.
fn by(labels: &[Label]) -> String {
    if labels.is_empty() { String::new() } else { format!(" by ({})", list(labels)) }
}

pub(super) fn sum(labels: &[Label], of: &str) -> String {
    format!("sum{} ({of})", by(labels))
}

pub(super) fn max(labels: &[Label], of: &str) -> String {
    format!("max{} ({of})", by(labels))
}

/// The sum of a counter's rates.
pub(super) fn total(id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    sum(labels, &rate(id, matchers))
}

/// A counter's growth over the window that the board shows.
pub(super) fn growth(id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    sum(labels, &format!("increase({}[$__range])", series(id, matchers)))
}

/// A quantile of a histogram, from classic buckets or, where the Prometheus keeps none, from native ones.
pub(super) fn quantile(q: f64, id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    quantile_of(CHOSEN, WINDOW, q, id, labels, matchers)
}

/// The same, of the chosen processes and all others like them.
pub(super) fn quantile_of_peers(q: f64, id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    quantile_of(PEERS, WINDOW, q, id, labels, matchers)
}

/// The same as [`quantile`], over a window of its own.
pub(super) fn quantile_over(window: &str, q: f64, id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    quantile_of(CHOSEN, window, q, id, labels, matchers)
}

fn quantile_of(processes: &str, window: &str, q: f64, id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    let name = metric(id).prometheus().full();
    let buckets = selector(processes, &format!("{name}_bucket"), id, matchers);
    let native = selector(processes, &name, id, matchers);
    let with_le = if labels.is_empty() { "le".to_owned() } else { format!("{}, le", list(labels)) };
    format!(
        "histogram_quantile({q}, sum by ({with_le}) (rate({buckets}[{window}])))\nor\nhistogram_quantile({q}, sum{} \
         (rate({native}[{window}])))",
        by(labels)
    )
}

/// The mean of a histogram's observations.
pub(super) fn mean(id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    format!("({})\n/\n({} > 0)", added_up(id, labels, matchers), observations(id, labels, matchers))
}

/// The rate of what was observed, added up.
pub(super) fn added_up(id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    part(id, "sum", labels, matchers)
}

/// The rate of observations. As a factor it needs parentheses.
pub(super) fn observations(id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    format!("({})", part(id, "count", labels, matchers))
}

fn part(id: Id, which: &str, labels: &[Label], matchers: &[Matcher]) -> String {
    let name = metric(id).prometheus().full();
    let classic = selector(CHOSEN, &format!("{name}_{which}"), id, matchers);
    let native = selector(CHOSEN, &name, id, matchers);
    let by = by(labels);
    format!("sum{by} (rate({classic}[{WINDOW}])) or histogram_{which}(sum{by} (rate({native}[{WINDOW}])))")
}

/// The buckets of a histogram as a heatmap draws them. `on ()`: the native form only where there is no classic one.
pub(super) fn buckets(id: Id, matchers: &[Matcher]) -> String {
    let name = metric(id).prometheus().full();
    let classic = selector(CHOSEN, &format!("{name}_bucket"), id, matchers);
    let native = selector(CHOSEN, &name, id, matchers);
    format!("sum by (le) (increase({classic}[{WINDOW}]))\nor on ()\nsum (increase({native}[{WINDOW}]))")
}

/// A value without labels, or NaN where a tokometer is scraped that has no such series yet: nobody has asked it for anything.
/// Boards show NaN as "no traffic"; what is not scraped stays without data.
pub(super) fn or_idle(value: &str) -> String {
    format!("({value})\nor\nNaN * count ({})", series(Id::BuildInfo, &[]))
}

/// The same for a rate: it is 0.
pub(super) fn or_zero(value: &str) -> String {
    format!("({value})\nor\n0 * count ({})", series(Id::BuildInfo, &[]))
}

/// A share of two rates; NaN, which boards show as "no traffic", where the whole is 0.
pub(super) fn share(part: &str, whole: &str) -> String {
    format!("{part}\n/\n{whole}")
}
