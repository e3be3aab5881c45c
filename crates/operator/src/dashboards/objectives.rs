//! Expressions about objectives: their limits, good requests, and the series that `tokometer rules` records.

use std::fmt::Display;

use crate::dashboards::promql::*;
use crate::dashboards::viz::IDLE;
use tokometer_observe::closed_enum;
use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;

closed_enum! {
    /// A series that the rules record (Sloth's names). A test checks that each is in their output.
    pub(super) enum Recorded {
        /// Ratio of bad requests.
        BadRatio5m = "slo:sli_error:ratio_rate5m",
        /// Ratio of bad requests.
        BadRatio1h = "slo:sli_error:ratio_rate1h",
        /// Ratio of bad requests.
        BadRatio6h = "slo:sli_error:ratio_rate6h",
        /// Ratio of bad requests.
        BadRatio3d = "slo:sli_error:ratio_rate3d",
        /// Bad requests per step.
        BadStep = "slo:sli_bad:step5m",
        /// Requests per step.
        AllStep = "slo:sli_all:step5m",
        /// The target.
        Objective = "slo:objective:ratio",
        /// The allowed ratio of bad requests.
        Budget = "slo:error_budget:ratio",
        /// The rest of the period's budget.
        BudgetLeft = "slo:period_error_budget_remaining:ratio",
    }
}

/// A recorded series of the selected objectives. Its labels are those that objectives are grouped by, without process
/// labels.
pub(super) fn recorded(series: Recorded, group_by: &[String]) -> String {
    // Objective and budget have one value for all groups.
    let of_all = matches!(series, Recorded::Objective | Recorded::Budget);
    format!("{}{{{}}}", series.as_str(), chosen_objectives(if of_all { &[] } else { group_by }))
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

/// A limit that objectives set: the strictest of them.
pub(super) struct Limit {
    pub(super) value: String,
    /// Comparison of a value that breaks it.
    operator: &'static str,
}

impl Limit {
    /// The values that break it.
    pub(super) fn broken_by(&self, value: impl Display) -> String {
        format!("({value})\n{} on ()\n({})", self.operator, self.value)
    }
}

fn ceiling(threshold: &str) -> Limit {
    Limit { value: min(Id::SloThreshold).only(Key::Threshold, threshold).to_string(), operator: ">" }
}

/// Maximum time to first token.
pub(super) fn first_token_limit() -> Limit {
    ceiling("ttft_seconds")
}

/// Maximum gap between tokens.
pub(super) fn gap_limit() -> Limit {
    ceiling("gap_seconds")
}

/// Minimum tokens per second.
pub(super) fn decode_floor() -> Limit {
    Limit { value: max(Id::SloThreshold).only(Key::Threshold, "decode_tokens_per_second").to_string(), operator: "<" }
}

/// Selects the goodput objectives by their good-token counts, because objectives can have any name and only these count
/// good tokens.
fn of_goodput(expr: impl Display) -> String {
    let tokens = series(Id::SloGoodTokens);
    format!("{expr}\nand on (job, instance, {slo}) {tokens}", slo = Key::Slo.label())
}

/// The share of requests that met every target; the worst of several goodput objectives.
pub(super) fn goodput() -> String {
    let slo = Key::Slo.label();
    let good = of_goodput(rate(Id::SloEvents).only(Key::Verdict, "good"));
    let all = of_goodput(rate(Id::SloEvents));
    format!("min (\n  sum by ({slo}) ({good})\n  /\n  sum by ({slo}) ({all})\n)")
}

/// The target of goodput.
pub(super) fn goodput_target() -> Limit {
    Limit { value: format!("min ({})", of_goodput(series(Id::SloObjective))), operator: "<" }
}

/// Burn rates over an hour from the counters alone, available without recording rules; NaN without traffic.
pub(super) fn burn_from_counters(by: &str) -> String {
    let slo = Key::Slo.label();
    let (bad, all) = (series(Id::SloEvents).only(Key::Verdict, "bad"), series(Id::SloEvents));
    let target = max(Id::SloObjective).by(Key::Slo);
    format!(
        "sum by ({by}) (rate({bad}[1h]))\n/\nsum by ({by}) (rate({all}[1h]))\n/ on ({slo}) group_left ()\n(1 - {target})"
    )
}

/// Tokometers that were scraped within a day, by whether they are scraped now.
pub(super) fn known(up: &str) -> String {
    format!("{up} and on (job, instance) last_over_time({}[1d])", series(Id::BuildInfo))
}

/// Number of tokometers that are not scraped any more.
pub(super) fn sidecars_down() -> String {
    format!("sum ({})", known(&format!("(up{{{CHOSEN}}} == bool 0)")))
}

/// The state of each engine as a number of [`ENGINE_STATES`]: the worst one that applies.
pub(super) fn engine_state() -> String {
    let state = |state: u32, condition: String| format!("{state} + 0 * ({condition})");
    let increases = |of: Expr| format!("sum by ({POD}) (increase({of}[{WINDOW}])) > 0");
    let (waiting, streaming) = (pods(Id::InFlight), pods(Id::InFlight));
    let waiting = waiting.only(Key::Phase, "waiting_first_token");
    [
        format!("0 * (max by ({POD}) ({}) == 0)", known(&format!("up{{{CHOSEN}}}"))),
        state(1, increases(series(Id::ConnectFailures))),
        state(1, increases(series(Id::EngineScrapeFailures).only(Key::Reason, "connect"))),
        state(2, positive(max(Id::EngineWedged).by_pod())),
        state(3, format!("{waiting} > {}", streaming.only(Key::Phase, "streaming"))),
        state(4, positive(pods(Id::InFlight))),
        format!("5 + 0 * {}", pods(Id::InFlight)),
    ]
    .join("\nor ")
}

fn pods(id: Id) -> Expr {
    sum(id).by_pod()
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
