//! Rule groups as Prometheus reads them.

use std::collections::BTreeMap;

use serde::Serialize;

use tokometer_telemetry::slo::RuleSettings;

/// Evaluation interval of alerts.
pub(super) const INTERVAL: &str = "30s";

/// Evaluation interval of counts per step, and length of a step: everything is counted in exactly one step.
pub(super) const STEP: &str = "5m";

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
    /// How long the condition must last before the alert fires.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub(super) pending: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keep_firing_for: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

impl Rule {
    /// An alert that fires at once.
    pub(super) fn alert(rules: &RuleSettings, name: &str, severity: &str, expr: String) -> Rule {
        Rule {
            alert: Some(name.to_owned()),
            expr,
            labels: map(&[("severity", severity), ("service", &rules.service)]),
            annotations: links(rules, name),
            ..Rule::default()
        }
    }

    /// Sets the texts of an alert.
    pub(super) fn about(mut self, summary: &str, description: &str) -> Rule {
        self.annotations.extend(map(&[("summary", summary), ("description", description.trim())]));
        self
    }

    /// Sets how long the condition must last before the alert fires.
    pub(super) fn pending(mut self, time: &str) -> Rule {
        self.pending = Some(time.to_owned());
        self
    }
}

/// Links from an alert to its runbook and to the dashboard.
pub(super) fn links(rules: &RuleSettings, alert: &str) -> BTreeMap<String, String> {
    let mut links = map(&[("runbook_url", &format!("{}/{alert}.md", rules.runbook_url))]);
    links.extend(rules.dashboard_url.iter().map(|url| ("dashboard_url".to_owned(), url.clone())));
    links
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
