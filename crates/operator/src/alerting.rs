//! What rules and dashboards know of the alerts: their thresholds, and the URLs of their runbooks.

use tokometer_telemetry::slo::{Objective, RuleSettings};

/// A pod is slow if its median decode rate is less than this share of the median of all pods with the same model.
pub(crate) const SLOW_SHARE: f64 = 0.7;

/// Urgency of an alert: a page (act now) or a ticket (act within days).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Urgency {
    pub(crate) severity: &'static str,
    /// How long the condition must last before the alert fires (`for`).
    pub(crate) pending: &'static str,
    /// How long the alert keeps firing after the condition ends, to avoid flapping (`keep_firing_for`).
    pub(crate) keep: &'static str,
}

pub(crate) const PAGE: Urgency = Urgency { severity: "critical", pending: "2m", keep: "5m" };
pub(crate) const TICKET: Urgency = Urgency { severity: "warning", pending: "1h", keep: "5m" };

/// Two windows, and the share of the error budget that is spent within the long window at the threshold burn rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Burn {
    pub(crate) long: &'static str,
    pub(crate) short: &'static str,
    long_hours: f64,
    share: f64,
    pub(crate) urgency: Urgency,
}

/// The windows of The Site Reliability Workbook, chapter 5: those of table 5-8, and 1d with 2h from its example.
pub(crate) const BURNS: [Burn; 4] = [
    Burn { long: "1h", short: "5m", long_hours: 1.0, share: 0.02, urgency: PAGE },
    Burn { long: "6h", short: "30m", long_hours: 6.0, share: 0.05, urgency: PAGE },
    Burn { long: "1d", short: "2h", long_hours: 24.0, share: 0.10, urgency: TICKET },
    Burn { long: "3d", short: "6h", long_hours: 72.0, share: 0.10, urgency: TICKET },
];

/// Share of bad requests that counts as a total outage, regardless of the objective.
pub(crate) const HARD_FAILURE: f64 = 0.9;

impl Burn {
    /// Threshold burn rate, as a multiple of the allowed rate. At least 1: below 1, the objective is met.
    pub(crate) fn factor(&self, period_days: u32) -> f64 {
        (self.share * f64::from(period_days) * 24.0 / self.long_hours).max(1.0)
    }

    /// Share of bad requests above which the alert fires. With a low target, the factor would require more than 100 %
    /// bad requests, so the threshold is at most 90 %.
    pub(crate) fn threshold(&self, objective: &Objective, period_days: u32) -> f64 {
        (self.factor(period_days) * (1.0 - objective.target)).min(HARD_FAILURE)
    }
}

/// Burn rate, as a multiple of the allowed rate, at which the alert with this long window fires.
pub(crate) fn burn_factor(long_window: &str, period_days: u32) -> Option<f64> {
    let burn = BURNS.iter().find(|burn| burn.long == long_window)?;
    // Without floating-point noise, because the values are shown to users.
    Some((burn.factor(period_days) * 1e6).round() / 1e6)
}

/// The URL of an alert's runbook.
pub(crate) fn runbook_url(rules: &RuleSettings, alert: &str) -> Option<String> {
    rules.runbook_url.as_ref().map(|base| format!("{}/{alert}.md", base.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokometer_telemetry::slo::{Goal, Scope};

    #[test]
    fn burn_factors_of_thirty_days_match_the_sre_workbook() {
        let factors = BURNS.map(|burn| (burn.factor(30) * 1e6).round() / 1e6);
        assert_eq!(factors, [14.4, 6.0, 3.0, 1.0]);
    }

    #[test]
    fn threshold_is_at_most_ninety_percent() {
        let objective =
            |target| Objective { name: "x".to_owned(), target, scope: Scope::default(), goal: Goal::Availability };
        let [fast, slow, ..] = BURNS;
        assert!((fast.threshold(&objective(0.99), 30) - 0.144).abs() < 1e-9);
        assert!((fast.threshold(&objective(0.9), 30) - 0.9).abs() < 1e-9);
        assert!((slow.threshold(&objective(0.9), 30) - 0.6).abs() < 1e-9);
    }
}
