//! PromQL expressions, built from the metric table, so that only existing metrics and labels can be used.

use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;

/// A label to aggregate by, or to match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// A label of the metric itself.
    Of(Key),
    /// The Kubernetes namespace, if the scrape adds it.
    Namespace,
    /// The Kubernetes pod, if the scrape adds it.
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

/// Labels that identify a process. Outside a cluster only `instance` exists.
pub(super) const POD: [Label; 3] = [Label::Namespace, Label::Pod, Label::Instance];

/// Legend of a process's series.
pub(super) const POD_LEGEND: &str = "{{pod}} {{instance}}";

/// The model in the response.
pub(super) const MODEL: Label = Label::Of(Key::ResponseModel);

/// Matchers of the selected processes.
pub(super) const CHOSEN: &str = r#"job=~"$job",namespace=~"$namespace",pod=~"$pod",instance=~"$instance""#;

/// Matchers of every process of the selected jobs and namespaces, for comparison.
const PEERS: &str = r#"job=~"$job",namespace=~"$namespace",pod=~".*",instance=~".+""#;

/// Window of a rate: at least four scrape intervals, and at least one point of the graph.
pub(super) const WINDOW: &str = "$__rate_interval";

/// A matcher for one of the metric's labels.
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

/// Matches requests on parsed paths; others have no tokens.
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

/// The selected series of a metric.
pub(super) fn series(id: Id, matchers: &[Matcher]) -> String {
    selector(CHOSEN, &metric(id).prometheus().full(), id, matchers)
}

/// A rate over the graph's window.
pub(super) fn rate(id: Id, matchers: &[Matcher]) -> String {
    format!("rate({}[{WINDOW}])", series(id, matchers))
}

/// Labels as a PromQL list.
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

/// A counter's increase over the dashboard's time range.
pub(super) fn growth(id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    sum(labels, &format!("increase({}[$__range])", series(id, matchers)))
}

/// A quantile of a histogram, from classic buckets, or from native ones if Prometheus stores no classic ones.
pub(super) fn quantile(q: f64, id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    quantile_of(CHOSEN, WINDOW, q, id, labels, matchers)
}

/// A quantile over the selected processes and their peers.
pub(super) fn quantile_of_peers(q: f64, id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    quantile_of(PEERS, WINDOW, q, id, labels, matchers)
}

/// [`quantile`] over a different window.
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

/// The rate of the sum of observations.
pub(super) fn added_up(id: Id, labels: &[Label], matchers: &[Matcher]) -> String {
    part(id, "sum", labels, matchers)
}

/// The rate of observations. Needs parentheses when used as a factor.
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

/// Histogram buckets in heatmap format. `on ()` selects the native form only if there is no classic one.
pub(super) fn buckets(id: Id, matchers: &[Matcher]) -> String {
    let name = metric(id).prometheus().full();
    let classic = selector(CHOSEN, &format!("{name}_bucket"), id, matchers);
    let native = selector(CHOSEN, &name, id, matchers);
    format!("sum by (le) (increase({classic}[{WINDOW}]))\nor on ()\nsum (increase({native}[{WINDOW}]))")
}

/// A value without labels, or NaN if a tokometer is scraped that has no such series yet because it has had no requests.
/// Dashboards show NaN as "no traffic"; without a scraped tokometer there is no data.
pub(super) fn or_idle(value: &str) -> String {
    format!("({value})\nor\nNaN * count ({})", series(Id::BuildInfo, &[]))
}

/// A rate without labels, or 0 if a tokometer is scraped that has no such series yet.
pub(super) fn or_zero(value: &str) -> String {
    format!("({value})\nor\n0 * count ({})", series(Id::BuildInfo, &[]))
}

/// The ratio of two rates; NaN, shown as "no traffic", if the denominator is 0.
pub(super) fn share(part: &str, whole: &str) -> String {
    format!("{part}\n/\n{whole}")
}
