//! Compares the outcome of every recording with the facts that its recorder stored.

use std::collections::BTreeMap;

use super::{Case, all};

/// Expected outcome from the recorder's facts or the fixture's declaration, independent of `tokometer`.
fn expected(case: &Case) -> &str {
    if let Some(outcome) = case.meta["outcome"].as_str() {
        return outcome;
    }
    let event = case.recording.end.map(|(_, end)| format!("{end:?}"));
    let meta = &case.meta;
    let began = !meta["timing"]["t_first_content_us"].is_null();
    let failed = meta["errors"].as_array().is_some_and(|errors| !errors.is_empty());
    match (case.status(), event.as_deref()) {
        (Some(429 | 503 | 529), _) => "rejected_busy",
        (Some(400..=499), _) => "http_4xx",
        (Some(500..=599), _) => "http_5xx",
        // An error reported in the stream determines the outcome, even if the connection ended cleanly.
        (Some(_), _) if failed => "error_in_stream",
        _ if case.complete() => "ok",
        (_, Some("ClientAbort" | "ClientTimeout")) if began => "client_abort_mid_stream",
        (_, Some("ClientAbort" | "ClientTimeout")) => "client_abort_before_first_token",
        (_, Some("Reset")) => "upstream_reset",
        (_, Some("Eof")) => "truncated",
        facts => panic!("{}: no rule for {facts:?}", case.title()),
    }
}

/// Manually verified outcomes of unusual recordings. `expected` must return the same outcomes.
const SPECIAL: [(&str, &str, &str); 12] = [
    ("llamacpp-0.5.0-dev", "err-in-stream-context-full", "ok"),
    ("llamacpp-0.5.0-dev", "keepalive-stream-first-2", "truncated"),
    ("llamacpp-0.5.0-dev", "mid-chat-nonstream-abort", "client_abort_before_first_token"),
    ("llamacpp-0.5.0-dev", "native-infill", "http_5xx"),
    ("ollama-0.17.4", "api-chat-load-only", "ok"),
    ("ollama-0.17.4", "api-chat-stream-abort", "client_abort_mid_stream"),
    ("sglang-0.5.23", "engine-death-chat-nonstream", "truncated"),
    ("vllm-0.32.0", "chat-stream-abort", "client_abort_mid_stream"),
    ("vllm-0.32.0", "engine-death-chat-nonstream", "http_5xx"),
    ("vllm-0.32.0", "engine-death-chat-stream", "error_in_stream"),
    ("vllm-0.32.0", "engine-death-messages-stream", "ok"),
    ("vllm-0.32.0-rustfe", "engine-dead-next-chat", "upstream_reset"),
];

#[test]
fn outcomes_match_recorder_facts() {
    let cases = all();
    let (mut wrong, mut seen) = (Vec::new(), BTreeMap::new());
    for case in &cases {
        let expected = expected(case);
        let outcome = case.record().map(|record| record.outcome.as_str());
        *seen.entry(expected).or_insert(0) += 1;
        if expected != "ok" {
            println!("{} | {} | {expected} | {}", case.engine, case.name, outcome.unwrap_or("-"));
        }
        // Requests that generate no tokens, such as probes, may have no record.
        if outcome != Some(expected) && (outcome.is_some() || case.api.is_some()) {
            wrong.push(format!("{}: {}, expected {expected}", case.title(), outcome.unwrap_or("no record")));
        }
    }
    println!("{} recordings: {seen:?}", cases.len());
    for (engine, name, outcome) in SPECIAL {
        let case = cases.iter().find(|case| case.engine == engine && case.name == name);
        assert_eq!(case.map(expected), Some(outcome), "{engine} {name}");
    }
    assert!(wrong.is_empty(), "{} failures:\n{}", wrong.len(), wrong.join("\n"));
}
