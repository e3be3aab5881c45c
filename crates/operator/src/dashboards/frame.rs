//! Parts shared by all dashboards: variables, annotations and links.

use serde_json::Value;
use serde_json::json;

use crate::dashboards::panel::Source;
use crate::dashboards::promql::CHOSEN;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;

/// The tag by which the dashboards link to each other.
pub(super) const TAG: &str = "tokometer";

fn name(id: Id) -> String {
    metric(id).prometheus().full()
}

/// A variable with the values of a label.
fn choice(variable: &str, label: &str, of: &str, all: &str, description: &str) -> Value {
    let query = format!("label_values({of}, {label})");
    json!({
        "name": variable,
        "label": variable,
        "description": description,
        "type": "query",
        "datasource": Source::Prometheus.reference(),
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        // Refresh on every change of the time range, because pods come and go.
        "refresh": 2,
        "sort": 1,
        "regex": "",
        "multi": true,
        "includeAll": true,
        "allValue": all,
        "current": {"selected": true, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
        "skipUrlSync": false,
    })
}

fn source(variable: &str, label: &str, kind: &str, description: &str) -> Value {
    json!({
        "name": variable,
        "label": label,
        "description": description,
        "type": "datasource",
        "query": kind,
        "regex": "",
        "refresh": 1,
        "multi": false,
        "includeAll": false,
        "options": [],
        "hide": 0,
        "skipUrlSync": false,
    })
}

/// The variables. "All" is `.*` for labels that may be absent: there is no namespace outside a cluster, and no model
/// before the first response.
pub(super) fn variables(by_objective: bool) -> Vec<Value> {
    let info = name(Id::BuildInfo);
    let exchanges = name(Id::Exchanges);
    let of_jobs = r#"job=~"$job",namespace=~"$namespace""#;
    let mut all = vec![
        source("datasource", "Data Source", "prometheus", "The Prometheus that scrapes tokometer."),
        choice("job", "job", &info, ".+", "Scrape jobs with a tokometer in them."),
        choice("namespace", "namespace", &format!("{info}{{job=~\"$job\"}}"), ".*", "Kubernetes namespaces."),
        choice(
            "model",
            Key::ResponseModel.label(),
            &format!("{exchanges}{{{of_jobs}}}"),
            ".*",
            "Models that answered. With one chosen, requests that nobody answered are left out of what is told by model.",
        ),
        choice("pod", "pod", &format!("{info}{{{of_jobs}}}"), ".*", "Pods; none outside of a cluster."),
        choice(
            "instance",
            "instance",
            &format!("{info}{{{of_jobs},pod=~\"$pod\"}}"),
            ".+",
            "Scraped addresses, one of each tokometer.",
        ),
    ];
    if by_objective {
        let objectives = format!("{}{{{CHOSEN}}}", name(Id::SloObjective));
        all.push(choice("slo", Key::Slo.label(), &objectives, ".+", "Objectives."));
    }
    all.push(source("traces", "Traces", "tempo", "Where tokometer's traces are; needed for links to traces alone."));
    all
}

fn annotation(title: &str, expr: &str, color: &str, tags: &str, text: &str) -> Value {
    json!({
        "name": title,
        "datasource": Source::Prometheus.reference(),
        "enable": true,
        "hide": false,
        "expr": expr,
        "iconColor": color,
        "step": "30s",
        "tagKeys": tags,
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": false,
    })
}

/// Annotations for events that may explain a change in a graph.
pub(super) fn annotations() -> Vec<Value> {
    let objective = format!("{}{{{CHOSEN}}}", name(Id::SloObjective));
    let threshold = format!("{}{{{CHOSEN}}}", name(Id::SloThreshold));
    let started = format!("{}{{{CHOSEN}}}", name(Id::StartTime));
    let info = format!("{}{{{CHOSEN}}}", name(Id::BuildInfo));
    let version = Key::Version.label();
    vec![
        json!({
            "name": "Annotations & Alerts",
            "builtIn": 1,
            "type": "dashboard",
            "datasource": {"type": "grafana", "uid": "-- Grafana --"},
            "enable": true,
            "hide": true,
            "iconColor": "rgba(0, 211, 255, 1)",
        }),
        annotation(
            "Alert",
            r#"max by (alertname, severity, slo, namespace, model) (ALERTS{alertname=~"LLM.+",alertstate="firing"})"#,
            "red",
            "severity,slo,namespace",
            "{{alertname}} {{slo}} {{namespace}} {{model}}",
        ),
        annotation(
            "Deployment changed",
            r#"changes(kube_deployment_status_observed_generation{namespace=~"$namespace"}[2m]) > 0"#,
            "blue",
            "namespace",
            "{{deployment}}",
        ),
        annotation(
            "Version of tokometer",
            // A gap in the scrapes does not count as a new version.
            &format!(
                "count by ({version}) ({info}) unless on ({version}) count by ({version}) (last_over_time({info}[1h] offset 2m))"
            ),
            "purple",
            version,
            "{{version}}",
        ),
        annotation(
            "Tokometer restarted",
            &format!("changes({started}[2m]) > 0"),
            "orange",
            "namespace",
            "{{pod}} {{instance}}",
        ),
        annotation(
            "Objectives changed",
            &format!("sum by (slo) (changes({objective}[2m])) > 0 or sum by (slo) (changes({threshold}[2m])) > 0"),
            "yellow",
            "slo",
            "{{slo}}: a new configuration is in force",
        ),
    ]
}

/// Links to the other dashboards, keeping time range and variables.
pub(super) fn links() -> Value {
    json!([{
        "type": "dashboards",
        "title": "Tokometer",
        "tags": [TAG],
        "asDropdown": true,
        "keepTime": true,
        "includeVars": true,
        "targetBlank": false,
        "icon": "external link",
        "tooltip": "The other boards of tokometer",
        "url": "",
    }])
}
