//! Expressions about objectives: their limits, good requests, and the series that `tokometer rules` records.

use crate::dashboards::promql::CHOSEN;
use crate::dashboards::promql::POD;
use crate::dashboards::promql::WINDOW;
use crate::dashboards::promql::is;
use crate::dashboards::promql::list;
use crate::dashboards::promql::series;
use crate::dashboards::viz::IDLE;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

/// A series recorded by the rules (Sloth's names). A test checks that each is in their output.
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

/// A recorded series of the selected objectives. Its labels are those that objectives are grouped by, without process
/// labels.
pub(super) fn recorded(series: Recorded, group_by: &[String]) -> String {
    // Objective and budget are the same for all groups.
    let of_all = matches!(series, Recorded::Objective | Recorded::Budget);
    format!("{}{{{}}}", series.name(), chosen_objectives(if of_all { &[] } else { group_by }))
}

/// Matchers of the selected objectives, and of the grouping labels that have a variable.
pub(super) fn chosen_objectives(group_by: &[String]) -> String {
    let mut matchers = vec!["slo=~\"$slo\"".to_owned()];
    let known = group_by.iter().filter(|label| ["namespace", "model"].contains(&label.as_str()));
    matchers.extend(known.map(|label| format!("{label}=~\"${label}\"")));
    matchers.join(",")
}

/// The burn rate in the window of this ratio.
pub(super) fn burn(ratio: Recorded, group_by: &[String]) -> String {
    format!("{}\n/ on (sloth_id) group_left ()\n{}", recorded(ratio, group_by), recorded(Recorded::Budget, group_by))
}

/// The maximum time to first token: the strictest of the objectives.
pub(super) fn first_token_limit() -> String {
    format!("min ({})", series(Id::SloThreshold, &[is(Key::Threshold, "ttft_seconds")]))
}

/// The minimum tokens per second: the strictest of the objectives.
pub(super) fn decode_floor() -> String {
    format!("max ({})", series(Id::SloThreshold, &[is(Key::Threshold, "decode_tokens_per_second")]))
}

/// The maximum gap between tokens.
pub(super) fn gap_limit() -> String {
    format!("min ({})", series(Id::SloThreshold, &[is(Key::Threshold, "gap_seconds")]))
}

/// Selects the goodput objectives by their good-token counts, because objectives can have any name and only these count
/// good tokens.
fn of_goodput(expr: &str) -> String {
    let tokens = series(Id::SloGoodTokens, &[]);
    format!("{expr}\nand on (job, instance, {slo}) {tokens}", slo = Key::Slo.label())
}

/// The share of requests that met every target; the worst of several goodput objectives.
pub(super) fn goodput() -> String {
    let slo = Key::Slo.label();
    let good = of_goodput(&format!("rate({}[{WINDOW}])", series(Id::SloEvents, &[is(Key::Verdict, "good")])));
    let all = of_goodput(&format!("rate({}[{WINDOW}])", series(Id::SloEvents, &[])));
    format!("min (\n  sum by ({slo}) ({good})\n  /\n  sum by ({slo}) ({all})\n)")
}

/// The target of goodput.
pub(super) fn goodput_target() -> String {
    format!("min ({})", of_goodput(&series(Id::SloObjective, &[])))
}

/// Burn rates over an hour from the counters alone, available without recording rules; NaN without traffic.
pub(super) fn burn_from_counters(by: &str) -> String {
    let slo = Key::Slo.label();
    let bad = series(Id::SloEvents, &[is(Key::Verdict, "bad")]);
    let all = series(Id::SloEvents, &[]);
    let target = series(Id::SloObjective, &[]);
    format!(
        "sum by ({by}) (rate({bad}[1h]))\n/\nsum by ({by}) (rate({all}[1h]))\n/ on ({slo}) group_left ()\n(1 - max by ({slo}) ({target}))"
    )
}

/// The state of each engine as a number of [`ENGINE_STATES`]: the worst one that applies.
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

/// Names and colours of the numbers of [`engine_state`], worst first; an idle engine is distinct from one that is down.
pub(super) const ENGINE_STATES: [(u32, &str, &str); 6] = [
    (0, "not scraped", "dark-red"),
    (1, "unreachable", "red"),
    (2, "wedged", "dark-purple"),
    (3, "mostly waiting", "orange"),
    (4, "serving", "green"),
    (5, "idle", IDLE),
];
