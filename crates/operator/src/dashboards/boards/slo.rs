//! Objectives and error budgets, mostly from recording rules.

use serde_json::json;

use crate::dashboards::board::Board;
use crate::dashboards::board::Row;
use crate::dashboards::boards;
use crate::dashboards::objectives::Recorded;
use crate::dashboards::objectives::burn;
use crate::dashboards::objectives::chosen_objectives;
use crate::dashboards::objectives::recorded;
use crate::dashboards::panel::Panel;
use crate::dashboards::panel::Target;
use crate::dashboards::promql::Label;
use crate::dashboards::promql::Matcher;
use crate::dashboards::promql::growth;
use crate::dashboards::promql::is;
use crate::dashboards::promql::like;
use crate::dashboards::promql::total;
use crate::dashboards::viz;
use crate::dashboards::viz::Column;
use crate::rules::burn_factors;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::slo::RuleSettings;

/// The colour of each burn-rate threshold, starting with the one that pages first.
const BURN_COLORS: [&str; 4] = ["red", "dark-orange", "orange", "dark-yellow"];

pub(super) fn board(rules: &RuleSettings) -> Board {
    let of = Of { rules };
    Board {
        uid: boards::SLO,
        title: "Tokometer / SLO and error budget",
        description: "Each objective: where it stands, how fast its error budget burns, and who burns it. Needs the rules of `tokometer \
                      rules`, made with the same configuration.",
        by_objective: true,
        rows: vec![
            Row::open("Now", vec![of.objectives(), of.left(), of.lasts(), of.firing()]),
            Row::open("Burn", vec![of.burning(), of.windows(), of.down()]),
            Row::open("Events", vec![of.bad(), of.reasons(), of.excluded(), of.who(), of.good_tokens()]),
        ],
    }
}

/// The label with the objective's name.
const SLO: Label = Label::Of(Key::Slo);

fn chosen() -> Matcher {
    like(Key::Slo, "$slo")
}

struct Of<'a> {
    rules: &'a RuleSettings,
}

