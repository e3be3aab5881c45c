//! Rules of one objective: error ratio per window, error budget, and burn rate alerts.

use crate::rules::rule::{Group, INTERVAL, Rule, STEP, map};
use tokometer_telemetry::export::table::{Id, Key, metric};
use tokometer_telemetry::slo::{Goal, Objective, RuleSettings};

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

/// Selector of the evaluated requests of an objective: all of them, or only the bad ones.
pub(super) fn events(objective: &Objective, bad: bool) -> String {
    let verdict = if bad { format!(",{}=\"bad\"", Key::Verdict.label()) } else { String::new() };
    let series = metric(Id::SloEvents).prometheus().full();
    format!("{series}{{{}=\"{}\"{verdict}}}", Key::Slo.label(), objective.name)
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

/// The rule groups of an objective.
pub(super) fn groups(rules: &RuleSettings, objective: &Objective) -> Vec<Group> {
    let group = |what: &str, interval: &str, rules: Vec<Rule>| Group {
        name: format!("tokometer-slo-{}-{what}", objective.name),
        interval: interval.to_owned(),
        rules,
    };
    let of = Rules { rules, objective };
    vec![
        group("ratios", INTERVAL, of.ratios()),
        group("budget", STEP, of.budget()),
        group("alerts", INTERVAL, of.alerts()),
    ]
}

struct Rules<'a> {
    rules: &'a RuleSettings,
    objective: &'a Objective,
}

