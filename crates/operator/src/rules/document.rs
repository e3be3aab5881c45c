//! Rule files: their structure, their time scale for trials, and the output formats.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use serde_json::json;

use crate::rules::alerts;
use crate::rules::objective;
use crate::rules::objective::BURNS;
use crate::rules::objective::burn_alert;
use crate::rules::objective::events;
use crate::rules::objective::number;
use tokometer_telemetry::slo::Objective;
use tokometer_telemetry::slo::Settings;

/// Rule groups.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct File {
    pub(super) groups: Vec<Group>,
}

/// Rules that are evaluated in sequence.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) interval: String,
    pub(super) rules: Vec<Rule>,
}

/// A recording rule or an alert.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Rule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) record: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) alert: Option<String>,
    pub(super) expr: String,
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub(super) pending: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keep_firing_for: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

impl Group {
    pub(super) fn new(name: &str, interval: &str, rules: Vec<Rule>) -> Group {
        Group { name: name.to_owned(), interval: interval.to_owned(), rules }
    }
}

impl Rule {
    /// An alert without condition and texts.
    pub(super) fn alert(settings: &Settings, name: &str, severity: &str) -> Rule {
        Rule {
            alert: Some(name.to_owned()),
            labels: map(&[("severity", severity), ("service", &settings.rules.service)]),
            annotations: links(settings, name),
            ..Rule::default()
        }
    }

    /// Sets the condition.
    pub(super) fn when(mut self, expr: impl Into<String>) -> Rule {
        self.expr = expr.into();
        self
    }

    /// Sets the texts of an alert.
    pub(super) fn about(mut self, summary: &str, description: &str) -> Rule {
        self.annotations.extend(map(&[("summary", summary), ("description", description.trim())]));
        self
    }

    /// Sets how long the condition must last before the alert fires (`for`).
    pub(super) fn pending(mut self, time: &str) -> Rule {
        self.pending = Some(time.to_owned());
        self
    }

    pub(super) fn record(name: impl Into<String>, expr: impl Into<String>, labels: &[(&str, &str)]) -> Rule {
        Rule { record: Some(name.into()), expr: expr.into(), labels: map(labels), ..Rule::default() }
    }
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Evaluation interval of counts per step, and length of a step: everything is counted in exactly one step.
pub(super) const STEP: &str = "5m";

/// Links to an alert's runbook and to the dashboard.
fn links(settings: &Settings, name: &str) -> BTreeMap<String, String> {
    let mut links = map(&[("runbook_url", &format!("{}/{name}.md", settings.rules.runbook_url))]);
    links.extend(settings.rules.dashboard_url.iter().map(|url| ("dashboard_url".to_owned(), url.clone())));
    links
}

/// Seconds per day, as written in expressions that compute the time of day.
pub(super) const DAY: &str = "86400";

/// Milliseconds per PromQL duration unit.
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("w", 604_800_000)];

/// Divides every window, wait and interval of these groups. Names, labels and texts keep the original values, so that
/// dashboards still find the series.
fn accelerate(groups: &mut [Group], scale: u32) {
    if scale <= 1 {
        return;
    }
    for group in groups {
        group.interval = shorter(&group.interval, scale);
        for rule in &mut group.rules {
            rule.expr = expression(&rule.expr, scale);
            for wait in [&mut rule.pending, &mut rule.keep_firing_for].into_iter().flatten() {
                *wait = shorter(wait, scale);
            }
        }
    }
}

/// Divides the durations in brackets (`[1h]`, `[10m:30s]`) and [`DAY`] in an expression. Quoted text is not changed.
fn expression(text: &str, scale: u32) -> String {
    let day = DAY.parse::<f64>().map(|seconds| format!("{}", seconds / f64::from(scale)));
    let day = day.unwrap_or_else(|_| DAY.to_owned());
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(['[', '"']) {
        let (before, from) = rest.split_at(at);
        out.push_str(&before.replace(DAY, &day));
        let close = if from.starts_with('[') { ']' } else { '"' };
        let end = from.get(1..).and_then(|inside| inside.find(close)).map_or(from.len(), |end| end + 2);
        let (inside, after) = from.split_at(end);
        if close == ']' {
            let range = inside.trim_matches(['[', ']']).split(':').map(|part| shorter(part, scale));
            out.push_str(&format!("[{}]", range.collect::<Vec<_>>().join(":")));
        } else {
            out.push_str(inside);
        }
        rest = after;
    }
    out.push_str(&rest.replace(DAY, &day));
    out
}

