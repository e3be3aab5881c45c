//! Alerts that need no objective: frozen or unreachable engines, problems of tokometer itself, and daily budgets.
//! `alerts.yaml` defines them, with metric identifiers in braces.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::alerting::SLOW_SHARE;
use crate::placeholder::{Definitions, expand, metric};
use crate::rules::rule::{Group, Rule, place};
use tokometer_metrics::table;
use tokometer_metrics::table::{Id, Key};
use tokometer_telemetry::slo::RuleSettings;

const DEFINITION: &str = include_str!("alerts.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Expressions that several rules use.
    definitions: Definitions,
    groups: Vec<GroupDefinition>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupDefinition {
    name: String,
    interval: String,
    rules: Vec<RuleDefinition>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RuleDefinition {
    Recording(Recording),
    Alert(Alert),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    record: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    expr: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    alert: String,
    severity: String,
    #[serde(rename = "for")]
    pending: Option<String>,
    /// `uid` of the linked dashboard.
    dashboard: String,
    expr: String,
    summary: String,
    description: String,
    first_step: String,
    /// The first step without Kubernetes, where the labels `namespace` and `pod` are empty; required for a step that
    /// contains them.
    elsewhere: Option<String>,
}

/// The groups: alerts on engines, alerts on tokometer, and daily budgets.
pub(super) fn groups(rules: &RuleSettings) -> Vec<Group> {
    let file: File = serde_yaml::from_str(DEFINITION).expect("a committed file, which the tests read");
    // A budget applies to all its models together, so budgets are not grouped by model.
    let apart: Vec<&str> =
        rules.group_by.iter().map(String::as_str).filter(|label| *label != Key::Model.label()).collect();
    let by = apart.iter().copied().chain([Key::Budget.label()]).collect::<Vec<&str>>().join(", ");
    // A tokometer process may have several servers, such as data-parallel ranks.
    let server = ["namespace", "pod", "instance", Key::ServerAddress.label(), Key::ServerPort.label()];
    let more = apart.iter().copied().filter(|label| !server.contains(label));
    let server_labels = server.into_iter().chain(more).collect::<Vec<&str>>().join(", ");
    let pairs = server.into_iter().chain(rules.group_by.iter().map(String::as_str).filter(|l| !server.contains(l)));
    let pair_labels = pairs.collect::<Vec<&str>>().join(", ");
    let limit = table::metric(Id::BudgetLimit).prometheus().full();
    let in_namespace = place(&["namespace".to_owned()]);
    let texts = [
        ("service", rules.service.clone()),
        ("of_budget", place(&apart.iter().map(|label| (*label).to_owned()).collect::<Vec<String>>())),
        ("server", format!("{{{{ or $labels.pod $labels.instance }}}}{in_namespace}")),
        ("of_group", place(&rules.group_by)),
        ("group", rules.group_by.join(", ")),
        ("server_labels", server_labels),
        ("pair_labels", pair_labels),
        ("slow_share", SLOW_SHARE.to_string()),
        ("budget_limit", limit),
        ("by", by),
    ];
    let texts: Definitions = texts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
    let rule = |rule| match rule {
        RuleDefinition::Recording(rule) => recording(rule, &[&texts, &file.definitions]),
        RuleDefinition::Alert(rule) => alert(rule, rules, &texts, &file.definitions),
    };
    let group = |group: GroupDefinition| Group {
        name: group.name,
        interval: group.interval,
        rules: group.rules.into_iter().map(|one| rule(one).expect("a committed file, which the tests read")).collect(),
    };
    file.groups.into_iter().map(group).collect()
}

fn query(expr: &str, definitions: &[&Definitions]) -> Result<String, String> {
    expand(expr, definitions, |id| Ok(metric(id)?.prometheus().full()))
}

fn recording(rule: Recording, definitions: &[&Definitions]) -> Result<Rule, String> {
    let expr = query(&rule.expr, definitions)?;
    Ok(Rule { record: Some(rule.record), expr, labels: rule.labels, ..Rule::default() })
}

fn alert(alert: Alert, rules: &RuleSettings, texts: &Definitions, definitions: &Definitions) -> Result<Rule, String> {
    // Replaces only known names, because double braces in texts are Prometheus templates.
    let text = |text: &str| {
        texts.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    };
    let expr = query(&alert.expr, &[texts, definitions])?;
    let label = if alert.first_step.contains("$labels.pod") { "pod" } else { "namespace" };
    let first_step = match alert.elsewhere {
        None => alert.first_step,
        Some(elsewhere) => {
            format!("{{{{ if $labels.{label} }}}}{}{{{{ else }}}}{elsewhere}{{{{ end }}}}", alert.first_step)
        }
    };
    let rule = Rule::alert(rules, &alert.alert, &alert.severity, expr)
        .about(&text(&alert.summary), &text(&alert.description), &text(&first_step))
        .dashboard(rules, &alert.dashboard, &["namespace", "pod", "instance"]);
    Ok(Rule { pending: alert.pending, ..rule })
}
