//! Alerts that need no objective: hanging or unreachable engines, problems of tokometer itself, and daily budgets.
//! `alerts.yaml` lists them, with metrics by their identifier in braces.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::placeholder::{Definitions, expand, metric};
use crate::rules::rule::{Group, Rule};
use tokometer_telemetry::export::table;
use tokometer_telemetry::export::table::{Id, Key};
use tokometer_telemetry::slo::RuleSettings;

const DEFINITION: &str = include_str!("alerts.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupDefinition {
    name: String,
    interval: String,
    rules: Vec<RuleDefinition>,
}

/// A recording rule with its labels, or an alert with its severity, texts and `for`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleDefinition {
    record: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    alert: Option<String>,
    #[serde(default)]
    severity: String,
    #[serde(rename = "for")]
    pending: Option<String>,
    expr: String,
    #[serde(default)]
    summary: String,
    #[serde(default)]
    description: String,
}

/// The group of alerts on engines, the group on tokometer, and that of the daily budgets.
pub(super) fn groups(rules: &RuleSettings) -> Vec<Group> {
    let groups: Vec<GroupDefinition> =
        serde_yaml::from_str(DEFINITION).expect("a committed file, which the tests read");
    // A budget applies to all its models together.
    let apart: Vec<&str> =
        rules.group_by.iter().map(String::as_str).filter(|label| *label != Key::Model.label()).collect();
    let of_budget: String = apart.iter().map(|label| format!(" {label}={{{{ $labels.{label} }}}}")).collect();
    let by = apart.into_iter().chain([Key::Budget.label()]).collect::<Vec<&str>>().join(", ");
    let limit = table::metric(Id::BudgetLimit).prometheus().full();
    let definitions =
        [("service", rules.service.clone()), ("of_budget", of_budget), ("by", by), ("budget_limit", limit)];
    let definitions = definitions.into_iter().map(|(name, text)| (name.to_owned(), text)).collect();
    let rule = |rule| self::rule(rule, rules, &definitions).expect("a committed file, which the tests read");
    let group = |group: GroupDefinition| Group {
        name: group.name,
        interval: group.interval,
        rules: group.rules.into_iter().map(rule).collect(),
    };
    groups.into_iter().map(group).collect()
}

fn rule(rule: RuleDefinition, rules: &RuleSettings, definitions: &Definitions) -> Result<Rule, String> {
    let expr = expand(&rule.expr, &[definitions], |id| Ok(metric(id)?.prometheus().full()))?;
    let Some(name) = rule.alert else {
        return Ok(Rule { record: rule.record, expr, labels: rule.labels, ..Rule::default() });
    };
    // Double braces in texts are Prometheus'.
    let text = |text: &str| {
        definitions.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    };
    let alert = Rule::alert(rules, &name, &rule.severity, expr).about(&text(&rule.summary), &text(&rule.description));
    Ok(Rule { pending: rule.pending, ..alert })
}
