//! Data model of a Prometheus rule file.

use std::collections::BTreeMap;

use serde::Serialize;

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

impl Rule {
    pub(super) fn record(name: impl Into<String>, expr: impl Into<String>, labels: &[(&str, &str)]) -> Rule {
        Rule { record: Some(name.into()), expr: expr.into(), labels: map(labels), ..Rule::default() }
    }
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
