//! Objectives and error budgets, mostly from recording rules.

use std::fmt::Display;

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::*;
use crate::dashboards::panel::Panel;
use crate::dashboards::promql::*;
use crate::dashboards::viz::*;
use crate::rules::burn_factors;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::slo::RuleSettings;

/// The colour of each burn-rate threshold, starting with the one that pages first.
const BURN_COLORS: [&str; 4] = ["red", "dark-orange", "orange", "dark-yellow"];

pub(super) fn board(rules: &RuleSettings) -> Board {
    let of = Objectives { rules };
    Board {
        uid: boards::SLO,
        title: "Tokometer / SLO and error budget",
        description: "Each objective: where it stands, how fast its error budget burns, and who burns it. Needs the rules of `tokometer \
                      rules`, made with the same configuration.",
        by_objective: true,
        rows: vec![of.now(), of.burn(), of.events()],
    }
}

/// Values of all selected objectives.
struct Objectives<'a> {
    rules: &'a RuleSettings,
}

impl Objectives<'_> {
    fn group_by(&self) -> String {
        let mut labels = vec![Key::Slo.label().to_owned()];
        labels.extend(self.rules.group_by.iter().cloned());
        labels.join(", ")
    }

    fn legend(&self) -> String {
        let groups: String = self.rules.group_by.iter().map(|label| format!(" {{{{{label}}}}}")).collect();
        format!("{{{{{}}}}}{groups}", Key::Slo.label())
    }

    /// Matchers of the selected objectives and groups.
    fn chosen(&self) -> String {
        chosen_objectives(&self.rules.group_by)
    }

    fn series(&self, of: Recorded) -> String {
        recorded(of, &self.rules.group_by)
    }

    fn burn_rate(&self, ratio: Recorded) -> String {
        burn(ratio, &self.rules.group_by)
    }

    /// Keeps only the labels by which the columns of one objective are joined.
    fn by_objective(&self, expr: impl Display) -> String {
        format!("max by ({}) (\n{expr}\n)", self.group_by())
    }

    /// Counts over the whole period.
    fn counted(&self, of: Recorded) -> String {
        format!("sum_over_time({}[{}d])", self.series(of), self.rules.period_days)
    }

    /// Remaining bad requests in the budget.
    fn allowed(&self) -> String {
        format!(
            "({all} > 0)\n* on (sloth_id) group_left ()\n{budget}\n-\n{bad}",
            all = self.counted(Recorded::AllStep),
            budget = self.series(Recorded::Budget),
            bad = self.counted(Recorded::BadStep)
        )
    }

    /// Time to budget exhaustion in seconds, at the last hour's rate. Absent while nothing burns.
    fn seconds_left(&self) -> String {
        format!(
            "clamp_min({left}, 0) * {period}\n/ ignoring (sloth_window)\n(({burn}) > 0)",
            left = self.series(Recorded::BudgetLeft),
            period = u64::from(self.rules.period_days) * 86_400,
            burn = self.burn_rate(Recorded::BadRatio1h)
        )
    }

    fn now(&self) -> Row {
        let panels = vec![self.objectives(),
bars("Error budget left", "percentunit")
.about("Share of the period's budget that is not spent; below 0 more was bad than the objective \
                 allows.")
        .field("min", 0)
        .max(1)
        .decimals(1)
        .thresholds(BAD, &[(f64::EPSILON, "orange"), (0.25, GOOD)])
        .now(&self.legend(), self.by_objective(self.series(Recorded::BudgetLeft))),
bars("Time until a budget is spent", "s")
.about("At the rate of the last hour. What would last longer than the period is as good as whole, \
                 and bars end there.")
        .field("min", 0)
        .max(u64::from(self.rules.period_days) * 86_400)
        .no_value("nothing burns")
        .decimals(1)
        .thresholds(BAD, &[(86_400.0, "orange"), (604_800.0, GOOD)])
        .now_or(&self.legend(), self.by_objective(self.seconds_left()), "only while a budget burns"),
states("Alerts on objectives", &[(1, "pending", "yellow"), (2, "firing", "red")])
.about("Which burn alerts were pending or fired, by severity. Each has a page in docs/runbooks.")
        .no_value("no alert")
        .range_or(&format!("{} {{{{severity}}}}", self.legend()), format!(
                    "max by ({by}, severity) (\n2 * ALERTS{{{of},alertstate=\"firing\"}}\nor ignoring (alertstate)\n\
                     ALERTS{{{of},alertstate=\"pending\"}}\n)",
                    by = self.group_by(),
                    of = format!("alertname=~\"LLM.+(Burn|Exhausted)\",{}", self.chosen()),
                ), "only where an alert is pending or fires").size(24, 8)];
        Row::open("Now", (12, 11), panels)
    }

    fn burn(&self) -> Row {
        let limits = self.burn_limits();
        let left = format!("clamp_min(\n{},\n-1)", self.by_objective(self.series(Recorded::BudgetLeft)));
        let worst = |of| format!("clamp_min(max ({}), 0.125)", self.burn_rate(of));
        let panels = vec![
            graph("Burn rate of each objective, 1 h", TIMES)
                .about(
                    "How many times faster than allowed each budget burns. Lines: the limits of the four pairs of \
                 windows; over the lowest a budget will not last its period, over the highest it is gone in \
                 days and somebody is paged.",
                )
                .burn_scale(&limits)
                .range(&self.legend(), format!("clamp_min(\n{},\n0.125)", self.burn_rate(Recorded::BadRatio1h))),
            graph("Worst burn rate by window", TIMES)
                .about(
                    "Of the chosen objectives. An alert wants its long and its short window above its limit: the \
                 short one tells whether it goes on.",
                )
                .burn_scale(&limits)
                .range_or("5m", worst(Recorded::BadRatio5m), "without traffic of the last 5 minutes")
                .range("1h", worst(Recorded::BadRatio1h))
                .range("6h", worst(Recorded::BadRatio6h))
                .range("3d", worst(Recorded::BadRatio3d)),
            graph("Error budget over time", "percentunit")
                .about(
                    "What was left of each budget. Below 0 (red) the objective was missed; what is below -100 % \
                 is drawn there.",
                )
                .field("min", -1)
                .max(1)
                .custom("thresholdsStyle", json!({"mode": "line+area"}))
                .custom("fillOpacity", 0)
                .custom("lineWidth", 2)
                .thresholds(BAD, &[(0.0, "transparent")])
                .range(&self.legend(), left)
                .size(24, 8),
        ];
        Row::open("Burn", (12, 9), panels)
    }

    fn events(&self) -> Row {
        let chosen = |of: Expr| of.like(Key::Slo, "$slo");
        let bad = |of: Expr| chosen(of).only(Key::Verdict, "bad");
        let by_reason = |of: Expr| positive(format!("max by (reason) ({})", of.by(Key::Slo).by(Key::Reason)));
        let largest = growth(Id::SloEvents).by(Key::Slo).by(Key::Model).by_pod().by(Key::Reason);
        let panels = vec![
            graph("Judged and bad exchanges per second", "reqps")
                .about(
                    "Bad ones of each objective, and (grey) how many exchanges the objective judged that judged \
                 most.",
                )
                .range("judged", format!("max ({})", chosen(total(Id::SloEvents)).by(Key::Slo)))
                .range("bad: {{slo}}", bad(total(Id::SloEvents)).by(Key::Slo))
                .color("^judged$", IDLE),
            stacked("Bad exchanges per second by reason", "reqps")
                .about(
                    "Why exchanges were bad, each counted once although goodput counts it with another; \
                 docs/SLO.md has the list.",
                )
                .range_or("{{reason}}", by_reason(bad(total(Id::SloEvents))), "only where an exchange was bad"),
            graph("Left out per second, by reason", "reqps")
                .about(
                    "Exchanges that an objective is about but did not judge: the server was not the cause, or too \
                 little is known; of the objective that left out most. Much of this makes an objective blind.",
                )
                .range_or(
                    "{{reason}}",
                    by_reason(chosen(total(Id::SloExcluded))),
                    "only where an exchange was left out",
                ),
            table("Who burns the budget")
                .about(
                    "Bad exchanges in the time range by objective, model, pod and reason: the twenty largest. \
                 Click an instance to look into it.",
                )
                .rows_or(top(20, positive(bad(largest))), "only where an exchange was bad")
                .joined(
                    &[
                        ("slo", "Objective"),
                        ("reason", "Reason"),
                        ("model", "Model"),
                        ("namespace", "Namespace"),
                        ("pod", "Pod"),
                        ("instance", "Instance"),
                    ],
                    vec![
                        Column::new("Bad", "short", 0)
                            .with("custom.cellOptions", json!({"type": "gauge", "mode": "basic"}))
                            .with("color", fixed(BAD))
                            .with("min", 0),
                    ],
                )
                .sorted("Bad", true)
                .instances_lead_to_pods()
                .size(16, 9),
            graph("Good tokens per second", MANY_TOKENS_PER_SECOND)
                .about(
                    "Output tokens of exchanges that were good by goodput, beside all that were counted: what is \
                 between the lines was generated for nobody's satisfaction.",
                )
                .range("all", total(Id::OutputTokens))
                .range("good", chosen(total(Id::SloGoodTokens)))
                .color("^good$", GOOD)
                .color("^all$", IDLE)
                .size(8, 9),
        ];
        Row::open("Events", (8, 8), panels)
    }

    fn burn_limits(&self) -> Vec<(f64, &'static str)> {
        let mut limits: Vec<(f64, &str)> = burn_factors(self.rules.period_days).into_iter().zip(BURN_COLORS).collect();
        limits.reverse();
        limits
    }

    fn objectives(&self) -> Panel {
        // Only objectives with evaluated requests in the period have a row.
        let target = format!(
            "0 * {}\n+ on (sloth_id) group_left ()\n{}",
            self.series(Recorded::BudgetLeft),
            self.series(Recorded::Objective)
        );
        let is_firing = format!(
            "count by ({by}) (ALERTS{{alertname=~\"LLM.+Burn\",alertstate=\"firing\",{}}})\nor\n0 * max by ({by}) ({})",
            self.chosen(),
            self.series(Recorded::BudgetLeft),
            by = self.group_by()
        );
        let good = format!("1 - ({})\n/\n({} > 0)", self.counted(Recorded::BadStep), self.counted(Recorded::AllStep));
        let mut labels = vec![(Key::Slo.label(), "Objective")];
        labels.extend(self.rules.group_by.iter().map(|label| (label.as_str(), heading(label))));
        let limits = self.burn_limits();
        let left = [(0.0, BAD), (f64::EPSILON, "orange"), (0.25, GOOD)];
        table("Objectives")
            .about(
                "Each objective and model. Target, what came true over the period, what is left of the \
                 budget, how fast it burns now (5 minutes) and over an hour, how long it lasts at the hour's \
                 rate, and how many bad exchanges it still allows. Empty cells: no traffic in that window. \
                 What nobody asked for within the period has no row.",
            )
            .rows(self.by_objective(is_firing))
            .rows(self.by_objective(target))
            .rows(self.by_objective(good))
            .rows(self.by_objective(self.series(Recorded::BudgetLeft)))
            .rows_or(self.by_objective(self.burn_rate(Recorded::BadRatio5m)), "without traffic of the last 5 minutes")
            .rows(self.by_objective(self.burn_rate(Recorded::BadRatio1h)))
            .rows_or(self.by_objective(self.seconds_left()), "only while a budget burns")
            .rows(self.by_objective(self.allowed()))
            .joined(
                &labels,
                vec![
                    Column::text("Alerts", "none")
                        .with(
                            "mappings",
                            json!([{"type": "value", "options": {"0": {"text": "-", "color": "text", "index": 0}}}]),
                        )
                        .colored("text", &[(1.0, "red")])
                        .with("custom.width", 80),
                    Column::new("Target", "percentunit", 2),
                    Column::new("Came true", "percentunit", 3),
                    Column::new("Budget left", "percentunit", 1).colored(BAD, &left),
                    Column::new("Burn 5 m", TIMES, 1).colored("green", &limits),
                    Column::new("Burn 1 h", TIMES, 1).colored("green", &limits),
                    Column::new("Lasts", "s", 1).colored("red", &[(86_400.0, "orange"), (259_200.0, "text")]),
                    Column::new("Bad still allowed", "short", 0).colored("red", &[(0.0, "text")]),
                ],
            )
            .sorted("Budget left", false)
            .size(24, 12)
    }
}

fn heading(label: &str) -> &str {
    match label {
        "namespace" => "Namespace",
        "model" => "Model",
        other => other,
    }
}
