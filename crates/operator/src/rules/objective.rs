//! Rules of one objective: error ratio per window, error budget, and burn rate alerts.

use crate::alerting::{BURNS, HARD_FAILURE, PAGE, TICKET, Urgency};
use crate::rules::rule::{Group, INTERVAL, Rule, STEP, map, place};
use tokometer_metrics::table::{Id, Key, metric};
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

/// Selector of an objective's evaluated requests: all requests, or only bad ones.
pub(super) fn events(objective: &Objective, bad: bool) -> String {
    let verdict = if bad { format!(",{}=\"bad\"", Key::Verdict.label()) } else { String::new() };
    let series = metric(Id::SloEvents).prometheus().full();
    format!("{series}{{{}=\"{}\"{verdict}}}", Key::Slo.label(), objective.name)
}

/// Selector of the requests that an objective did not receive during outages, estimated.
fn lost(objective: &Objective) -> String {
    format!("{}{{{}=\"{}\"}}", metric(Id::SloLost).prometheus().full(), Key::Slo.label(), objective.name)
}

/// Formats a number for PromQL and for people, without floating-point noise.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.10}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The windows whose ratios are recorded, each after the windows from which it is added up.
const WINDOWS: [&str; 7] = ["5m", "30m", "1h", "2h", "6h", "1d", "3d"];

/// Minutes of a window such as `30m`, `1h` or `3d`.
fn minutes(window: &str) -> u32 {
    let units = [("m", 1), ("h", 60), ("d", 1440)];
    let parse = |(unit, minutes): &(&str, u32)| Some(window.strip_suffix(unit)?.parse::<u32>().ok()? * minutes);
    units.iter().find_map(parse).unwrap_or(5)
}

