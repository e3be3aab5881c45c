//! Series that the rules record for the dashboards of a whole fleet.
//!
//! Histograms of hundreds of processes are too many series for a dashboard over hours. The rules record their rates,
//! added up over the processes, and quantiles of each process. Both are derived from the dashboards' queries.

use std::collections::{BTreeMap, BTreeSet};

use crate::promql::{Selector, read};
use tokometer_metrics::table::{Kind, Metric, TABLE};

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

/// The recording rules that these queries of the dashboards need.
pub(crate) fn recordings<'a>(queries: impl Iterator<Item = &'a str>) -> Vec<Recording> {
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (selector, grouping) in queries.flat_map(parsed) {
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
pub(crate) fn parsed(expr: &str) -> impl Iterator<Item = (Selector, Vec<String>)> + use<> {
    let (selectors, grouping) = read(expr).expect("a generated expression, which the tests read");
    selectors.into_iter().map(move |selector| (selector, grouping.clone()))
}

/// The labels that an expression reads of a selector.
pub(crate) fn labels<'a>(selector: &'a Selector, grouping: &'a [String]) -> impl Iterator<Item = String> + 'a {
    selector.matchers.iter().map(|(label, _, _)| label).chain(grouping).cloned()
}

/// The metric of a series.
pub(crate) fn metric_of(series: &str) -> Option<&'static Metric> {
    let is_part = |metric: &Metric| {
        let rest = series.strip_prefix(&metric.prometheus().full());
        rest.is_some_and(|rest| rest.is_empty() || metric.kind == Kind::Histogram && PARTS.contains(&rest))
    };
    TABLE.iter().find(|metric| is_part(metric))
}

const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];
