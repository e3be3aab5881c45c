//! Objectives, worst first.

use std::cmp::Reverse;

use crate::top::canvas::Style;
use crate::top::numbers;
use tokometer_telemetry::live::snapshot::Objective;
use tokometer_telemetry::live::snapshot::Snapshot;

/// Severity of a state.
fn rank(state: &str) -> u8 {
    match state {
        "burning" => 3,
        "over" => 2,
        "ok" => 1,
        _ => 0,
    }
}

/// Objectives by severity, worst first; ties keep the order of the configuration.
pub(super) fn worst_first(snapshot: &Snapshot) -> Vec<&Objective> {
    let mut sorted: Vec<&Objective> = snapshot.objectives.iter().collect();
    sorted.sort_by_key(|objective| Reverse(rank(&objective.state)));
    sorted
}

/// The style of an objective.
pub(super) fn style(objective: &Objective) -> Style {
    match rank(&objective.state) {
        3 => Style::Bad,
        2 => Style::Warn,
        1 => Style::Good,
        _ => Style::Faint,
    }
}

/// A short form: `ttft BURNING 14.4x`.
pub(super) fn short(objective: &Objective) -> String {
    let name = numbers::name(&objective.name, 24);
    let burn = objective.recent.burn_rate.map(|rate| format!(" {}x", numbers::rate(rate))).unwrap_or_default();
    match rank(&objective.state) {
        3 => format!("{name} BURNING{burn}"),
        2 => format!("{name} OVER{burn}"),
        _ => format!("{name} {}", numbers::name(&objective.state, 12)),
    }
}

/// Details: target, requests evaluated in the last five minutes, and the main reasons of bad ones.
pub(super) fn details(objective: &Objective) -> Vec<String> {
    let recent = &objective.recent;
    // Four decimal places: the highest target is 99.9999 %.
    let target = format!("target {} %", (objective.target * 1e6).round() / 1e4);
    let judged = format!("good {}  bad {}", numbers::count(recent.good), numbers::count(recent.bad));
    let mut reasons: Vec<(&String, &u64)> = recent.reasons.iter().collect();
    reasons.sort_by_key(|(_, count)| Reverse(**count));
    let reasons =
        reasons.iter().take(2).map(|(name, count)| format!("{} {}", numbers::name(name, 24), numbers::count(**count)));
    [target, judged].into_iter().chain(reasons).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::details;
    use super::short;
    use super::worst_first;
    use tokometer_telemetry::live::snapshot::Objective;
    use tokometer_telemetry::live::snapshot::Recent;
    use tokometer_telemetry::live::snapshot::Snapshot;

    pub(in crate::top) fn objective(name: &str, state: &str, burn: Option<f64>) -> Objective {
        let reasons = [("too_slow".to_owned(), 30), ("no_token".to_owned(), 1)].into();
        Objective {
            name: name.to_owned(),
            kind: name.to_owned(),
            target: 0.99,
            recent: Recent { window_seconds: 300.0, good: 120, bad: 31, reasons, burn_rate: burn },
            state: state.to_owned(),
            ..Objective::default()
        }
    }

    #[test]
    fn worst_objective_is_first_with_its_state() {
        let objectives = vec![
            objective("stall", "idle", None),
            objective("availability", "ok", Some(0.1)),
            objective("ttft", "burning", Some(14.41)),
        ];
        let snapshot = Snapshot { objectives, ..Snapshot::default() };
        let said: Vec<String> = worst_first(&snapshot).iter().map(|objective| short(objective)).collect();
        assert_eq!(said, ["ttft BURNING 14x", "availability ok", "stall idle"]);
        let details = details(&snapshot.objectives[2]);
        assert_eq!(details, ["target 99 %", "good 120  bad 31", "too_slow 30", "no_token 1"]);
    }
}
