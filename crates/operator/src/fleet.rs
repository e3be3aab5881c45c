//! What a whole fleet needs of the metrics: series that are recorded for the dashboards, and the metrics that rules and
//! dashboards read.
//!
//! Histograms of hundreds of processes are too many series for a dashboard over hours. The rules record their rates,
//! added up over the processes, and quantiles of each process. Both are derived from the dashboards' queries.

use std::collections::{BTreeMap, BTreeSet};

use crate::dashboards::dashboards;
use crate::promql::{Selector, read};
use crate::rules::expressions;
use tokometer_metrics::table::{Kind, Metric, Scope, TABLE};
use tokometer_telemetry::slo::Settings;

/// Window of the recorded rates: four scrapes of 30 s, so that failed scrapes leave no gaps.
const RATE: &str = "2m";

/// Window of the recorded quantiles of one process, which has fewer requests.
const PROCESS: &str = "5m";

/// The label `instance` of the series that are added up over the processes.
pub(crate) const INSTANCE: &str = "fleet";

/// Name of the rates of these series, added up over the processes.
pub(crate) fn aggregated(series: &str) -> String {
    format!("fleet:{series}:rate{RATE}")
}

/// Name of this quantile (such as `0.1`) of the histogram `metric`, by process.
pub(crate) fn by_process(metric: &str, quantile: &str) -> String {
    format!("pod:{metric}:q{}", quantile.replace("0.", ""))
}

/// A recording rule: name, expression, and whether the series are added up over the processes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Recording {
    pub(crate) record: String,
    pub(crate) expr: String,
    pub(crate) is_aggregated: bool,
}

/// The recording rules that the dashboards need.
pub(crate) fn recordings(settings: &Settings) -> Vec<Recording> {
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (selector, grouping) in
        dashboards(settings).iter().flat_map(|dashboard| &dashboard.queries).flat_map(|query| parsed(&query.expr))
    {
        if selector.name.starts_with("fleet:") || selector.name.starts_with("pod:") {
            used.entry(selector.name.clone()).or_default().extend(labels(&selector, &grouping));
        }
    }
    let recording = |(record, used): (String, BTreeSet<String>)| {
        let mut parts = record.split(':');
        let (level, series, what) = (parts.next()?, parts.next()?, parts.next()?);
        let metric = metric_of(series)?;
        let own = metric.keys().chain(metric.optional.iter().copied()).map(|key| key.label());
        let own: Vec<&str> = own.filter(|label| used.contains(*label)).collect();
        if level == "fleet" {
            let le = series.ends_with("_bucket").then_some("le");
            let by = ["job", "namespace"].into_iter().chain(own).chain(le).collect::<Vec<_>>().join(", ");
            let expr = format!("sum by ({by}) (rate({series}[{RATE}]))");
            return Some(Recording { record, expr, is_aggregated: true });
        }
        let by = ["job", "namespace", "pod", "instance"].into_iter().chain(own).collect::<Vec<_>>().join(", ");
        let quantile = format!("0.{}", what.strip_prefix('q')?);
        // A quantile without samples is NaN, which `>= 0` drops.
        let expr = format!(
            "(\n  histogram_quantile({quantile}, sum by ({by}, le) (rate({series}_bucket[{PROCESS}])))\n  or\n  \
             histogram_quantile({quantile}, sum by ({by}) (rate({series}[{PROCESS}])))\n) >= 0"
        );
        Some(Recording { record, expr, is_aggregated: false })
    };
    used.into_iter().filter_map(recording).collect()
}

/// The selectors of an expression, each with all labels by which the expression groups.
fn parsed(expr: &str) -> impl Iterator<Item = (Selector, Vec<String>)> + use<> {
    let (selectors, grouping) = read(expr).expect("a generated expression, which the tests read");
    selectors.into_iter().map(move |selector| (selector, grouping.clone()))
}

fn labels<'a>(selector: &'a Selector, grouping: &'a [String]) -> impl Iterator<Item = String> + 'a {
    selector.matchers.iter().map(|(label, _, _)| label).chain(grouping).cloned()
}

/// The metric of a series.
fn metric_of(series: &str) -> Option<&'static Metric> {
    let is_part = |metric: &Metric| {
        let rest = series.strip_prefix(&metric.prometheus().full());
        rest.is_some_and(|rest| rest.is_empty() || metric.kind == Kind::Histogram && PARTS.contains(&rest))
    };
    TABLE.iter().find(|metric| is_part(metric))
}

const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

/// What rules and dashboards read of one metric.
#[derive(Clone, Debug, Default)]
struct Read {
    buckets: bool,
    by_rules: bool,
    labels: BTreeSet<String>,
}

/// The metrics that rules and dashboards read, one per line: its name; `buckets` if buckets are read, and `zero` if a
/// rule reads it; and the labels that are read, for metrics with the labels of a request.
pub fn profile(settings: &Settings) -> String {
    let mut all: BTreeMap<String, Read> = BTreeMap::new();
    let of_rules = expressions(settings);
    let dashboards = dashboards(settings);
    let of_dashboards = dashboards.iter().flat_map(|dashboard| dashboard.expressions());
    let recorded = recordings(settings).into_iter().map(|recording| recording.expr).collect::<BTreeSet<String>>();
    let exprs = of_rules.into_iter().map(|expr| (!recorded.contains(&expr), expr));
    for (by_rules, expr) in exprs.chain(of_dashboards.map(|expr| (false, expr))) {
        for (selector, grouping) in parsed(&expr) {
            let Some(metric) = metric_of(&selector.name) else { continue };
            let read = all.entry(metric.prometheus().full()).or_default();
            read.buckets |= selector.name.ends_with("_bucket");
            read.by_rules |= by_rules;
            if matches!(metric.scope, Scope::GenAi | Scope::Request) {
                let used: Vec<String> = labels(&selector, &grouping).collect();
                let keys = metric.keys().chain(metric.optional.iter().copied()).map(|key| key.label());
                read.labels.extend(keys.filter(|key| used.iter().any(|label| label == key)).map(str::to_owned));
            }
        }
    }
    let line = |(name, read): (&String, &Read)| {
        let flags = [(read.buckets, "buckets"), (read.by_rules, "zero")].into_iter();
        let flags = flags.filter(|(is, _)| *is).map(|(_, flag)| flag.to_owned());
        let words: Vec<String> = [name.clone()].into_iter().chain(flags).chain(read.labels.iter().cloned()).collect();
        words.join(" ") + "\n"
    };
    all.iter().map(line).collect()
}
