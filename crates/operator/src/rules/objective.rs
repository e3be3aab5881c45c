//! Rules of one objective: error ratio per window, error budget, and burn rate alerts.

use crate::rules::document::Group;
use crate::rules::document::Rule;
use crate::rules::document::STEP;
use crate::rules::document::map;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;
use tokometer_telemetry::slo::Goal;
use tokometer_telemetry::slo::Objective;
use tokometer_telemetry::slo::Settings;

/// The burn rate alert for this kind of objective.
pub(super) fn burn_alert(goal: &Goal) -> &'static str {
    match goal {
        Goal::Availability => "LLMAvailabilityErrorBudgetBurn",
        Goal::FirstToken { .. } => "LLMTTFTErrorBudgetBurn",
        Goal::DecodeRate { .. } => "LLMDecodeRateErrorBudgetBurn",
        Goal::Stall { .. } => "LLMStallErrorBudgetBurn",
        Goal::Goodput => "LLMGoodputErrorBudgetBurn",
    }
}

/// The full Prometheus name of a metric.
pub(super) fn series(id: Id) -> String {
    metric(id).prometheus().full()
}

/// Selector of the evaluated requests of an objective: all of them, or only the bad ones.
pub(super) fn events(objective: &Objective, bad: bool) -> String {
    let verdict = if bad { format!(",{}=\"bad\"", Key::Verdict.label()) } else { String::new() };
    format!("{}{{{}=\"{}\"{verdict}}}", series(Id::SloEvents), Key::Slo.label(), objective.name)
}

/// The id by which Sloth's dashboards find an objective.
pub(super) fn sloth_id(settings: &Settings, objective: &Objective) -> String {
    format!("{}-{}", settings.rules.service, objective.name)
}

/// Selector of a recorded series of one objective.
pub(super) fn recorded(settings: &Settings, objective: &Objective, name: &str) -> String {
    format!("{name}{{sloth_id=\"{}\"}}", sloth_id(settings, objective))
}

/// Formats a number for PromQL and for people, without floating-point noise.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.10}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

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

/// Evaluation interval of the alerts.
const INTERVAL: &str = "30s";

/// The rule groups of an objective.
pub(super) fn groups(settings: &Settings, objective: &Objective) -> Vec<Group> {
    let name = |what: &str| format!("tokometer-slo-{}-{what}", objective.name);
    let rules = Rules { settings, objective };
    vec![
        Group::new(&name("ratios"), INTERVAL, rules.ratios()),
        Group::new(&name("budget"), STEP, rules.budget()),
        Group::new(&name("alerts"), INTERVAL, rules.alerts()),
    ]
}

struct Rules<'a> {
    settings: &'a Settings,
    objective: &'a Objective,
}

