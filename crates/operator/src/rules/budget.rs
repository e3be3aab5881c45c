//! Rules of one objective: error ratio per window, error budget, and burn rate alerts.

use std::collections::BTreeMap;

use crate::rules::burn::BURNS;
use crate::rules::burn::Burn;
use crate::rules::burn::HARD_FAILURE;
use crate::rules::burn::WINDOWS;
use crate::rules::file::Group;
use crate::rules::file::Rule;
use crate::rules::file::map;
use crate::rules::names::burn_alert;
use crate::rules::names::events;
use crate::rules::names::number;
use crate::rules::names::recorded;
use crate::rules::names::sloth_id;
use tokometer_telemetry::slo::Objective;
use tokometer_telemetry::slo::Settings;

/// Evaluation interval of the alerts.
const INTERVAL: &str = "30s";

/// Evaluation interval of the period's budget, and step of its counts: each request is counted in exactly one step.
const STEP: &str = "5m";

/// The rule groups of an objective.
pub(super) fn groups(settings: &Settings, objective: &Objective) -> Vec<Group> {
    let name = |what: &str| format!("tokometer-slo-{}-{what}", objective.name);
    let rules = Rules { settings, objective };
    vec![
        Group { name: name("ratios"), interval: INTERVAL.to_owned(), rules: rules.ratios() },
        Group { name: name("budget"), interval: STEP.to_owned(), rules: rules.budget() },
        Group { name: name("alerts"), interval: INTERVAL.to_owned(), rules: rules.alerts() },
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
        rule.pending = Some(burn.pending.to_owned());
        rule.keep_firing_for = burn.keep.map(str::to_owned);
        rule
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
        rule.pending = Some("2m".to_owned());
        rule.keep_firing_for = Some("5m".to_owned());
        rule
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
        let mut rule = self.alert("LLMErrorBudgetExhausted", expr, "warning", &description);
        rule.pending = Some("15m".to_owned());
        rule
    }

    fn absent(&self) -> Rule {
        let expr = format!("absent({})", events(self.objective, false));
        let description = "No tokometer that is scraped judges this objective: nobody would be told if it were missed.";
        let mut rule = self.alert("LLMSLOMetricAbsent", expr, "warning", description);
        rule.pending = Some("10m".to_owned());
        rule
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
        let of = &self.settings.rules;
        let mut labels = map(&[("severity", severity), ("slo", &self.objective.name), ("service", &of.service)]);
        // Sloth's dashboards list alerts by these labels.
        labels.extend(map(&[("sloth_service", &of.service), ("sloth_slo", &self.objective.name)]));
        let whose: String = of.group_by.iter().map(|label| format!(" {label}={{{{ $labels.{label} }}}}")).collect();
        let percent = number(self.objective.target * 100.0);
        let summary = format!("{}: objective {} of {percent} %,{whose}", of.service, self.objective.name);
        Rule {
            alert: Some(name.to_owned()),
            expr,
            labels,
            annotations: annotations(self.settings, name, &summary, description),
            ..Rule::default()
        }
    }
}

/// The annotations of an alert: texts and links.
pub(super) fn annotations(
    settings: &Settings,
    name: &str,
    summary: &str,
    description: &str,
) -> BTreeMap<String, String> {
    let runbook = format!("{}/{name}.md", settings.rules.runbook_url);
    let mut annotations = map(&[("summary", summary), ("description", description.trim()), ("runbook_url", &runbook)]);
    if let Some(dashboard) = &settings.rules.dashboard_url {
        annotations.insert("dashboard_url".to_owned(), dashboard.clone());
    }
    annotations
}
