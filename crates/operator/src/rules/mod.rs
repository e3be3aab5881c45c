//! Rules for Prometheus and compatible systems, generated from the objectives and the metric catalog.
//!
//! Rules use counters of good and bad requests, never quantiles. A burn rate is the share of bad requests divided by
//! the share that the objective allows (Google, The Site Reliability Workbook, chapter 5: multiwindow, multi-burn-rate
//! alerts).

mod alerts;
mod format;
mod inhibition;
mod objective;
mod rule;
mod time_scale;

use crate::alerting::BURNS;
use tokometer_metrics::closed_enum;
use tokometer_telemetry::slo::{Objective, Settings};

closed_enum! {
    /// Output format of the rules.
    pub enum Format {
        /// A Prometheus rule file (`rule_files`).
        Prometheus = "prometheus",
        /// A `PrometheusRule` object for the Prometheus operator.
        PrometheusRule = "prometheusrule",
        /// A specification for Sloth, which generates its own rules.
        Sloth = "sloth",
        /// Objects for Pyrra, which generates its own rules.
        Pyrra = "pyrra",
        /// OpenSLO v1 documents.
        OpenSlo = "openslo",
        /// Inhibition rules for Alertmanager: `inhibit_rules` of its configuration.
        Alertmanager = "alertmanager",
    }
}

impl Format {
    /// True when the format contains windows; false when the consuming tool generates them.
    pub fn has_windows(self) -> bool {
        matches!(self, Format::Prometheus | Format::PrometheusRule)
    }
}

/// The objective's fast burn alert fires if the share of bad requests exceeds this threshold in both windows.
pub fn fast_threshold(objective: &Objective, period_days: u32) -> f64 {
    let [fast, ..] = BURNS;
    fast.threshold(objective, period_days)
}

/// Every expression of the rules.
pub(crate) fn expressions(settings: &Settings) -> Vec<String> {
    format::groups(settings, 1).into_iter().flat_map(|group| group.rules).map(|rule| rule.expr).collect()
}

/// The rules as YAML.
pub fn rules(settings: &Settings, format: Format) -> String {
    rules_at(settings, format, 1)
}

/// The rules as YAML with time scaled for trials: every window, wait and interval is divided by `time_scale`. Formats
/// without windows ([`Format::has_windows`]) are not changed.
pub fn rules_at(settings: &Settings, format: Format, time_scale: u32) -> String {
    match format {
        Format::Prometheus => format::prometheus(settings, time_scale),
        Format::PrometheusRule => format::prometheus_rule(settings, time_scale),
        Format::Sloth => format::sloth(settings),
        Format::Pyrra => format::pyrra(settings),
        Format::OpenSlo => format::openslo(settings),
        Format::Alertmanager => inhibition::alertmanager(settings),
    }
}
