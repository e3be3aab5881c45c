//! Alert windows, and their burn rate thresholds.

use tokometer_telemetry::slo::Objective;

/// A pair of windows, and the share of the period's budget that a burn at the threshold spends within the long window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Burn {
    pub(super) long: &'static str,
    pub(super) short: &'static str,
    long_hours: f64,
    share: f64,
    pub(super) severity: &'static str,
    /// How long the condition must last before the alert fires (`for`).
    pub(super) pending: &'static str,
    /// How long the alert keeps firing after the condition ends, to avoid flapping (`keep_firing_for`).
    pub(super) keep: Option<&'static str>,
}

/// The pairs of windows (The Site Reliability Workbook, chapter 5, table 5-8, and the pair of 1d and 2h of its
/// example).
pub(super) const BURNS: [Burn; 4] = [
    Burn {
        long: "1h",
        short: "5m",
        long_hours: 1.0,
        share: 0.02,
        severity: "critical",
        pending: "2m",
        keep: Some("5m"),
    },
    Burn { long: "6h", short: "30m", long_hours: 6.0, share: 0.05, severity: "critical", pending: "15m", keep: None },
    Burn { long: "1d", short: "2h", long_hours: 24.0, share: 0.10, severity: "warning", pending: "1h", keep: None },
    Burn { long: "3d", short: "6h", long_hours: 72.0, share: 0.10, severity: "warning", pending: "3h", keep: None },
];

/// Every window with a recorded ratio, shortest first.
pub(super) const WINDOWS: [&str; 7] = ["5m", "30m", "1h", "2h", "6h", "1d", "3d"];

/// Share of bad requests that counts as a total outage, whatever the objective.
pub(super) const HARD_FAILURE: f64 = 0.9;

impl Burn {
    /// Burn rate at the threshold, as a multiple of the allowed rate.
    pub(super) fn factor(&self, period_days: u32) -> f64 {
        self.share * f64::from(period_days) * 24.0 / self.long_hours
    }

    /// Share of bad requests above which the alert fires. With a low target the factor would require more than 100 %
    /// bad requests, so the threshold is at most 90 %.
    pub(super) fn threshold(&self, objective: &Objective, period_days: u32) -> f64 {
        (self.factor(period_days) * (1.0 - objective.target)).min(HARD_FAILURE)
    }

    /// True when the threshold is limited to 90 %.
    pub(super) fn is_clamped(&self, objective: &Objective, period_days: u32) -> bool {
        self.factor(period_days) * (1.0 - objective.target) > HARD_FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokometer_telemetry::slo::Goal;
    use tokometer_telemetry::slo::Scope;

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
        assert!(fast.is_clamped(&objective(0.93), 30) && !fast.is_clamped(&objective(0.95), 30));
    }
}
