//! Names: of alerts, and of the series that rules ask for.

use tokometer_telemetry::export::table::Id;
use tokometer_telemetry::export::table::Key;
use tokometer_telemetry::export::table::metric;
use tokometer_telemetry::slo::Goal;
use tokometer_telemetry::slo::Objective;
use tokometer_telemetry::slo::Settings;

/// Every alert that rules may hold. Each has a page in `docs/runbooks`.
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

/// The alert on the burn rate of such an objective.
pub(super) fn burn_alert(goal: &Goal) -> &'static str {
    match goal {
        Goal::Availability => "LLMAvailabilityErrorBudgetBurn",
        Goal::FirstToken { .. } => "LLMTTFTErrorBudgetBurn",
        Goal::DecodeRate { .. } => "LLMDecodeRateErrorBudgetBurn",
        Goal::Stall { .. } => "LLMStallErrorBudgetBurn",
        Goal::Goodput => "LLMGoodputErrorBudgetBurn",
    }
}

/// The series of a metric, as it is queried.
pub(super) fn series(id: Id) -> String {
    metric(id).prometheus().full()
}

/// Judged exchanges of an objective: all of them, or the bad ones.
pub(super) fn events(objective: &Objective, bad: bool) -> String {
    let verdict = if bad { format!(",{}=\"bad\"", Key::Verdict.label()) } else { String::new() };
    format!("{}{{{}=\"{}\"{verdict}}}", series(Id::SloEvents), Key::Slo.label(), objective.name)
}

/// The id under which Sloth's dashboards know an objective.
pub(super) fn sloth_id(settings: &Settings, objective: &Objective) -> String {
    format!("{}-{}", settings.rules.service, objective.name)
}

/// The recorded series of one objective.
pub(super) fn recorded(settings: &Settings, objective: &Objective, name: &str) -> String {
    format!("{name}{{sloth_id=\"{}\"}}", sloth_id(settings, objective))
}

/// A number as PromQL and people read it: no noise of binary fractions.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.10}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
