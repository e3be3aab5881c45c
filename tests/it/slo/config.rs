//! The `slo` section of the configuration.

use std::path::Path;
use std::time::Duration;

use tokometer::config::{Config, Environment, Flags};
use tokometer_decode::Route;
use tokometer_telemetry::slo::{Goal, Settings};

fn load(yaml: &str) -> Result<Config, String> {
    Config::from_layers(Some((Path::new("t.yaml"), yaml)), &Flags::default(), &Environment::default())
        .map_err(|error| error.to_string())
}

fn settings(yaml: &str) -> Settings {
    load(yaml).unwrap_or_else(|error| panic!("{error}")).settings.slo
}

#[test]
fn empty_config_gives_the_defaults() {
    assert_eq!(settings(""), Settings::default());
    assert!(!load("").unwrap().settings.observe.targets.speed);
}

#[test]
fn objectives_are_read_from_yaml() {
    let yaml = "slo:\n  availability: []\n  decode_rate: []\n  stall: []\n  goodput: []\n  ttft:\n\
                \x20   - {name: fast, target_percent: 99.9, max: 500ms, per_1k_uncached_tokens: 0,\n\
                \x20      applies_to: {models: ['llama*'], routes: [chat], tenants: [gold]}}\n\
                \x20   - {max: 3s}\n";
    let config = load(yaml).unwrap();
    let all = &config.settings.slo.objectives;
    assert_eq!(all.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["fast", "ttft"]);
    assert!((all[0].target - 0.999).abs() < 1e-12);
    assert_eq!(all[0].goal, Goal::FirstToken { base: Duration::from_millis(500), per_1k_uncached: Duration::ZERO });
    assert_eq!(
        (all[0].scope.routes.as_slice(), all[0].scope.models.as_slice()),
        (&[Route::Chat][..], &["llama*".to_owned()][..])
    );
    assert_eq!(config.settings.observe.targets.tenant, ["x-tenant".into()]);
    assert_eq!(settings("slo: {enabled: false}").objectives, []);
    assert!(!load("slo: {enabled: false}").unwrap().settings.observe.targets.speed);
}

#[test]
fn config_errors_name_the_position_and_the_fix() {
    for (yaml, expected) in [
        (
            "slo:\n  ttft:\n    - name: Fast\n",
            "t.yaml:3:13: slo.ttft[0].name: invalid name `Fast`; use lowercase letters",
        ),
        ("slo: {ttft: [{}, {}]}", "slo.ttft[1].name: two objectives have the name `ttft`; use unique names"),
        ("slo: {ttft: [{name: goodput}]}", "slo.goodput[0].name: two objectives have the name `goodput`"),
        ("slo: {ttft: [{target_percent: 100}]}", "slo.ttft[0].target_percent: 100 is out of range"),
        ("slo: {stall: [{max: 1ms}]}", "slo.stall[0].max: unknown key"),
        ("slo: {stall: [{applies_to: {routes: [chatt]}}]}", "unknown route `chatt`; did you mean `chat`?"),
        ("slo: {stall: [{applies_to: {models: ['a*b']}}]}", "invalid model name `a*b`; `*` is allowed only at the end"),
        (
            "tenants: {from_headers: []}\nslo: {stall: [{applies_to: {tenants: [a]}}]}",
            "tenants.from_headers: an objective applies to tenants",
        ),
        ("slo: {reading: {slow: 15}}", "slo.reading.comfortable: must be above `slow` (15 tokens per second)"),
        ("slo: {rules: {service: ''}}", "slo.rules.service: invalid name ``"),
        ("slo: {rules: {group_by: [slo]}}", "slo.rules.group_by[0]: invalid label `slo`"),
        ("slo: {rules: {dashboard_url: 'a b'}}", "slo.rules.dashboard_url: invalid URL"),
    ] {
        let error = load(yaml).expect_err(yaml);
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    let config = load("observe: {min_rate_tokens: 50}").unwrap();
    assert!(config.warnings.iter().any(|warning| warning.to_string().contains("is below `observe.min_rate_tokens`")));
}
