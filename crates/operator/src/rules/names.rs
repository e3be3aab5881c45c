//! Names of alerts, and of the series used in rules.

use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;
use tokometer_telemetry::slo::Goal;
use tokometer_telemetry::slo::Objective;
use tokometer_telemetry::slo::Settings;

/// Every alert that the rules can contain. Each has a page in `docs/runbooks`.
pub const ALERTS: [&str; 22] = [
    "LLMAvailabilityErrorBudgetBurn",
    "LLMTTFTErrorBudgetBurn",
    "LLMDecodeRateErrorBudgetBurn",
    "LLMStallErrorBudgetBurn",
    "LLMGoodputErrorBudgetBurn",
    "LLMErrorBudgetExhausted",
    "LLMSLOMetricAbsent",
    "LLMTokensStalled",
    "LLMQueueGrowing",
    "LLMPodSlowOutlier",
    "LLMTruncatedStreams",
    "LLMUpstreamDown",
    "LLMClientDisconnectsHigh",
    "LLMSidecarDown",
    "LLMSidecarMissing",
    "LLMSidecarBypassed",
    "LLMSidecarTelemetryDropped",
    "LLMSidecarParseFallback",
    "LLMSidecarRestarting",
    "LLMSidecarOverheadHigh",
    "LLMTokenBudgetBurn",
    "LLMTokenBudgetExhausted",
];

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

/// The full Prometheus name of a metric.
pub(super) fn series(id: Id) -> String {
    metric(id).prometheus().full()
}

/// Selector of the evaluated requests of an objective: all of them, or only the bad ones.
pub(super) fn events(objective: &Objective, bad: bool) -> String {
    let verdict = if bad { format!(",{}=\"bad\"", Key::Verdict.label()) } else { String::new() };
    format!("{}{{{}=\"{}\"{verdict}}}", series(Id::SloEvents), Key::Slo.label(), objective.name)
}

/// The id by which Sloth's dashboards find an objective.
pub(super) fn sloth_id(settings: &Settings, objective: &Objective) -> String {
    format!("{}-{}", settings.rules.service, objective.name)
}

/// Selector of a recorded series of one objective.
pub(super) fn recorded(settings: &Settings, objective: &Objective, name: &str) -> String {
    format!("{name}{{sloth_id=\"{}\"}}", sloth_id(settings, objective))
}

/// Formats a number for PromQL and for people, without floating-point noise.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.10}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
