//! The `tenants`, `prices` and `budgets` sections of the configuration.

use std::path::{Path, PathBuf};

use tokometer::config::{Config, Environment, Flags};
use tokometer_telemetry::accounting::{Limit, Price, Settings, TenantForm};

fn load(yaml: &str) -> Result<Config, String> {
    Config::from_layers(Some((Path::new("t.yaml"), yaml)), &Flags::default(), &Environment::default())
        .map_err(|error| error.to_string())
}

fn config(yaml: &str) -> Config {
    load(yaml).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn empty_config_counts_nothing_and_reads_no_header() {
    let settings = config("").settings;
    assert_eq!(settings.accounting, Settings::default());
    assert!(!settings.accounting.is_on());
    assert!(settings.observe.targets.tenant.is_empty() && settings.observe.targets.claim.is_none());
    let off = config("tenants: {from_headers: [x-team], from_jwt_claim: sub}").settings;
    assert!(off.observe.targets.tenant.is_empty() && off.observe.targets.claim.is_none());
}

#[test]
fn default_header_does_not_replace_a_claim() {
    for (yaml, headers, claim) in [
        ("", &["x-tenant"][..], None),
        (", from_jwt_claim: sub", &[], Some("sub")),
        (", from_jwt_claim: sub, from_headers: [X-Tenant]", &["x-tenant"], Some("sub")),
        (", from_headers: [x-team]", &["x-team"], None),
    ] {
        let targets = config(&format!("tenants: {{enabled: true{yaml}}}")).settings.observe.targets;
        let found: Vec<&str> = targets.tenant.iter().map(|name| &**name).collect();
        assert_eq!((found.as_slice(), targets.claim.as_deref()), (headers, claim), "{yaml}");
    }
}

/// The example in docs/how-to/tenants.md.
fn example() -> String {
    let document = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/how-to/tenants.md"));
    let document = document.expect("docs/how-to/tenants.md is readable");
    let (_, rest) = document.split_once("```yaml\n").expect("an example");
    rest.split_once("```").expect("the end of the example").0.to_owned()
}

#[test]
fn documentation_example_gives_the_documented_settings() {
    let config = config(&example());
    assert_eq!(config.warnings, []);
    let accounting = &config.settings.accounting;
    let tenants = accounting.tenants.as_ref().unwrap();
    assert_eq!((tenants.form, tenants.most, tenants.only_named), (TenantForm::Hash, 100, false));
    assert_eq!(tenants.hash_key_file, Some(PathBuf::from("/etc/tokometer/tenant-key")));
    assert_eq!(tenants.names["4711"], "acme");
    let targets = &config.settings.observe.targets;
    assert_eq!((targets.tenant.as_slice(), targets.claim.as_deref()), (&["x-tenant".into()][..], Some("org.id")));
    let prices = accounting.prices.as_ref().unwrap();
    assert_eq!((prices.currency.as_str(), prices.models.len()), ("USD", 2));
    let price = Price { model: "llama-3.1-8b*".to_owned(), input: 0.05, cached_input: Some(0.01), output: 0.08 };
    assert_eq!(prices.models[0], price);
    assert_eq!(accounting.budgets[0].limit, Limit::Tokens(200_000_000));
    assert_eq!(
        (accounting.budgets[1].limit, accounting.budgets[1].tenants.as_slice()),
        (Limit::Cost(25.0), &["4711".to_owned()][..])
    );
}

#[test]
fn objectives_use_the_same_tenant_headers() {
    let yaml = "tenants: {enabled: true, from_headers: [X-Team]}\nslo: {stall: [{applies_to: {tenants: [gold]}}]}";
    assert_eq!(config(yaml).settings.observe.targets.tenant, ["x-team".into()]);
}

#[test]
fn config_errors_name_the_position_and_the_fix() {
    let price = "model: m, input_per_million: 1, output_per_million: 1";
    for (yaml, expected) in [
        ("tenants: {from_headers: ['a b']}", "tenants.from_headers[0]: invalid header name `a b`"),
        (
            "tenants:\n  from_headers: [x-tenant, Authorization]\n",
            "t.yaml:2:28: tenants.from_headers[1]: `Authorization` contains secrets; use another header",
        ),
        ("tenants: {from_headers: [cookie]}", "`cookie` contains secrets"),
        (
            "tenants: {from_headers: [X-Api-Key], label: plain}",
            "which `label: plain` would expose; write `label: hash`",
        ),
        (
            "tenants: {enabled: true, from_headers: []}",
            "no source of the tenant is set; write a header such as x-tenant",
        ),
        ("tenants: {from_jwt_claim: ''}", "the claim is empty; write one such as sub"),
        ("tenants: {hash_key_file: ''}", "tenants.hash_key_file: the path is empty"),
        ("tenants: {label: hashed}", "did you mean `hash`?"),
        ("tenants: {max: 0}", "tenants.max: 0 is out of range"),
        ("tenants: {names: {a: ' '}}", "tenants.names.<redacted>: invalid label ` `"),
        (
            "tenants: {names: {a: 1}}",
            "tenants.names.<redacted>: `1` (an integer) is not valid here; write a string; put it in quotes",
        ),
        ("tenants: {enabled: true, only_named: true}", "`names` is empty, so all tenants would be `other`"),
        ("prices: {currency: 'U S D'}", "prices.currency: invalid currency `U S D`; write a word such as USD"),
        ("prices: {currency: tokens}", "`tokens` is the unit of token budgets"),
        ("prices: {models: [{model: 'a*b', input_per_million: 1, output_per_million: 1}]}", "invalid model name `a*b`"),
        (
            "prices: {models: [{input_per_million: 1, output_per_million: 1}]}",
            "prices.models[0].model: missing; add `model: ...`",
        ),
        (
            "prices: {models: [{model: m, input_per_million: 1}]}",
            "prices.models[0].output_per_million: missing; add `output_per_million: ...` (Price of one million output tokens",
        ),
        (
            "prices: {models: [{model: m, input: 1}]}",
            "prices.models[0].input: unknown key; the keys of `prices.models[0]` are",
        ),
        ("prices: {models: [{model: m, input_per_million: -1}]}", "-1 is out of range"),
        ("budgets: [{name: Daily, tokens_per_day: 1}]", "budgets[0].name: invalid name `Daily`; use lowercase letters"),
        ("budgets: [{name: d}]", "budgets[0].tokens_per_day: the budget has no limit; set this or `cost_per_day`"),
        ("budgets: [{name: d, tokens_per_day: 1, cost_per_day: 1}]", "budgets[0].cost_per_day: a budget has one limit"),
        ("budgets: [{name: d, cost_per_day: 1}]", "no prices are set; add some to `prices.models`"),
        (
            "budgets: [{name: d, tokens_per_day: 1}, {name: d, tokens_per_day: 1}]",
            "budgets[1].name: two budgets have the name `d`; use unique names",
        ),
        ("budgets: [{name: d, tokens_per_day: 1, tenants: [a]}]", "budgets[0].tenants: the budget applies to tenants"),
        ("budgets: [{name: d, tokens_per_day: 1, models: ['*a']}]", "budgets[0].models[0]: invalid model name `*a`"),
    ] {
        let error = load(yaml).expect_err(yaml);
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    for (yaml, expected) in [
        ("tenants: {enabled: true}".to_owned(), "a guessed tenant name can be confirmed by its hash"),
        ("tenants: {enabled: true, label: plain, hash_key_file: k}".to_owned(), "has no effect with `label: plain`"),
        (format!("prices: {{models: [{{{price}}}, {{{price}}}]}}"), "`m` is never used: an entry above matches it"),
        (
            format!("prices: {{models: [{{{}}}, {{{price}}}]}}", price.replace("model: m", "model: '*'")),
            "prices.models[1].model: `m` is never used: an entry above matches it",
        ),
    ] {
        let warnings: Vec<String> = config(&yaml).warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.iter().any(|warning| warning.contains(expected)), "{expected}\n{warnings:?}");
    }
}
