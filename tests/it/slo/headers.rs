//! SLO targets and tenants from request headers.

use std::path::Path;
use std::time::Duration;

use tokometer::config::{Config, Environment, Flags};
use tokometer::replay::{Recording, replay};
use tokometer_observe::measure::{Record, Targets};
use tokometer_observe::observer::{Settings, TargetHeaders};

fn record(headers: &str, targets: TargetHeaders) -> Record {
    let body = r#"{"model":"m","stream":true,"messages":[]}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let response = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let reads = vec![(Duration::from_millis(5), response.to_vec())];
    let recording = Recording { path: "written".into(), request: request.into_bytes(), reads, end: None };
    let settings = Settings { targets, ..Settings::default() };
    replay(&recording, &settings).records.pop().expect("one request record")
}

#[test]
fn targets_and_tenant_are_read_from_configured_headers() {
    let headers = "X-SLO-TTFT-MS: 250\r\nx-slo-tpot-ms: 12.5\r\nX-Tenant: gold\r\n";
    let all = TargetHeaders { speed: true, tenant: vec!["x-tenant".into()], ..TargetHeaders::default() };
    let stated = Targets {
        first_token: Some(Duration::from_millis(250)),
        per_token: Some(Duration::from_micros(12_500)),
        tenant: Some("gold".into()),
        priority_class: None,
        data_parallel_rank: None,
    };
    assert_eq!(record(headers, all).request.targets.as_deref(), Some(&stated));
    let without_tenant = record(headers, TargetHeaders { speed: true, ..TargetHeaders::default() });
    assert_eq!(without_tenant.request.targets.as_deref(), Some(&Targets { tenant: None, ..stated }));
    assert_eq!(without_tenant.request.stream, Some(true), "the requested mode is known for a refused request");
    assert_eq!(record(headers, TargetHeaders::default()).request.targets, None);
    assert_eq!(
        record("x-slo-ttft-ms: soon\r\n", TargetHeaders { speed: true, ..TargetHeaders::default() }).request.targets,
        None
    );
}

#[test]
fn clients_set_targets_only_if_the_configuration_allows_it() {
    for (setting, is_read) in [("", false), ("slo: {request_targets: {enabled: true}}", true)] {
        let yaml = format!("listeners: [{{listen: '127.0.0.1:1', upstream: '127.0.0.1:2'}}]\n{setting}\n");
        let file = (Path::new("t.yaml"), yaml.as_str());
        let config = Config::from_layers(Some(file), &Flags::default(), &Environment::default()).unwrap();
        let record = record("x-slo-ttft-ms: 1\r\nx-llm-d-slo-tpot-ms: 1\r\n", config.settings.observe.targets);
        assert_eq!(record.request.targets.is_some(), is_read, "{setting}");
    }
}

#[test]
fn new_target_headers_win_over_their_old_names() {
    let headers = "x-slo-ttft-ms: 250\r\nX-LLM-D-SLO-TTFT-MS: 300\r\nx-llm-d-slo-tpot-ms: 20\r\nx-slo-tpot-ms: 10\r\n";
    let stated = Targets {
        first_token: Some(Duration::from_millis(300)),
        per_token: Some(Duration::from_millis(20)),
        ..Targets::default()
    };
    assert_eq!(
        record(headers, TargetHeaders { speed: true, ..TargetHeaders::default() }).request.targets.as_deref(),
        Some(&stated)
    );
    // If the new header has an invalid value, a valid value of the old header is used.
    let headers = "x-slo-ttft-ms: 250\r\nx-llm-d-slo-ttft-ms: fast\r\n";
    let stated = Targets { first_token: Some(Duration::from_millis(250)), ..Targets::default() };
    assert_eq!(
        record(headers, TargetHeaders { speed: true, ..TargetHeaders::default() }).request.targets.as_deref(),
        Some(&stated)
    );
}

#[test]
fn priority_class_is_read_only_where_tenants_are_distinguished() {
    let class = |headers, tenants: bool| {
        let tenant = if tenants { vec!["x-tenant".into()] } else { Vec::new() };
        record(headers, TargetHeaders { tenant, ..TargetHeaders::default() })
            .request
            .targets
            .and_then(|all| all.priority_class)
    };
    let both = "x-gateway-inference-objective: old\r\nX-LLM-D-Inference-Objective: premium\r\n";
    assert_eq!(class(both, true).as_deref(), Some("premium"));
    assert_eq!(class("x-gateway-inference-objective: batch\r\n", true).as_deref(), Some("batch"));
    assert_eq!(class(both, false), None);
}

#[test]
fn data_parallel_rank_is_recorded_without_other_targets() {
    let rank = |headers| {
        record(headers, TargetHeaders { speed: true, ..TargetHeaders::default() })
            .request
            .targets
            .and_then(|all| all.data_parallel_rank)
    };
    assert_eq!(rank("X-data-parallel-rank: 3\r\n"), Some(3));
    assert_eq!(rank("X-data-parallel-rank: 300\r\n"), None);
}