impl Of<'_> {
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

    fn burn(&self, ratio: Recorded) -> String {
        burn(ratio, &self.rules.group_by)
    }

    /// Keeps only the labels by which the columns of one objective are joined.
    fn by_objective(&self, expr: &str) -> String {
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
            burn = self.burn(Recorded::BadRatio1h)
        )
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
        let panel = viz::table(
            "Objectives",
            "Each objective and model. Target, what came true over the period, what is left of the budget, how fast it burns now (5 minutes) \
             and over an hour, how long it lasts at the hour's rate, and how many bad exchanges it still allows. Empty cells: no traffic in \
             that window. What nobody asked for within the period has no row.",
        )
        .target(Target::rows(self.by_objective(&is_firing)))
        .target(Target::rows(self.by_objective(&target)))
        .target(Target::rows(self.by_objective(&good)))
        .target(Target::rows(self.by_objective(&self.series(Recorded::BudgetLeft))))
        .target(Target::rows(self.by_objective(&self.burn(Recorded::BadRatio5m))).may_be_empty("without traffic of the last 5 minutes"))
        .target(Target::rows(self.by_objective(&self.burn(Recorded::BadRatio1h))))
        .target(Target::rows(self.by_objective(&self.seconds_left())).may_be_empty("only while a budget burns"))
        .target(Target::rows(self.by_objective(&self.allowed())))
        .size(24, 12);
        let mut labels = vec![(Key::Slo.label(), "Objective")];
        labels.extend(self.rules.group_by.iter().map(|label| (label.as_str(), heading(label))));
        let limits = self.burn_limits();
        let bad = [(0.0, "red"), (f64::EPSILON, "orange"), (0.25, "green")];
        viz::joined(
            panel,
            &labels,
            vec![
                Column::new('A', "Alerts", "none")
                    .with(
                        "mappings",
                        json!([{"type": "value", "options": {"0": {"text": "-", "color": "text", "index": 0}}}]),
                    )
                    .colored("text", &[(1.0, "red")])
                    .with("custom.width", json!(80)),
                Column::new('B', "Target", "percentunit").with("decimals", json!(2)),
                Column::new('C', "Came true", "percentunit").with("decimals", json!(3)),
                Column::new('D', "Budget left", "percentunit").with("decimals", json!(1)).colored("red", &bad),
                Column::new('E', "Burn 5 m", "suffix: ×").with("decimals", json!(1)).colored("green", &limits),
                Column::new('F', "Burn 1 h", "suffix: ×").with("decimals", json!(1)).colored("green", &limits),
                Column::new('G', "Lasts", "s")
                    .with("decimals", json!(1))
                    .colored("red", &[(86_400.0, "orange"), (259_200.0, "text")]),
                Column::new('H', "Bad still allowed", "short")
                    .with("decimals", json!(0))
                    .colored("red", &[(0.0, "text")]),
            ],
        )
        .transform("sortBy", json!({"sort": [{"field": "Budget left", "desc": false}]}))
    }

    fn left(&self) -> Panel {
        viz::bars(
            "Error budget left",
            "Share of the period's budget that is not spent; below 0 more was bad than the objective allows.",
            "percentunit",
        )
        .field("min", json!(0))
        .field("max", json!(1))
        .field("decimals", json!(1))
        .thresholds(viz::BAD, &[(f64::EPSILON, "orange"), (0.25, viz::GOOD)])
        .target(Target::now(&self.legend(), self.by_objective(&self.series(Recorded::BudgetLeft))))
        .size(12, 11)
    }

    fn lasts(&self) -> Panel {
        viz::bars(
            "Time until a budget is spent",
            "At the rate of the last hour. What would last longer than the period is as good as whole, and bars end there.",
            "s",
        )
        .field("min", json!(0))
        .field("max", json!(u64::from(self.rules.period_days) * 86_400))
        .field("noValue", json!("nothing burns"))
        .field("decimals", json!(1))
        .thresholds(viz::BAD, &[(86_400.0, "orange"), (604_800.0, viz::GOOD)])
        .target(Target::now(&self.legend(), self.by_objective(&self.seconds_left())).may_be_empty("only while a budget burns"))
        .size(12, 11)
    }

    fn firing(&self) -> Panel {
        viz::states(
            "Alerts on objectives",
            "Which burn alerts were pending or fired, by severity. Each has a page in docs/runbooks.",
            &[(1, "pending", "yellow"), (2, "firing", "red")],
        )
        .field("noValue", json!("no alert"))
        .target(
            Target::range(
                &format!("{} {{{{severity}}}}", self.legend()),
                format!(
                    "max by ({by}, severity) (\n2 * ALERTS{{{of},alertstate=\"firing\"}}\nor ignoring (alertstate)\n\
                     ALERTS{{{of},alertstate=\"pending\"}}\n)",
                    by = self.group_by(),
                    of = format!("alertname=~\"LLM.+(Burn|Exhausted)\",{}", self.chosen()),
                ),
            )
            .may_be_empty("only where an alert is pending or fires"),
        )
        .size(24, 8)
    }

    /// Both scales are logarithmic: the paging threshold is 14 times the allowed rate. Zeros are drawn at the lower
    /// edge.
    fn on_log_scale(&self, panel: Panel) -> Panel {
        panel
            .custom("scaleDistribution", json!({"type": "log", "log": 2}))
            .custom("thresholdsStyle", json!({"mode": "dashed"}))
            .custom("fillOpacity", json!(0))
            .custom("lineWidth", json!(2))
            .field("min", json!(0.125))
            .field("decimals", json!(1))
            .thresholds("transparent", &self.burn_limits())
            .size(12, 9)
    }

    fn burning(&self) -> Panel {
        self.on_log_scale(viz::graph(
            "Burn rate of each objective, 1 h",
            "How many times faster than allowed each budget burns. Lines: the limits of the four pairs of windows; over the lowest a \
             budget will not last its period, over the highest it is gone in days and somebody is paged.",
            "suffix: ×",
        ))
        .target(Target::range(&self.legend(), format!("clamp_min(\n{},\n0.125)", self.burn(Recorded::BadRatio1h))))
    }

    fn windows(&self) -> Panel {
        let worst = |of| format!("clamp_min(max ({}), 0.125)", self.burn(of));
        self.on_log_scale(viz::graph(
            "Worst burn rate by window",
            "Of the chosen objectives. An alert wants its long and its short window above its limit: the short one tells whether it goes on.",
            "suffix: ×",
        ))
        .target(Target::range("5m", worst(Recorded::BadRatio5m)).may_be_empty("without traffic of the last 5 minutes"))
        .target(Target::range("1h", worst(Recorded::BadRatio1h)))
        .target(Target::range("6h", worst(Recorded::BadRatio6h)))
        .target(Target::range("3d", worst(Recorded::BadRatio3d)))
    }

    fn down(&self) -> Panel {
        viz::graph(
            "Error budget over time",
            "What was left of each budget. Below 0 (red) the objective was missed; what is below -100 % is drawn there.",
            "percentunit",
        )
        .field("min", json!(-1))
        .field("max", json!(1))
        .custom("thresholdsStyle", json!({"mode": "line+area"}))
        .custom("fillOpacity", json!(0))
        .custom("lineWidth", json!(2))
        .thresholds(viz::BAD, &[(0.0, "transparent")])
        .target(Target::range(&self.legend(), format!("clamp_min(\n{},\n-1)", self.by_objective(&self.series(Recorded::BudgetLeft)))))
        .size(24, 8)
    }

    fn bad(&self) -> Panel {
        let bad = total(Id::SloEvents, &[SLO], &[chosen(), is(Key::Verdict, "bad")]);
        viz::graph(
            "Judged and bad exchanges per second",
            "Bad ones of each objective, and (grey) how many exchanges the objective judged that judged most.",
            "reqps",
        )
        .target(Target::range("judged", format!("max ({})", total(Id::SloEvents, &[SLO], &[chosen()]))))
        .target(Target::range("bad: {{slo}}", bad))
        .color("^judged$", viz::IDLE)
        .size(8, 8)
    }

    fn reasons(&self) -> Panel {
        viz::stacked(
            "Bad exchanges per second by reason",
            "Why exchanges were bad, each counted once although goodput counts it with another; docs/SLO.md has the list.",
            "reqps",
        )
            .target(
                Target::range(
                    "{{reason}}",
                    format!("max by (reason) ({}) > 0", total(Id::SloEvents, &[SLO, Label::Of(Key::Reason)], &[chosen(), is(Key::Verdict, "bad")])),
                )
                .may_be_empty("only where an exchange was bad"),
            )
            .size(8, 8)
    }

    fn excluded(&self) -> Panel {
        viz::graph(
            "Left out per second, by reason",
            "Exchanges that an objective is about but did not judge: the server was not the cause, or too little is known; of \
             the objective that left out most. Much of this makes an objective blind.",
            "reqps",
        )
        .target(
            Target::range(
                "{{reason}}",
                format!("max by (reason) ({}) > 0", total(Id::SloExcluded, &[SLO, Label::Of(Key::Reason)], &[chosen()])),
            )
                .may_be_empty("only where an exchange was left out"),
        )
        .size(8, 8)
    }

    fn who(&self) -> Panel {
        let labels =
            [SLO, Label::Of(Key::Model), Label::Namespace, Label::Pod, Label::Instance, Label::Of(Key::Reason)];
        let panel = viz::table(
            "Who burns the budget",
            "Bad exchanges in the time range by objective, model, pod and reason: the twenty largest. Click an instance to look into it.",
        )
        .target(
            Target::rows(format!(
                "topk(20, {} > 0)",
                growth(Id::SloEvents, &labels, &[chosen(), is(Key::Verdict, "bad")])
            ))
            .may_be_empty("only where an exchange was bad"),
        )
        .size(16, 9);
        viz::joined(
            panel,
            &[
                ("slo", "Objective"),
                ("reason", "Reason"),
                ("model", "Model"),
                ("namespace", "Namespace"),
                ("pod", "Pod"),
                ("instance", "Instance"),
            ],
            vec![
                Column::new('A', "Bad", "short")
                    .with("decimals", json!(0))
                    .with("custom.cellOptions", json!({"type": "gauge", "mode": "basic"}))
                    .with("color", json!({"mode": "fixed", "fixedColor": viz::BAD}))
                    .with("min", json!(0)),
            ],
        )
        .transform("sortBy", json!({"sort": [{"field": "Bad", "desc": true}]}))
        .named("Instance",
            &[("links", json!([{"title": "This pod", "url": viz::board_of(boards::POD, "instance", "__value.raw:percentencode")}]))],
        )
    }

    fn good_tokens(&self) -> Panel {
        viz::graph(
            "Good tokens per second",
            "Output tokens of exchanges that were good by goodput, beside all that were counted: what is between the lines was \
             generated for nobody's satisfaction.",
            viz::MANY_TOKENS_PER_SECOND,
        )
        .target(Target::range("all", total(Id::OutputTokens, &[], &[])))
        .target(Target::range("good", total(Id::SloGoodTokens, &[], &[chosen()])))
        .color("^good$", viz::GOOD)
        .color("^all$", viz::IDLE)
        .size(8, 9)
    }
}

fn heading(label: &str) -> &str {
    match label {
        "namespace" => "Namespace",
        "model" => "Model",
        other => other,
    }
}