/// The shorter window from which a window is added up, and how many of them.
fn parts(window: &str) -> Option<(&'static str, u32)> {
    Some(match window {
        "30m" => ("5m", 6),
        "1h" => ("30m", 2),
        "2h" => ("1h", 2),
        "6h" => ("1h", 6),
        "1d" => ("6h", 4),
        "3d" => ("1d", 3),
        _ => return None,
    })
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
        group("ratios", INTERVAL, of.counts().into_iter().chain(of.ratios()).collect()),
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

    /// The labels by which requests are grouped.
    fn by(&self) -> String {
        self.rules.group_by.join(", ")
    }

    /// A recording rule with the labels of Sloth's dashboards and of tokometer's.
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

    /// The count of the last 5 minutes, once for each step.
    fn step(&self, count: &str) -> String {
        format!("max without (sloth_window) ({})", self.recorded(count))
    }

    /// Selector of a recorded series.
    fn recorded(&self, name: &str) -> String {
        format!("{name}{{sloth_id=\"{}\"}}", self.sloth_id())
    }

    /// The bad or all requests of the last 5 minutes, with those that were lost in outages. Only these rules read the
    /// series of every pod; all other windows are sums of their results.
    fn counts(&self) -> Vec<Rule> {
        let by = self.by();
        // Clients of a dead server reach the healthy servers of its model, if there are any.
        let lost = format!(
            "sum by ({by}) (increase({}[5m]))\nunless on ({by})\nmin_over_time(tokometer:servers_healthy:count[5m]) > 0",
            lost(self.objective)
        );
        // Requests without a response count only in these objectives.
        let has_lost = matches!(self.objective.goal, Goal::Availability | Goal::Goodput);
        let count = |name: &str, bad| {
            let measured = format!("sum by ({by}) (increase({}[5m]))", events(self.objective, bad));
            let expr = match has_lost {
                true => {
                    format!("sum by ({by}) (\n  {measured}\n  or\n  {}\n)", self.recorded("slo:sli_lost:increase5m"))
                }
                false => measured,
            };
            self.record(name, Some("5m"), expr)
        };
        let lost = has_lost.then(|| self.record("slo:sli_lost:increase5m", Some("5m"), lost));
        let counts = [count("slo:sli_bad:increase5m", true), count("slo:sli_all:increase5m", false)];
        lost.into_iter().chain(counts).collect()
    }

    /// The count of a window: the sum of shorter windows that end one after the other, down to the counts of 5 minutes.
    /// A window thus contains exactly its own requests, and needs few samples.
    fn sum(&self, name: &str, window: &str) -> Option<Rule> {
        let (part, parts) = parts(window)?;
        let count = self.recorded(&format!("{name}:increase{part}"));
        // The label keeps the parts apart: a part without samples counts as zero.
        let earlier = (1..parts).map(|n| {
            let offset = minutes(part) * n;
            format!("\n  or\n  label_replace({count} offset {offset}m, \"part\", \"{n}\", \"sloth_id\", \".*\")")
        });
        let expr = format!("sum without (sloth_window, part) (\n  {count}{}\n)", earlier.collect::<String>());
        Some(self.record(&format!("{name}:increase{window}"), Some(window), expr))
    }

    /// The counts and the share of bad requests. Without requests the share is absent, not NaN.
    fn ratios(&self) -> Vec<Rule> {
        let of_window = |window: &&str| {
            let recorded = |name: &str| self.recorded(&format!("{name}:increase{window}"));
            let expr = format!("{}\n/\n({} > 0)", recorded("slo:sli_bad"), recorded("slo:sli_all"));
            let ratio = self.record(&format!("slo:sli_error:ratio_rate{window}"), Some(window), expr);
            let counts = ["slo:sli_bad", "slo:sli_all"].into_iter().filter_map(|name| self.sum(name, window));
            counts.chain([ratio]).collect::<Vec<Rule>>()
        };
        WINDOWS.iter().flat_map(of_window).collect()
    }

    /// The period's ratio is computed from counts: a mean of ratios would weight an idle night like a busy day.
    fn budget(&self) -> Vec<Rule> {
        let days = self.rules.period_days;
        let budget = number(1.0 - self.objective.target);
        let window = format!("{days}d");
        let period = format!("slo:sli_error:ratio_rate{window}");
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
        // If the period is as long as a window, the ratio is already recorded for that window.
        let is_recorded = WINDOWS.contains(&window.as_str());
        let of_period = (!is_recorded).then(|| self.record(&period, Some(&window), ratio));
        let counts = vec![
            self.record("slo:sli_bad:step5m", None, self.step("slo:sli_bad:increase5m")),
            self.record("slo:sli_all:step5m", None, self.step("slo:sli_all:increase5m")),
        ];
        let others = vec![
            self.record("slo:objective:ratio", None, format!("vector({target})")),
            self.record("slo:error_budget:ratio", None, format!("vector({budget})")),
            self.record("slo:time_period:days", None, format!("vector({days})")),
            self.record("slo:current_burn_rate:ratio", None, burn("slo:sli_error:ratio_rate5m")),
            self.record("slo:period_burn_rate:ratio", None, burn(&period)),
            self.record("slo:period_error_budget_remaining:ratio", None, left),
            info,
            // This alert must be in the same group as the series that it queries. In another group, the query would
            // briefly miss them every 5 minutes: their interval equals Prometheus' lookback period, which excludes the
            // left boundary since 3.0.
            self.exhausted(),
        ];
        counts.into_iter().chain(of_period).chain(others).collect()
    }

    /// One page, one ticket, and an alert if no tokometer evaluates the objective.
    fn alerts(&self) -> Vec<Rule> {
        let (slo, service) = (&self.objective.name, &self.rules.service);
        let (events, info) = (events(self.objective, false), metric(Id::BuildInfo).prometheus().full());
        let evaluated = self.recorded("slo:sli_all:step5m");
        // Without the label, the recorded counts do not contain the namespaces.
        let stopped = self.rules.group_by.iter().any(|label| label == "namespace").then(|| {
            format!(
                "count by (namespace) (last_over_time({evaluated}[1d]))\nunless on (namespace)\ncount by (namespace) \
                 ({events})\nor\n"
            )
        });
        let stopped = stopped.unwrap_or_default();
        let absent = self.alert(
            "LLMSLOMetricAbsent",
            // Namespaces where the evaluation stopped within the last day; all namespaces if no tokometer evaluates the
            // objective.
            format!("{stopped}count by (namespace) ({info})\nunless on ()\ncount ({events})"),
            "warning",
            &format!(
                "{service}: the objective {slo} has no data: Prometheus scrapes no tokometer{} that evaluates it",
                place(&["namespace".to_owned()])
            ),
            "Without this data, no error budget burn alert fires for this objective.",
            "count by (namespace, job) (tokometer_build_info)",
        );
        vec![self.burn(PAGE), self.burn(TICKET), absent.pending("10m")]
    }

    /// Fires when a long and a short window exceed their threshold: the burn is significant and ongoing. The value is
    /// the burn rate in the long window.
    fn burn(&self, urgency: Urgency) -> Rule {
        let days = self.rules.period_days;
        let budget = 1.0 - self.objective.target;
        let mut windows: Vec<(f64, &str, &str)> = BURNS
            .iter()
            .filter(|burn| burn.urgency == urgency)
            .map(|burn| (burn.threshold(self.objective, days) / budget, burn.long, burn.short))
            .collect();
        // A total outage pages within minutes, regardless of the objective.
        if urgency == PAGE {
            windows.insert(0, (HARD_FAILURE / budget, "5m", "5m"));
        }
        let exprs: Vec<String> = windows.iter().map(|(rate, long, short)| self.burning(*rate, long, short)).collect();
        let limits: Vec<String> = windows
            .iter()
            .map(|(rate, long, _)| format!("{} in {long}", number((rate * 10.0).round() / 10.0)))
            .collect();
        let description = format!(
            "The objective allows {} % bad requests in {days} days. This alert fires at a burn rate above {}. {}",
            number(budget * 100.0),
            limits.join(" or "),
            self.left()
        );
        let name = burn_alert(&self.objective.goal);
        let summary = format!(
            "{}: {}{} burns its error budget {{{{ $value | humanize }}}} times too fast (target {} %)",
            self.rules.service,
            self.objective.name,
            place(&self.rules.group_by),
            number(self.objective.target * 100.0),
        );
        let first_step =
            format!("topk(10, sum by (reason, model, pod, instance) (rate({}[5m])))", self.events_of_alert());
        let rule = self.alert(name, exprs.join("\nor\n"), urgency.severity, &summary, &description, &first_step);
        Rule { keep_firing_for: Some(urgency.keep.to_owned()), ..rule.pending(urgency.pending) }
    }

    /// The burn rate in the long window. It has a value only if the burn rate exceeds `rate` in both windows, and the
    /// long window has the minimum number of bad requests.
    fn burning(&self, rate: f64, long: &str, short: &str) -> String {
        let budget = number(1.0 - self.objective.target);
        let above = |window: &str| {
            let ratio = self.recorded(&format!("slo:sli_error:ratio_rate{window}"));
            format!("max without (sloth_window) ({ratio}) / {budget} > {}", number(rate))
        };
        let bad = self.recorded(&format!("slo:sli_bad:increase{long}"));
        let enough = format!("max without (sloth_window) ({bad}) >= {}", self.rules.min_bad_events);
        let mut conditions = vec![above(long), above(short), enough];
        conditions.dedup();
        format!("(\n  {}\n)", conditions.join("\n  and\n  "))
    }

    fn exhausted(&self) -> Rule {
        let days = self.rules.period_days;
        let expr = format!(
            "{} < 0\nand\nsum_over_time({}[{days}d]) >= {}",
            self.recorded("slo:period_error_budget_remaining:ratio"),
            self.recorded("slo:sli_bad:step5m"),
            self.rules.min_bad_events
        );
        let (service, slo) = (&self.rules.service, &self.objective.name);
        let summary = format!(
            "{service}: {slo}{} has used up its {days}-day error budget (target {} %)",
            place(&self.rules.group_by),
            number(self.objective.target * 100.0)
        );
        let description =
            format!("More requests were bad in the last {days} days than the objective allows. {}", self.left());
        let first_step = format!("sum by (reason, model) (increase({}[1d]))", self.events_of_alert());
        self.alert("LLMErrorBudgetExhausted", expr, "info", &summary, &description, &first_step).pending("15m")
    }

    /// Selector of the bad requests with the labels of the firing alert.
    fn events_of_alert(&self) -> String {
        let by = self.rules.group_by.iter();
        let matchers: String = by.map(|label| format!(",{label}=\"{{{{ $labels.{label} }}}}\"")).collect();
        let bad = events(self.objective, true);
        format!("{}{matchers}}}", bad.trim_end_matches('}'))
    }

    /// The remaining budget, queried when Prometheus renders the alert's text.
    fn left(&self) -> String {
        let by = &self.rules.group_by;
        let id = self.sloth_id();
        let matchers: String = by.iter().map(|label| format!(",{label}=%q")).collect();
        let values: String = by.iter().map(|label| format!(" $labels.{label}")).collect();
        format!(
            "{{{{ with printf `slo:period_error_budget_remaining:ratio{{sloth_id=\"{id}\"{matchers}}}`{values} | query \
             }}}}{{{{ with . | first | value }}}}{{{{ if lt . 0.0 }}}}The budget of this period is used \
             up.{{{{ else }}}}Remaining budget: {{{{ . | humanizePercentage }}}}.{{{{ end }}}}{{{{ end }}}}{{{{ end }}}}"
        )
    }

    fn alert(
        &self,
        name: &str,
        expr: String,
        severity: &str,
        summary: &str,
        description: &str,
        first_step: &str,
    ) -> Rule {
        let slo = self.objective.name.as_str();
        let variables: Vec<&str> = self.rules.group_by.iter().map(String::as_str).chain(["slo"]).collect();
        let mut rule = Rule::alert(self.rules, name, severity, expr).about(summary, description, first_step).dashboard(
            self.rules,
            "tokometer-slo",
            &variables,
        );
        // Sloth's dashboards find alerts by the `sloth_` labels.
        rule.labels.extend(map(&[("slo", slo), ("sloth_service", &self.rules.service), ("sloth_slo", slo)]));
        rule
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use tokometer_telemetry::slo::{Goal, Scope, Settings};

    #[test]
    fn every_series_is_recorded_once() {
        let objective =
            Objective { name: "x".to_owned(), target: 0.99, scope: Scope::default(), goal: Goal::Availability };
        for period_days in 1..=30 {
            let rules = RuleSettings { period_days, ..Settings::default().rules };
            let all = groups(&rules, &objective).into_iter().flat_map(|group| group.rules);
            let recorded: Vec<_> = all.filter_map(|rule| Some((rule.record?, rule.labels))).collect();
            let once: BTreeSet<_> = recorded.iter().collect();
            assert_eq!(recorded.len(), once.len(), "{period_days} days");
            let period = format!("slo:sli_error:ratio_rate{period_days}d");
            assert!(recorded.iter().any(|(name, _)| *name == period), "{period_days} days");
        }
    }
}