/// Divides a duration with one unit: in seconds if the result is whole, otherwise in milliseconds; at least 1 ms.
fn shorter(text: &str, scale: u32) -> String {
    let unit = UNITS.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?.parse::<u64>().ok()?, ms)));
    let Some((number, ms)) = unit else { return text.to_owned() };
    let ms = (number.saturating_mul(*ms) / u64::from(scale)).max(1);
    if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") }
}

const HEAD: &str = "# Made by `tokometer rules` from the configuration: change that, not this.\n";

fn yaml(document: &impl Serialize) -> String {
    serde_yaml::to_string(document).expect("maps, lists and strings serialize to YAML")
}

/// Several documents in one file.
fn stream(documents: &[Value]) -> String {
    let documents: Vec<String> = documents.iter().map(yaml).collect();
    format!("{HEAD}{}", documents.join("---\n"))
}

fn groups(settings: &Settings, time_scale: u32) -> Vec<Group> {
    let of_objectives = settings.objectives.iter().flat_map(|objective| objective::groups(settings, objective));
    let mut groups: Vec<Group> = of_objectives.chain(alerts::groups(settings)).collect();
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
        let alert = Rule::alert(settings, name, "critical").about(&describe(objective), &describe(objective));
        let rate = |bad| format!("sum {by} (rate({}[{{{{.window}}}}]))", events(objective, bad));
        json!({
            "name": objective.name,
            "objective": percent(objective),
            "description": describe(objective),
            "labels": {"slo": objective.name},
            "sli": {"events": {"error_query": rate(true), "total_query": rate(false)}},
            "alerting": {
                "name": name,
                "annotations": alert.annotations,
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
        document("Service", &service, json!({"description": "An inference server, as tokometer sees it."})),
        document("AlertNotificationTarget", "on-call", json!({"target": "alertmanager"})),
    ];
    let policy = |long: &str| format!("{service}-burn-{long}");
    for burn in BURNS {
        let condition = json!({
            "kind": "burnrate",
            "op": "gte",
            "threshold": burn.factor(of.period_days),
            "lookbackWindow": burn.long,
            "alertAfter": burn.pending,
        });
        let name = policy(burn.long);
        documents.push(document("AlertCondition", &name, json!({"severity": burn.severity, "condition": condition})));
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
    format!("{} % of the exchanges are good by {}{limits}.", number(percent(objective)), objective.goal.word())
}

/// Converts a name to a valid Kubernetes name (RFC 1123, section 2.1).
fn kubernetes_name(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_is_divided_and_never_zero() {
        for (text, scale, expected) in [
            ("5m", 60, "5s"),
            ("1h", 60, "60s"),
            ("30s", 20, "1500ms"),
            ("30d", 60, "43200s"),
            ("500ms", 10, "50ms"),
            ("1ms", 60, "1ms"),
            ("5x", 60, "5x"),
        ] {
            assert_eq!(shorter(text, scale), expected, "{text} by {scale}");
        }
    }

    #[test]
    fn brackets_are_scaled_and_names_kept() {
        let text = r#"deriv(slo:sli_error:ratio_rate1h{a="[1h] 86400"}[10m:30s]) > 0 and time() % 86400 > rate(x[1d])"#;
        let expected =
            r#"deriv(slo:sli_error:ratio_rate1h{a="[1h] 86400"}[10s:500ms]) > 0 and time() % 1440 > rate(x[1440s])"#;
        assert_eq!(expression(text, 60), expected);
        assert_eq!(expression("a[1h", 60), "a[60s]");
    }
}
