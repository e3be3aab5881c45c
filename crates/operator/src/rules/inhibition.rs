//! Inhibition rules for Alertmanager: a fault causes one page, not a page for each of its effects.

use serde_json::{Value, json};

use crate::rules::format::stream;
use tokometer_telemetry::slo::Settings;

/// `inhibit_rules`, to be merged into Alertmanager's configuration.
pub(super) fn alertmanager(settings: &Settings) -> String {
    let rule = |source: &[String], target: &[String], equal: &[&str]| {
        let mut equal: Vec<&str> = equal.to_vec();
        equal.insert(0, "service");
        json!({"source_matchers": source, "target_matchers": target, "equal": equal})
    };
    let is = |name: &str| format!("alertname=\"{name}\"");
    let among = |names: &str| format!("alertname=~\"{names}\"");
    let page = || "severity=\"critical\"".to_owned();
    let ticket = || "severity=\"warning\"".to_owned();
    let by: Vec<&str> = settings.rules.group_by.iter().map(String::as_str).collect();
    let of_objective: Vec<&str> = by.iter().copied().chain(["alertname", "slo"]).collect();
    let server = ["namespace", "pod", "instance"];
    let rules: Vec<Value> = vec![
        // The page for an objective inhibits the ticket for the same objective.
        rule(&[among("LLM.+ErrorBudgetBurn"), page()], &[among("LLM.+ErrorBudgetBurn"), ticket()], &of_objective),
        // Failed requests have no first token, and a request that misses any objective also misses goodput.
        rule(
            &[is("LLMAvailabilityErrorBudgetBurn"), page()],
            &[among("LLM(TTFT|DecodeRate|Stall|Goodput)ErrorBudgetBurn")],
            &by,
        ),
        rule(&[among("LLM(TTFT|DecodeRate|Stall)ErrorBudgetBurn"), page()], &[is("LLMGoodputErrorBudgetBurn")], &by),
        // The page means that at least half of a model's servers fail: the objectives of the model, and the tickets for
        // these servers, are consequences. These tickets in turn inhibit the other alerts on the servers.
        rule(
            &[among("LLMUpstreamDown|LLMTokensStalled"), page()],
            &[among("LLM.+ErrorBudgetBurn|LLMErrorBudgetExhausted")],
            &by,
        ),
        rule(&[is("LLMUpstreamDown"), page()], &[is("LLMTokensStalled")], &by),
        rule(&[is("LLMUpstreamDown"), page()], &[is("LLMUpstreamDown"), ticket()], &by),
        rule(&[is("LLMTokensStalled"), page()], &[is("LLMTokensStalled"), ticket()], &by),
        // Alerts on a single server.
        rule(&[is("LLMUpstreamDown")], &[is("LLMTokensStalled"), ticket()], &server),
        rule(
            &[among("LLMUpstreamDown|LLMTokensStalled"), ticket()],
            &[among("LLMQueueGrowing|LLMTruncatedStreams|LLMClientDisconnectsHigh|LLMPodSlowOutlier")],
            &server,
        ),
        // Nothing is measured while no tokometer can be scraped.
        rule(&[is("LLMSidecarDown")], &[is("LLMSLOMetricAbsent")], &["namespace"]),
    ];
    stream(&[json!({"inhibit_rules": rules})])
}
