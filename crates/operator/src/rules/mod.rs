//! Rules for Prometheus and compatible systems, generated from the objectives and the metric table.
//!
//! They use counters of good and bad requests, never quantiles. A burn rate is the share of bad requests divided by the
//! share that the objective allows (Google, The Site Reliability Workbook, chapter 5: multiwindow, multi-burn-rate
//! alerts).

mod budget;
mod burn;
mod catalogue;
mod documents;
mod file;
mod names;
mod pace;
mod spending;

pub use names::ALERTS;

use tokometer_telemetry::slo::Objective;
use tokometer_telemetry::slo::Settings;

/// Output format of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A Prometheus rule file (`rule_files`).
    #[default]
    Prometheus,
    /// An object of the Prometheus operator.
    PrometheusRule,
    /// A specification for Sloth, which generates its own rules.
    Sloth,
    /// Objects for Pyrra, which generates its own rules.
    Pyrra,
    /// OpenSLO v1 documents.
    OpenSlo,
}

impl Format {
    /// Every format, in the order of the documentation.
    pub const ALL: [Format; 5] =
        [Format::Prometheus, Format::PrometheusRule, Format::Sloth, Format::Pyrra, Format::OpenSlo];

    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Prometheus => "prometheus",
            Format::PrometheusRule => "prometheusrule",
            Format::Sloth => "sloth",
            Format::Pyrra => "pyrra",
            Format::OpenSlo => "openslo",
        }
    }

    /// True when the format contains windows; false when the consuming tool generates them.
    pub fn has_windows(self) -> bool {
        matches!(self, Format::Prometheus | Format::PrometheusRule)
    }
}

/// Burn rate threshold of each pair of windows, as a multiple of the allowed rate. The fastest alert comes first.
pub fn burn_factors(period_days: u32) -> [f64; 4] {
    // Without floating-point noise, because the values are shown to users.
    burn::BURNS.map(|burn| (burn.factor(period_days) * 1e6).round() / 1e6)
}

/// Share of bad requests above which the fast burn alert of this objective fires, if both windows exceed it.
pub fn fast_threshold(objective: &Objective, period_days: u32) -> f64 {
    let [fast, ..] = burn::BURNS;
    fast.threshold(objective, period_days)
}

/// The rules as YAML.
pub fn rules(settings: &Settings, format: Format) -> String {
    rules_at(settings, format, 1)
}

/// The rules as YAML with time scaled for trials: every window, wait and interval is divided by `time_scale`. Formats
/// without windows ([`Format::has_windows`]) are not changed.
pub fn rules_at(settings: &Settings, format: Format, time_scale: u32) -> String {
    match format {
        Format::Prometheus => documents::prometheus(settings, time_scale),
        Format::PrometheusRule => documents::prometheus_rule(settings, time_scale),
        Format::Sloth => documents::sloth(settings),
        Format::Pyrra => documents::pyrra(settings),
        Format::OpenSlo => documents::openslo(settings),
    }
}
