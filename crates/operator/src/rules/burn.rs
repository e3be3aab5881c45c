//! Windows, and how fast a budget may burn in each.

use tokometer_telemetry::slo::Objective;

/// A pair of windows and the share of the period's budget that is spent when the long one is full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Burn {
    pub(super) long: &'static str,
    pub(super) short: &'static str,
    long_hours: f64,
    share: f64,
    pub(super) severity: &'static str,
    /// How long it must last before it is told.
    pub(super) pending: &'static str,
    /// How long it is told after it has ended, so that it does not flap.
    pub(super) keep: Option<&'static str>,
}

/// The pairs of windows (The Site Reliability Workbook, chapter 5, table 5-8, and the pair of 1d and 2h of its example).
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

/// Every window that a ratio is recorded over, shortest first.
pub(super) const WINDOWS: [&str; 7] = ["5m", "30m", "1h", "2h", "6h", "1d", "3d"];

/// A share of bad exchanges from which on nothing works, whatever the objective.
pub(super) const HARD_FAILURE: f64 = 0.9;

impl Burn {
    /// How many times faster than allowed the budget burns at the limit.
    pub(super) fn factor(&self, period_days: u32) -> f64 {
        self.share * f64::from(period_days) * 24.0 / self.long_hours
    }

    /// The share of bad exchanges above which it is told. With a low target the factor asks for more than all exchanges,
    /// which never comes: then nine of ten are enough.
    pub(super) fn threshold(&self, objective: &Objective, period_days: u32) -> f64 {
        (self.factor(period_days) * (1.0 - objective.target)).min(HARD_FAILURE)
    }

    /// True when the factor alone could never be reached, or only just.
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
    fn the_factors_of_thirty_days_are_those_of_the_workbook() {
        let factors = BURNS.map(|burn| (burn.factor(30) * 1e6).round() / 1e6);
        assert_eq!(factors, [14.4, 6.0, 3.0, 1.0]);
    }

    #[test]
    fn a_threshold_never_asks_for_more_than_nine_of_ten() {
        let objective =
            |target| Objective { name: "x".to_owned(), target, scope: Scope::default(), goal: Goal::Availability };
        let [fast, slow, ..] = BURNS;
        assert!((fast.threshold(&objective(0.99), 30) - 0.144).abs() < 1e-9);
        assert!((fast.threshold(&objective(0.9), 30) - 0.9).abs() < 1e-9);
        assert!((slow.threshold(&objective(0.9), 30) - 0.6).abs() < 1e-9);
        assert!(fast.is_clamped(&objective(0.93), 30) && !fast.is_clamped(&objective(0.95), 30));
    }
}
