//! Every name in a dashboard exists: in the metric table, the rules, or the lists below.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokometer_metrics::table::{Key, Kind, TABLE};
use tokometer_operator::promql::{Selector, read};
use tokometer_operator::rules::{Format, rules};
use tokometer_telemetry::slo::Settings;

use super::lint::selectors;
use super::{document, generated};

/// Labels that a scrape adds.
const SCRAPE: [&str; 4] = ["job", "namespace", "pod", "instance"];

/// Metrics of other sources: Prometheus itself, kube-state-metrics, cAdvisor and NVIDIA's DCGM exporter.
const FOREIGN: [&str; 12] = [
    "up",
    "ALERTS",
    "ALERTS_FOR_STATE",
    "kube_pod_init_container_info",
    "kube_pod_container_info",
    "kube_pod_container_resource_limits",
    "kube_pod_init_container_status_restarts_total",
    "kube_pod_container_status_restarts_total",
    "kube_deployment_status_observed_generation",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_periods_total",
    "DCGM_FI_DEV_GPU_UTIL",
];

/// Labels of alerts, recorded series and other exporters.
const OTHER_LABELS: [&str; 6] = ["alertname", "severity", "long", "alertstate", "sloth_id", "sloth_window"];

/// tokometer's series and the possible labels of each.
fn exported() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut all = BTreeMap::new();
    for metric in &TABLE {
        let labels = metric.keys().chain(metric.optional.iter().copied()).map(Key::label).chain(SCRAPE);
        let labels: BTreeSet<&str> = labels.collect();
        let name = metric.prometheus().full();
        if metric.kind == Kind::Histogram {
            for end in ["_bucket", "_sum", "_count"] {
                all.insert(format!("{name}{end}"), labels.clone());
            }
        }
        all.insert(name, labels);
    }
    all
}

fn recorded() -> BTreeSet<String> {
    let file: Value = serde_yaml::from_str(&rules(&Settings::default(), Format::Prometheus)).expect("rules are YAML");
    let groups = file["groups"].as_array().expect("groups").iter();
    let all = groups.flat_map(|group| group["rules"].as_array().expect("rules"));
    all.filter_map(|rule| rule["record"].as_str()).map(str::to_owned).collect()
}

struct Names {
    exported: BTreeMap<String, BTreeSet<&'static str>>,
    recorded: BTreeSet<String>,
}

impl Names {
    fn read() -> Names {
        Names { exported: exported(), recorded: recorded() }
    }

    /// Returns an error if the selector's name or one of its labels is not exported.
    fn unknown(&self, selector: &Selector) -> Option<String> {
        let name = &selector.name;
        if self.recorded.contains(name) || FOREIGN.contains(&name.as_str()) {
            return None;
        }
        let Some(labels) = self.exported.get(name) else { return Some(format!("nothing exports {name}")) };
        let wrong = selector.matchers.iter().find(|(label, _, _)| !labels.contains(label.as_str()))?;
        Some(format!("{name} has no label {}", wrong.0))
    }
}

#[test]
fn queried_series_and_labels_are_exported_or_recorded() {
    let (names, mut asked) = (Names::read(), 0);
    for dashboard in generated() {
        for (place, selector) in selectors(&document(&dashboard)) {
            asked += 1;
            assert_eq!(names.unknown(&selector), None, "{}: {place}", dashboard.name);
        }
    }
    assert!(asked > 200, "{asked}");
}

#[test]
fn unknown_names_are_reported() {
    let names = Names::read();
    let of = |expr: &str| names.unknown(&read(expr).unwrap().0[0]).unwrap();
    assert_eq!(of("tokometer_tokens_total"), "nothing exports tokometer_tokens_total");
    assert_eq!(of("tokometer_requests_total{slo=\"x\"}"), "tokometer_requests_total has no label slo");
    assert_eq!(of("slo:sli_error:ratio_rate7m"), "nothing exports slo:sli_error:ratio_rate7m");
}

#[test]
fn grouping_joining_and_legend_labels_are_known() {
    let mut known: BTreeSet<&str> = Key::ALL.iter().map(|key| key.label()).collect();
    known.extend(SCRAPE.into_iter().chain(OTHER_LABELS).chain(["le"]));
    for dashboard in generated() {
        for query in &dashboard.queries {
            for label in read(&query.expr).unwrap().1 {
                assert!(known.contains(label.as_str()), "{}: {}: {label}", dashboard.name, query.panel);
            }
            for label in query.legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()) {
                assert!(known.contains(label), "{}: {}: {label}", dashboard.name, query.panel);
                assert!(
                    query.expr.contains(label) || label == "le",
                    "{}: {} has no {label}",
                    dashboard.name,
                    query.panel
                );
            }
        }
    }
}
