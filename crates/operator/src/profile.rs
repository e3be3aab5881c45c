//! The metrics that rules and dashboards read.

use std::collections::{BTreeMap, BTreeSet};

use crate::dashboards::dashboards;
use crate::fleet::{labels, metric_of, parsed, recordings};
use crate::rules::expressions;
use tokometer_metrics::table::Scope;
use tokometer_telemetry::slo::Settings;

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
    let queries = dashboards.iter().flat_map(|dashboard| &dashboard.queries).map(|query| &*query.expr);
    let recorded: BTreeSet<String> = recordings(queries).into_iter().map(|recording| recording.expr).collect();
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
