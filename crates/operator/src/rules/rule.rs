//! Rule groups in the format of Prometheus.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::alerting::runbook_url;
use tokometer_telemetry::slo::RuleSettings;

/// Evaluation interval of alerts.
pub(super) const INTERVAL: &str = "30s";

/// Evaluation interval of counts per step, and length of a step. Both are equal, so each event is counted in exactly
/// one step.
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
    /// An alert without `for`: it fires immediately.
    pub(super) fn alert(rules: &RuleSettings, name: &str, severity: &str, expr: String) -> Rule {
        Rule {
            alert: Some(name.to_owned()),
            expr,
            labels: map(&[("severity", severity), ("service", &rules.service)]),
            annotations: runbook(rules, name),
            ..Rule::default()
        }
    }

    /// Sets an alert's texts: the summary (what, where and how fast), the details, and the first command or query.
    pub(super) fn about(mut self, summary: &str, description: &str, first_step: &str) -> Rule {
        let texts = [("summary", summary), ("description", description.trim()), ("first_step", first_step)];
        self.annotations.extend(map(&texts));
        self
    }

    /// Links the dashboard with this `uid`, and sets its variables from these labels.
    pub(super) fn dashboard(mut self, rules: &RuleSettings, uid: &str, variables: &[&str]) -> Rule {
        let Some(base) = &rules.dashboard_url else { return self };
        let set =
            |label: &&str| format!("{{{{ with $labels.{label} }}}}&var-{label}={{{{ . | urlquery }}}}{{{{ end }}}}");
        let variables: String = variables.iter().map(set).collect();
        let url = format!("{}/d/{uid}?from=now-3h&to=now{variables}", base.trim_end_matches('/'));
        self.annotations.insert("dashboard_url".to_owned(), url);
        self
    }

    /// Sets how long the condition must last before the alert fires.
    pub(super) fn pending(mut self, time: &str) -> Rule {
        self.pending = Some(time.to_owned());
        self
    }
}

/// The link from an alert to its runbook.
pub(super) fn runbook(rules: &RuleSettings, alert: &str) -> BTreeMap<String, String> {
    runbook_url(rules, alert).map(|url| ("runbook_url".to_owned(), url)).into_iter().collect()
}

/// A text template that names where an alert applies, such as ` of llama in namespace prod`. Empty labels are omitted.
pub(super) fn place(labels: &[String]) -> String {
    let mut labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    // The model first, the namespace last.
    labels.sort_by_key(|label| match *label {
        "model" => 0,
        "namespace" => 2,
        _ => 1,
    });
    let part = |label: &str| match label {
        "model" => "of ".to_owned(),
        "namespace" => "in namespace ".to_owned(),
        other => format!("{other}="),
    };
    let parts =
        labels.iter().map(|label| format!("{{{{ with $labels.{label} }}}} {}{{{{ . }}}}{{{{ end }}}}", part(label)));
    parts.collect()
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
