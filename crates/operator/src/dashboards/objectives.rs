//! Expressions about objectives: their limits, what was good by them, and the series that `tokometer rules` records.

use crate::dashboards::promql::CHOSEN;
use crate::dashboards::promql::POD;
use crate::dashboards::promql::WINDOW;
use crate::dashboards::promql::is;
use crate::dashboards::promql::list;
use crate::dashboards::promql::series;
use crate::dashboards::viz::IDLE;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

/// A series that the rules record (Sloth's names). A test holds that each is in their output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    BadRatio5m,
    BadRatio1h,
    BadRatio6h,
    BadRatio3d,
    BadStep,
    AllStep,
    Objective,
    Budget,
    BudgetLeft,
}

impl Recorded {
    fn name(self) -> &'static str {
        match self {
            Recorded::BadRatio5m => "slo:sli_error:ratio_rate5m",
            Recorded::BadRatio1h => "slo:sli_error:ratio_rate1h",
            Recorded::BadRatio6h => "slo:sli_error:ratio_rate6h",
            Recorded::BadRatio3d => "slo:sli_error:ratio_rate3d",
            Recorded::BadStep => "slo:sli_bad:step5m",
            Recorded::AllStep => "slo:sli_all:step5m",
            Recorded::Objective => "slo:objective:ratio",
            Recorded::Budget => "slo:error_budget:ratio",
            Recorded::BudgetLeft => "slo:period_error_budget_remaining:ratio",
        }
    }
}

/// A recorded series of the chosen objectives. It has the labels that objectives are grouped by, not those of a process.
pub(super) fn recorded(series: Recorded, group_by: &[String]) -> String {
    // Objective and budget are one figure for all groups.
    let of_all = matches!(series, Recorded::Objective | Recorded::Budget);
    format!("{}{{{}}}", series.name(), chosen_objectives(if of_all { &[] } else { group_by }))
}

/// Matchers of the chosen objectives, and of those groups for which there is a variable.
pub(super) fn chosen_objectives(group_by: &[String]) -> String {
    let mut matchers = vec!["slo=~\"$slo\"".to_owned()];
    let known = group_by.iter().filter(|label| ["namespace", "model"].contains(&label.as_str()));
    matchers.extend(known.map(|label| format!("{label}=~\"${label}\"")));
    matchers.join(",")
}

/// How many times faster than allowed the budget burnt in the window of this ratio.
pub(super) fn burn(ratio: Recorded, group_by: &[String]) -> String {
    format!("{}\n/ on (sloth_id) group_left ()\n{}", recorded(ratio, group_by), recorded(Recorded::Budget, group_by))
}

/// The longest first token that is allowed: the strictest of the objectives.
pub(super) fn first_token_limit() -> String {
    format!("min ({})", series(Id::SloThreshold, &[is(Key::Threshold, "ttft_seconds")]))
}

/// The fewest tokens per second that are allowed: the strictest of the objectives.
pub(super) fn decode_floor() -> String {
    format!("max ({})", series(Id::SloThreshold, &[is(Key::Threshold, "decode_tokens_per_second")]))
}

/// The longest gap that is allowed.
pub(super) fn gap_limit() -> String {
    format!("min ({})", series(Id::SloThreshold, &[is(Key::Threshold, "gap_seconds")]))
}

/// Keeps the series of objectives of goodput, whatever they are called: only these count good tokens.
fn of_goodput(expr: &str) -> String {
    let tokens = series(Id::SloGoodTokens, &[]);
    format!("{expr}\nand on (job, instance, {slo}) {tokens}", slo = Key::Slo.label())
}

/// The share of exchanges that were good by everything; of several objectives of goodput, the worst.
pub(super) fn goodput() -> String {
    let slo = Key::Slo.label();
    let good = of_goodput(&format!("rate({}[{WINDOW}])", series(Id::SloEvents, &[is(Key::Verdict, "good")])));
    let all = of_goodput(&format!("rate({}[{WINDOW}])", series(Id::SloEvents, &[])));
    format!("min (\n  sum by ({slo}) ({good})\n  /\n  sum by ({slo}) ({all})\n)")
}

/// What goodput aims at.
pub(super) fn goodput_target() -> String {
    format!("min ({})", of_goodput(&series(Id::SloObjective, &[])))
}

/// Burn rates over an hour from the counters alone, so that they are there without any rule; NaN without traffic.
pub(super) fn burn_from_counters(by: &str) -> String {
    let slo = Key::Slo.label();
    let bad = series(Id::SloEvents, &[is(Key::Verdict, "bad")]);
    let all = series(Id::SloEvents, &[]);
    let target = series(Id::SloObjective, &[]);
    format!(
        "sum by ({by}) (rate({bad}[1h]))\n/\nsum by ({by}) (rate({all}[1h]))\n/ on ({slo}) group_left ()\n(1 - max by ({slo}) ({target}))"
    )
}

/// What each engine does, as a number for [`ENGINE_STATES`]; the worst that is true.
pub(super) fn engine_state() -> String {
    let by = list(&POD);
    let known = format!("last_over_time({}[1d])", series(Id::BuildInfo, &[]));
    let wedged = series(Id::EngineWedged, &[]);
    let failures = series(Id::ConnectFailures, &[]);
    let scrapes = series(Id::EngineScrapeFailures, &[is(Key::Reason, "connect")]);
    let in_flight = series(Id::InFlight, &[]);
    let waiting = series(Id::InFlight, &[is(Key::Phase, "waiting_first_token")]);
    let streaming = series(Id::InFlight, &[is(Key::Phase, "streaming")]);
    format!(
        "0 * (max by ({by}) (up{{{CHOSEN}}} and on (job, instance) {known}) == 0)\n\
         or 1 + 0 * (sum by ({by}) (increase({failures}[{WINDOW}])) > 0)\n\
         or 1 + 0 * (sum by ({by}) (increase({scrapes}[{WINDOW}])) > 0)\n\
         or 2 + 0 * (max by ({by}) ({wedged}) > 0)\n\
         or 3 + 0 * (sum by ({by}) ({waiting}) > sum by ({by}) ({streaming}))\n\
         or 4 + 0 * (sum by ({by}) ({in_flight}) > 0)\n\
         or 5 + 0 * sum by ({by}) ({in_flight})"
    )
}

/// The numbers of [`engine_state`] as words, the worst first; an engine without work is not one that is down.
pub(super) const ENGINE_STATES: [(u32, &str, &str); 6] = [
    (0, "not scraped", "dark-red"),
    (1, "unreachable", "red"),
    (2, "wedged", "dark-purple"),
    (3, "mostly waiting", "orange"),
    (4, "serving", "green"),
    (5, "idle", IDLE),
];
