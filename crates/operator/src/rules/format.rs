//! The output formats of rules.

use serde::Serialize;
use serde_json::{Value, json};

use crate::rules::objective::{BURNS, burn_alert, events, number};
use crate::rules::rule::{File, Group, runbook};
use crate::rules::time_scale::accelerate;
use crate::rules::{alerts, objective};
use tokometer_telemetry::slo::{Objective, Settings};

const HEAD: &str = "# Made by `tokometer rules` from the configuration: change that, not this.\n";

fn yaml(document: &impl Serialize) -> String {
    serde_yaml::to_string(document).expect("maps, lists and strings serialize to YAML")
}

/// Several documents in one file.
pub(super) fn stream(documents: &[Value]) -> String {
    let documents: Vec<String> = documents.iter().map(yaml).collect();
    format!("{HEAD}{}", documents.join("---\n"))
}

fn groups(settings: &Settings, time_scale: u32) -> Vec<Group> {
    let of_objectives = settings.objectives.iter().flat_map(|objective| objective::groups(&settings.rules, objective));
    let mut groups: Vec<Group> = of_objectives.chain(alerts::groups(&settings.rules)).collect();
    accelerate(&mut groups, time_scale);
    groups
}

/// The comment above the rules.
fn head(time_scale: u32) -> String {
    if time_scale <= 1 {
        return HEAD.to_owned();
    }
    format!(
        "{HEAD}# For trials: time runs {time_scale} times faster. Every window, wait and interval is divided by {time_scale}; \
         names, labels and texts keep the original ones.\n"
    )
}

pub(super) fn prometheus(settings: &Settings, time_scale: u32) -> String {
    format!("{}{}", head(time_scale), yaml(&File { groups: groups(settings, time_scale) }))
}

/// `monitoring.coreos.com/v1` of the Prometheus operator.
pub(super) fn prometheus_rule(settings: &Settings, time_scale: u32) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Object {
        api_version: &'static str,
        kind: &'static str,
        metadata: Value,
        spec: File,
    }
    let object = Object {
        api_version: "monitoring.coreos.com/v1",
        kind: "PrometheusRule",
        metadata: json!({
            "name": format!("tokometer-{}", kubernetes_name(&settings.rules.service)),
            "labels": {"app.kubernetes.io/name": "tokometer", "app.kubernetes.io/component": "rules"},
        }),
        spec: File { groups: groups(settings, time_scale) },
    };
    format!("{}{}", head(time_scale), yaml(&object))
}

/// `prometheus/v1` of Sloth (slok/sloth, pkg/prometheus/api/v1).
pub(super) fn sloth(settings: &Settings) -> String {
    let by = format!("by ({})", settings.rules.group_by.join(", "));
    let objective = |objective: &Objective| {
        let name = burn_alert(&objective.goal);
        let mut annotations = runbook(&settings.rules, name);
        annotations.extend(["summary", "description"].map(|key| (key.to_owned(), describe(objective))));
        let rate = |bad| format!("sum {by} (rate({}[{{{{.window}}}}]))", events(objective, bad));
        json!({
            "name": objective.name,
            "objective": percent(objective),
            "description": describe(objective),
            "labels": {"slo": objective.name},
            "sli": {"events": {"error_query": rate(true), "total_query": rate(false)}},
            "alerting": {
                "name": name,
                "annotations": annotations,
                "page_alert": {"labels": {"severity": "critical"}},
                "ticket_alert": {"labels": {"severity": "warning"}},
            },
        })
    };
    let document = json!({
        "version": "prometheus/v1",
        "service": settings.rules.service,
        "labels": {"service": settings.rules.service},
        "slos": settings.objectives.iter().map(objective).collect::<Vec<Value>>(),
    });
    stream(&[document])
}

/// `pyrra.dev/v1alpha1` of Pyrra (pyrra-dev/pyrra, kubernetes/api/v1alpha1).
pub(super) fn pyrra(settings: &Settings) -> String {
    let object = |objective: &Objective| {
        json!({
            "apiVersion": "pyrra.dev/v1alpha1",
            "kind": "ServiceLevelObjective",
            "metadata": {
                "name": kubernetes_name(&format!("{}-{}", settings.rules.service, objective.name)),
                "labels": {"pyrra.dev/service": settings.rules.service, "pyrra.dev/slo": objective.name},
            },
            "spec": {
                "target": number(percent(objective)),
                "window": format!("{}d", settings.rules.period_days),
                "description": describe(objective),
                "indicator": {"ratio": {
                    "errors": {"metric": events(objective, true)},
                    "total": {"metric": events(objective, false)},
                    "grouping": settings.rules.group_by,
                }},
                "alerting": {"name": burn_alert(&objective.goal)},
            },
        })
    };
    stream(&settings.objectives.iter().map(object).collect::<Vec<Value>>())
}

/// OpenSLO v1 (OpenSLO/OpenSLO, README).
pub(super) fn openslo(settings: &Settings) -> String {
    let of = &settings.rules;
    let service = kubernetes_name(&of.service);
    let document = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "openslo/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let mut documents = vec![
        document("Service", &service, json!({"description": "Requests to inference servers, measured by tokometer."})),
        document("AlertNotificationTarget", "on-call", json!({"target": "alertmanager"})),
    ];
    let policy = |long: &str| format!("{service}-burn-{long}");
    for burn in BURNS {
        let condition = json!({
            "kind": "burnrate",
            "op": "gte",
            "threshold": burn.factor(of.period_days),
            "lookbackWindow": burn.long,
            "alertAfter": burn.urgency.pending,
        });
        let name = policy(burn.long);
        documents.push(document(
            "AlertCondition",
            &name,
            json!({"severity": burn.urgency.severity, "condition": condition}),
        ));
        documents.push(document(
            "AlertPolicy",
            &name,
            json!({
                "alertWhenNoData": false,
                "alertWhenBreaching": true,
                "alertWhenResolved": true,
                "conditions": [{"conditionRef": name}],
                "notificationTargets": [{"targetRef": "on-call"}],
            }),
        ));
    }
    for objective in &settings.objectives {
        let name = kubernetes_name(&format!("{}-{}", of.service, objective.name));
        let query = |bad| {
            let query = format!("sum({})", events(objective, bad));
            json!({"metricSource": {"type": "Prometheus", "spec": {"query": query}}})
        };
        let ratio = json!({"counter": true, "bad": query(true), "total": query(false)});
        documents.push(document(
            "SLO",
            &name,
            json!({
                "service": service,
                "description": describe(objective),
                "indicator": {"metadata": {"name": name}, "spec": {"ratioMetric": ratio}},
                "timeWindow": [{"duration": format!("{}d", of.period_days), "isRolling": true}],
                "budgetingMethod": "Occurrences",
                "objectives": [{"displayName": objective.name, "target": objective.target}],
                "alertPolicies": BURNS.map(|burn| policy(burn.long)),
            }),
        ));
    }
    stream(&documents)
}

/// The target in percent, without floating-point noise.
fn percent(objective: &Objective) -> f64 {
    (objective.target * 1e8).round() / 1e6
}

/// Description of an objective, in one sentence.
fn describe(objective: &Objective) -> String {
    let limits: String =
        objective.goal.thresholds().iter().map(|(name, value)| format!(", {name} {}", number(*value))).collect();
    format!(
        "At least {} % of the requests meet the objective {}{limits}.",
        number(percent(objective)),
        objective.goal.word()
    )
}

/// Converts a name to a valid Kubernetes name (RFC 1123, section 2.1).
fn kubernetes_name(name: &str) -> String {
    name.replace('_', "-")
}
