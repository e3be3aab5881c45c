//! Rules for Prometheus and its kin, made from the objectives and the metric table.
//!
//! They ask counters of good and bad exchanges, never quantiles. A burn rate is the share of bad exchanges by the share that
//! the objective allows (Google, The Site Reliability Workbook, chapter 5: multiwindow, multi-burn-rate alerts).

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

/// The form of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A rule file of Prometheus (`rule_files`).
    #[default]
    Prometheus,
    /// An object of the Prometheus operator.
    PrometheusRule,
    /// A specification for Sloth, which makes its own rules.
    Sloth,
    /// Objects for Pyrra, which makes its own rules.
    Pyrra,
    /// OpenSLO v1 documents.
    OpenSlo,
}

impl Format {
    /// Every format, in the order of the documentation.
    pub const ALL: [Format; 5] =
        [Format::Prometheus, Format::PrometheusRule, Format::Sloth, Format::Pyrra, Format::OpenSlo];

    /// What it is called on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Prometheus => "prometheus",
            Format::PrometheusRule => "prometheusrule",
            Format::Sloth => "sloth",
            Format::Pyrra => "pyrra",
            Format::OpenSlo => "openslo",
        }
    }

    /// True when the rules have windows of their own; false where whoever reads them makes some.
    pub fn has_windows(self) -> bool {
        matches!(self, Format::Prometheus | Format::PrometheusRule)
    }
}

/// How many times faster than allowed a budget burns at the limit of each pair of windows, the one that pages first before the
/// others.
pub fn burn_factors(period_days: u32) -> [f64; 4] {
    // Without the noise of binary fractions: people read them.
    burn::BURNS.map(|burn| (burn.factor(period_days) * 1e6).round() / 1e6)
}

/// The share of bad exchanges above which the fast alert of this objective fires, if both of its windows are full of it.
pub fn fast_threshold(objective: &Objective, period_days: u32) -> f64 {
    let [fast, ..] = burn::BURNS;
    fast.threshold(objective, period_days)
}

/// The rules as YAML.
pub fn rules(settings: &Settings, format: Format) -> String {
    rules_at(settings, format, 1)
}

/// The rules as YAML, in which time runs so many times faster: every window, wait and interval is divided by it. For trials.
/// Of a format that has no windows ([`Format::has_windows`]) they are what they are.
pub fn rules_at(settings: &Settings, format: Format, time_scale: u32) -> String {
    match format {
        Format::Prometheus => documents::prometheus(settings, time_scale),
        Format::PrometheusRule => documents::prometheus_rule(settings, time_scale),
        Format::Sloth => documents::sloth(settings),
        Format::Pyrra => documents::pyrra(settings),
        Format::OpenSlo => documents::openslo(settings),
    }
}