impl Rules<'_> {
    /// The id by which Sloth's dashboards find an objective.
    fn sloth_id(&self) -> String {
        format!("{}-{}", self.rules.service, self.objective.name)
    }

    /// A function of the evaluated requests, by the grouping labels.
    fn sum(&self, function: &str, bad: bool, window: &str) -> String {
        format!("sum by ({}) ({function}({}[{window}]))", self.rules.group_by.join(", "), events(self.objective, bad))
    }

    /// A recording rule with the labels that Sloth's dashboards use, and ours.
    fn record(&self, name: &str, window: Option<&str>, expr: String) -> Rule {
        let id = self.sloth_id();
        let (service, slo) = (self.rules.service.as_str(), self.objective.name.as_str());
        let mut labels = map(&[
            ("sloth_id", &id),
            ("sloth_service", service),
            ("sloth_slo", slo),
            ("service", service),
            ("slo", slo),
        ]);
        labels.extend(window.map(|window| ("sloth_window".to_owned(), window.to_owned())));
        Rule { record: Some(name.to_owned()), expr, labels, ..Rule::default() }
    }

    /// Selector of a recorded series.
    fn recorded(&self, name: &str) -> String {
        format!("{name}{{sloth_id=\"{}\"}}", self.sloth_id())
    }

    /// The share of bad requests. Without requests the series is absent, not NaN.
    fn ratios(&self) -> Vec<Rule> {
        let ratios = WINDOWS.into_iter().map(|window| {
            let expr = format!("{}\n/\n({} > 0)", self.sum("rate", true, window), self.sum("rate", false, window));
            self.record(&format!("slo:sli_error:ratio_rate{window}"), Some(window), expr)
        });
        let counts = ["5m"].into_iter().chain(BURNS.map(|burn| burn.long)).map(|window| {
            self.record(&format!("slo:sli_bad:increase{window}"), Some(window), self.sum("increase", true, window))
        });
        ratios.chain(counts).collect()
    }

    /// The period's ratio is computed from counts: a mean of ratios would weight an idle night like a busy day.
    fn budget(&self) -> Vec<Rule> {
        let days = self.rules.period_days;
        let budget = number(1.0 - self.objective.target);
        let period = format!("slo:sli_error:ratio_rate{days}d");
        let (counted_bad, counted) = (self.recorded("slo:sli_bad:step5m"), self.recorded("slo:sli_all:step5m"));
        let ratio = format!("sum_over_time({counted_bad}[{days}d])\n/\n(sum_over_time({counted}[{days}d]) > 0)");
        let burn = |of: &str| format!("max without (sloth_window) ({}) / {budget}", self.recorded(of));
        let left = format!("1 - {}", self.recorded("slo:period_burn_rate:ratio"));
        let target = number(self.objective.target);
        let mut info = self.record("sloth_slo_info", None, "vector(1)".to_owned());
        info.labels.extend(map(&[
            ("sloth_mode", "tokometer"),
            ("sloth_spec", "tokometer"),
            ("sloth_version", env!("CARGO_PKG_VERSION")),
            ("sloth_objective", &number(self.objective.target * 100.0)),
        ]));
        vec![
            self.record("slo:sli_bad:step5m", None, self.sum("increase", true, STEP)),
            self.record("slo:sli_all:step5m", None, self.sum("increase", false, STEP)),
            self.record(&period, Some(&format!("{days}d")), ratio),
            self.record("slo:objective:ratio", None, format!("vector({target})")),
            self.record("slo:error_budget:ratio", None, format!("vector({budget})")),
            self.record("slo:time_period:days", None, format!("vector({days})")),
            self.record("slo:current_burn_rate:ratio", None, burn("slo:sli_error:ratio_rate5m")),
            self.record("slo:period_burn_rate:ratio", None, burn(&period)),
            self.record("slo:period_error_budget_remaining:ratio", None, left),
            info,
            // In the same group as the series that it reads: from another group these would be missing for a moment
            // every 5 minutes, which equals Prometheus' lookback period (since 3.0 it excludes the left boundary).
            self.exhausted(),
        ]
    }

    fn alerts(&self) -> Vec<Rule> {
        let absent = self.alert(
            "LLMSLOMetricAbsent",
            format!("absent({})", events(self.objective, false)),
            "warning",
            "No scraped tokometer evaluates this objective: no alert would fire if it were missed.",
        );
        let burns = BURNS.iter().map(|burn| self.burn(burn));
        burns.chain([self.hard_failure(), absent.pending("10m")]).collect()
    }

    /// Fires when both windows exceed the threshold: the burn is significant and ongoing.
    fn burn(&self, burn: &Burn) -> Rule {
        let days = self.rules.period_days;
        let threshold = number(burn.threshold(self.objective, days));
        let clamped = if burn.is_clamped(self.objective, days) {
            " The objective is so low that this window cannot burn faster: the limit is nine bad of ten."
        } else {
            ""
        };
        let description = format!(
            "{{{{ $value | humanizePercentage }}}} of the requests in the last {long} were bad; {threshold} is the limit of \
             this alert, and {allowed} is what the objective allows.{clamped} At {factor} times the allowed rate a whole \
             budget lasts {lasts} days. {left}",
            long = burn.long,
            allowed = number(1.0 - self.objective.target),
            factor = number((burn.factor(days) * 100.0).round() / 100.0),
            lasts = number((f64::from(days) / burn.factor(days) * 10.0).round() / 10.0),
            left = self.left(),
        );
        let rule = self.burn_alert((burn.long, burn.short), &threshold, burn.severity, &description);
        Rule { keep_firing_for: burn.keep.map(str::to_owned), ..rule.pending(burn.pending) }
    }

    /// Total outage: fires within minutes, whatever the objective.
    fn hard_failure(&self) -> Rule {
        let description = format!(
            "{{{{ $value | humanizePercentage }}}} of the requests in the last 5 minutes were bad. {}",
            self.left()
        );
        let rule = self.burn_alert(("5m", "5m"), &number(HARD_FAILURE), "critical", &description);
        Rule { keep_firing_for: Some("5m".to_owned()), ..rule.pending("2m") }
    }

    /// An alert on the ratio of bad requests in a long and a short window. A minimum number of bad requests in the long
    /// one is required.
    fn burn_alert(&self, (long, short): (&str, &str), threshold: &str, severity: &str, description: &str) -> Rule {
        let above = |window: &str| {
            let ratio = self.recorded(&format!("slo:sli_error:ratio_rate{window}"));
            format!("max without (sloth_window) ({ratio} > {threshold})")
        };
        let bad = self.recorded(&format!("slo:sli_bad:increase{long}"));
        let enough = format!("max without (sloth_window) ({bad} >= {})", self.rules.min_bad_events);
        let mut conditions = vec![above(long), above(short), enough];
        conditions.dedup();
        let mut rule = self.alert(burn_alert(&self.objective.goal), conditions.join("\nand\n"), severity, description);
        rule.labels.extend(map(&[("long", long), ("short", short)]));
        rule
    }

    fn exhausted(&self) -> Rule {
        let days = self.rules.period_days;
        let expr = format!(
            "{} < 0\nand\nsum_over_time({}[{days}d]) >= {}",
            self.recorded("slo:period_error_budget_remaining:ratio"),
            self.recorded("slo:sli_bad:step5m"),
            self.rules.min_bad_events
        );
        let description =
            format!("More requests were bad in the last {days} days than the objective allows. {}", self.left());
        self.alert("LLMErrorBudgetExhausted", expr, "warning", &description).pending("15m")
    }

    /// The remaining budget, queried when the alert's text is rendered.
    fn left(&self) -> String {
        let by = &self.rules.group_by;
        let id = self.sloth_id();
        let matchers: String = by.iter().map(|label| format!(",{label}=%q")).collect();
        let values: String = by.iter().map(|label| format!(" $labels.{label}")).collect();
        format!(
            "{{{{ with printf `slo:period_error_budget_remaining:ratio{{sloth_id=\"{id}\"{matchers}}}`{values} | query \
             }}}}Left of the budget: {{{{ . | first | value | humanizePercentage }}}}.{{{{ end }}}}"
        )
    }

    fn alert(&self, name: &str, expr: String, severity: &str, description: &str) -> Rule {
        let RuleSettings { service, group_by, .. } = self.rules;
        let whose: String = group_by.iter().map(|label| format!(" {label}={{{{ $labels.{label} }}}}")).collect();
        let percent = number(self.objective.target * 100.0);
        let slo = self.objective.name.as_str();
        let summary = format!("{service}: objective {slo} of {percent} %,{whose}");
        let mut rule = Rule::alert(self.rules, name, severity, expr).about(&summary, description);
        // Sloth's dashboards list alerts by the labels with its name.
        rule.labels.extend(map(&[("slo", slo), ("sloth_service", service), ("sloth_slo", slo)]));
        rule
    }
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
        assert!(fast.is_clamped(&objective(0.93), 30) && !fast.is_clamped(&objective(0.95), 30));
    }
}
