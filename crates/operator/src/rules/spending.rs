//! Rules of the daily budgets: use since midnight (UTC), forecast for the next midnight, and alerts on both.
//!
//! PromQL has no window from midnight to now, and a counter restarts with its process. Use is therefore recorded per
//! step, with even and odd days in separate series: of the last 24 hours, the steps of today are all in one series.

use crate::rules::budget::annotations;
use crate::rules::file::Group;
use crate::rules::file::Rule;
use crate::rules::file::map;
use crate::rules::names::series;
use crate::rules::pace::DAY;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::slo::Settings;

/// Evaluation interval and length of a step: all use is counted in exactly one step.
const STEP: &str = "5m";

/// Share of the budget below which no forecast is made: early in the day the rate of one hour predicts little.
const BEGUN: &str = "0.1";

const STEPS: &str = "tokometer:budget_spent:step5m";
const TODAY: &str = "tokometer:budget_spent:today";
const BY_MIDNIGHT: &str = "tokometer:budget_spent:by_midnight";

/// Label value and remainder: the number of the day since 1970 is even or odd.
const DAYS: [(&str, u8); 2] = [("even", 0), ("odd", 1)];

/// The rule group; without budgets its series stay empty.
pub(super) fn group(settings: &Settings) -> Group {
    // A budget applies to all its models together.
    let apart: Vec<&str> =
        settings.rules.group_by.iter().map(String::as_str).filter(|label| *label != Key::Model.label()).collect();
    let by = apart.iter().copied().chain([Key::Budget.label()]).collect::<Vec<&str>>().join(", ");
    let (spent, limit) = (series(Id::BudgetSpent), format!("max by ({by}) ({})", series(Id::BudgetLimit)));
    let on_day = |number: u8| format!("and on ()\n(floor(vector(time()) / {DAY}) % 2 == {number})");
    let mut rules: Vec<Rule> = Vec::new();
    for (day, number) in DAYS {
        let expr = format!("sum by ({by}) (increase({spent}[{STEP}]))\n{}", on_day(number));
        rules.push(Rule::record(STEPS, expr, &[("day", day)]));
    }
    let today = DAYS.map(|(day, number)| {
        format!(
            "(\n  sum without (day) (sum_over_time({STEPS}{{day=\"{day}\"}}[1d]))\n  {}\n)",
            on_day(number).replace('\n', "\n  ")
        )
    });
    rules.push(Rule::record(TODAY, today.join("\nor\n"), &[]));
    let left = format!("({DAY} - vector(time()) % {DAY})");
    let expr = format!("{TODAY}\n+\nsum by ({by}) (rate({spent}[1h])) * on () group_left () {left}");
    rules.push(Rule::record(BY_MIDNIGHT, expr, &[]));

    let whose: String = apart.iter().map(|label| format!(" {label}={{{{ $labels.{label} }}}}")).collect();
    let service = &settings.rules.service;
    let alert = |name: &str, expr: String, pending: Option<&str>, what: &str, description: &str| {
        let summary = format!("{service}: budget {{{{ $labels.budget }}}} {what},{whose}");
        Rule {
            alert: Some(name.to_owned()),
            expr,
            pending: pending.map(str::to_owned),
            labels: map(&[("severity", "warning"), ("service", service)]),
            annotations: annotations(settings, name, &summary, description),
            ..Rule::default()
        }
    };
    let of_limit = format!(
        "{{{{ with printf `{}{{{}=%q}}` $labels.budget | query }}}}{{{{ . | first | value | humanize }}}}{{{{ end }}}}",
        series(Id::BudgetLimit),
        Key::Budget.label(),
    );
    rules.push(alert(
        "LLMTokenBudgetBurn",
        format!(
            "{BY_MIDNIGHT} > on ({by}) {limit}\nand on ({by})\n{TODAY} >= on ({by}) ({BEGUN} * {limit})\nunless on ({by})\n{TODAY} >= on ({by}) {limit}"
        ),
        Some("15m"),
        "will be used up today",
        &format!(
            "At the rate of the last hour {{{{ $value | humanize }}}} will be used by midnight (UTC), and {of_limit} may be."
        ),
    ));
    rules.push(alert(
        "LLMTokenBudgetExhausted",
        format!("{TODAY} >= on ({by}) {limit}"),
        None,
        "is used up",
        &format!("{{{{ $value | humanize }}}} was used since midnight (UTC), and {of_limit} may be."),
    ));
    Group { name: "tokometer-budgets".to_owned(), interval: STEP.to_owned(), rules }
}