impl Rules<'_> {
    fn by(&self) -> String {
        format!("by ({})", self.settings.rules.group_by.join(", "))
    }

    /// A recording rule with the labels that Sloth's dashboards use, and ours.
    fn record(&self, name: &str, window: Option<&str>, expr: String) -> Rule {
        let id = sloth_id(self.settings, self.objective);
        let (service, slo) = (self.settings.rules.service.as_str(), self.objective.name.as_str());
        let mut labels = vec![
            ("sloth_id", id.as_str()),
            ("sloth_service", service),
            ("sloth_slo", slo),
            ("service", service),
            ("slo", slo),
        ];
        labels.extend(window.map(|window| ("sloth_window", window)));
        Rule::record(name, expr, &labels)
    }

    fn recorded(&self, name: &str) -> String {
        recorded(self.settings, self.objective, name)
    }

    /// The share of bad requests. Without requests the series is absent, not NaN.
    fn ratios(&self) -> Vec<Rule> {
        let (by, bad, all) = (self.by(), events(self.objective, true), events(self.objective, false));
        let mut rules = Vec::new();
        for window in WINDOWS {
            let expr = format!("sum {by} (rate({bad}[{window}]))\n/\n(sum {by} (rate({all}[{window}])) > 0)");
            rules.push(self.record(&format!("slo:sli_error:ratio_rate{window}"), Some(window), expr));
        }
        for window in ["5m"].into_iter().chain(BURNS.map(|burn| burn.long)) {
            let expr = format!("sum {by} (increase({bad}[{window}]))");
            rules.push(self.record(&format!("slo:sli_bad:increase{window}"), Some(window), expr));
        }
        rules
    }

    /// The period's ratio is computed from counts: a mean of ratios would weight an idle night like a busy day.
    fn budget(&self) -> Vec<Rule> {
        let (by, bad, all) = (self.by(), events(self.objective, true), events(self.objective, false));
        let days = self.settings.rules.period_days;
        let budget = 1.0 - self.objective.target;
        let period = format!("slo:sli_error:ratio_rate{days}d");
        let (counted_bad, counted) = (self.recorded("slo:sli_bad:step5m"), self.recorded("slo:sli_all:step5m"));
        let burn = |of: &str| format!("max without (sloth_window) ({}) / {}", self.recorded(of), number(budget));
        let target = number(self.objective.target);
        let percent = number(self.objective.target * 100.0);
        let mut info = self.record("sloth_slo_info", None, "vector(1)".to_owned());
        info.labels.extend(map(&[
            ("sloth_mode", "tokometer"),
            ("sloth_spec", "tokometer"),
            ("sloth_version", env!("CARGO_PKG_VERSION")),
            ("sloth_objective", &percent),
        ]));
        vec![
            self.record("slo:sli_bad:step5m", None, format!("sum {by} (increase({bad}[{STEP}]))")),
            self.record("slo:sli_all:step5m", None, format!("sum {by} (increase({all}[{STEP}]))")),
            self.record(
                &period,
                Some(&format!("{days}d")),
                format!("sum_over_time({counted_bad}[{days}d])\n/\n(sum_over_time({counted}[{days}d]) > 0)"),
            ),
            self.record("slo:objective:ratio", None, format!("vector({target})")),
            self.record("slo:error_budget:ratio", None, format!("vector({})", number(budget))),
            self.record("slo:time_period:days", None, format!("vector({days})")),
            self.record("slo:current_burn_rate:ratio", None, burn("slo:sli_error:ratio_rate5m")),
            self.record("slo:period_burn_rate:ratio", None, burn(&period)),
            self.record(
                "slo:period_error_budget_remaining:ratio",
                None,
                format!("1 - {}", self.recorded("slo:period_burn_rate:ratio")),
            ),
            info,
            // In the same group as the series that it reads: from another group these would be missing for a moment
            // every 5 minutes, which equals Prometheus' lookback period (since 3.0 it excludes the left boundary).
            self.exhausted(),
        ]
    }

    fn alerts(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = BURNS.iter().map(|burn| self.burn(burn)).collect();
        rules.push(self.hard_failure());
        rules.push(self.absent());
        rules
    }

    /// Fires when both windows exceed the threshold: the burn is significant and ongoing. A minimum number of bad
    /// requests is required.
    fn burn(&self, burn: &Burn) -> Rule {
        let days = self.settings.rules.period_days;
        let threshold = number(burn.threshold(self.objective, days));
        let above = |window: &str| {
            let ratio = self.recorded(&format!("slo:sli_error:ratio_rate{window}"));
            format!("max without (sloth_window) ({ratio} > {threshold})")
        };
        let guard = self.guard(burn.long);
        let clamped = if burn.is_clamped(self.objective, days) {
            " The objective is so low that this window cannot burn faster: the limit is nine bad of ten."
        } else {
            ""
        };
        let lasts = number((f64::from(days) / burn.factor(days) * 10.0).round() / 10.0);
        let description = format!(
            "{{{{ $value | humanizePercentage }}}} of the exchanges in the last {long} were bad; {threshold} is the limit of \
             this alert, and {allowed} is what the objective allows.{clamped} At {factor} times the allowed rate a whole \
             budget lasts {lasts} days. {left}",
            long = burn.long,
            allowed = number(1.0 - self.objective.target),
            factor = number((burn.factor(days) * 100.0).round() / 100.0),
            left = self.left(),
        );
        let expr = format!("{}\nand\n{}\nand\n{guard}", above(burn.long), above(burn.short));
        let mut rule = self.alert(burn_alert(&self.objective.goal), expr, burn.severity, &description);
        rule.labels.extend(map(&[("long", burn.long), ("short", burn.short)]));
        rule.keep_firing_for = burn.keep.map(str::to_owned);
        rule.pending(burn.pending)
    }

    /// Total outage: fires within minutes, whatever the objective.
    fn hard_failure(&self) -> Rule {
        let ratio = self.recorded("slo:sli_error:ratio_rate5m");
        let above = format!("max without (sloth_window) ({ratio} > {})", number(HARD_FAILURE));
        let description = format!(
            "{{{{ $value | humanizePercentage }}}} of the exchanges in the last 5 minutes were bad. {}",
            self.left()
        );
        let expr = format!("{above}\nand\n{}", self.guard("5m"));
        let mut rule = self.alert(burn_alert(&self.objective.goal), expr, "critical", &description);
        rule.labels.extend(map(&[("long", "5m"), ("short", "5m")]));
        rule.keep_firing_for = Some("5m".to_owned());
        rule.pending("2m")
    }

    fn guard(&self, window: &str) -> String {
        let bad = self.recorded(&format!("slo:sli_bad:increase{window}"));
        format!("max without (sloth_window) ({bad} >= {})", self.settings.rules.min_bad_events)
    }

    fn exhausted(&self) -> Rule {
        let days = self.settings.rules.period_days;
        let counted = self.recorded("slo:sli_bad:step5m");
        let expr = format!(
            "{} < 0\nand\nsum_over_time({counted}[{days}d]) >= {}",
            self.recorded("slo:period_error_budget_remaining:ratio"),
            self.settings.rules.min_bad_events
        );
        let description =
            format!("More exchanges were bad in the last {days} days than the objective allows. {}", self.left());
        self.alert("LLMErrorBudgetExhausted", expr, "warning", &description).pending("15m")
    }

    fn absent(&self) -> Rule {
        let expr = format!("absent({})", events(self.objective, false));
        let description = "No tokometer that is scraped judges this objective: nobody would be told if it were missed.";
        self.alert("LLMSLOMetricAbsent", expr, "warning", description).pending("10m")
    }

    /// The remaining budget, queried when the alert's text is rendered.
    fn left(&self) -> String {
        let by = &self.settings.rules.group_by;
        let id = sloth_id(self.settings, self.objective);
        let matchers: String = by.iter().map(|label| format!(",{label}=%q")).collect();
        let values: String = by.iter().map(|label| format!(" $labels.{label}")).collect();
        format!(
            "{{{{ with printf `slo:period_error_budget_remaining:ratio{{sloth_id=\"{id}\"{matchers}}}`{values} | query \
             }}}}Left of the budget: {{{{ . | first | value | humanizePercentage }}}}.{{{{ end }}}}"
        )
    }

    fn alert(&self, name: &str, expr: String, severity: &str, description: &str) -> Rule {
        let (settings, of) = (self.settings, &self.settings.rules);
        let whose: String = of.group_by.iter().map(|label| format!(" {label}={{{{ $labels.{label} }}}}")).collect();
        let percent = number(self.objective.target * 100.0);
        let summary = format!("{}: objective {} of {percent} %,{whose}", of.service, self.objective.name);
        let mut rule = Rule::alert(settings, name, severity).when(expr).about(&summary, description);
        // Sloth's dashboards list alerts by the labels with its name.
        let slo = self.objective.name.as_str();
        rule.labels.extend(map(&[("slo", slo), ("sloth_service", &of.service), ("sloth_slo", slo)]));
        rule
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
