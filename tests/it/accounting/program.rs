//! Accounting in the whole program: usage is exported, and no secret is exposed.

use std::path::Path;
use std::sync::Arc;

use tokometer::app::Instrument;
use tokometer::config::{Config, Environment, Flags};
use tokometer_proxy::listen::Address;
use tokometer_sim::load;

use crate::program::{get, simulated, value};
use crate::scrape::reading::until;

const SECRET: &str = "hunter2";

#[test]
fn tenant_usage_is_exported_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    let (runtime, simulator) = simulated();
    let upstream = simulator.local_address();
    let log = folder.path().join("access.log");
    let yaml = format!(
        "listeners: [{{listen: '127.0.0.1:1', upstream: '{upstream}'}}]\nadmin: {{listen: '127.0.0.1:0'}}\n\
         access_log: {{enabled: true, path: '{}', format: json}}\n\
         tenants: {{enabled: true, from_jwt_claim: sub, hash_key_file: '{}'}}\n\
         prices: {{models: [{{model: '*', input_per_million: 1, output_per_million: 2}}]}}\n\
         budgets: [{{name: daily, tokens_per_day: 1000}}]\n",
        log.display(),
        key.display(),
    );
    let layers = (Path::new("t.yaml"), yaml.as_str());
    let config = Config::from_layers(Some(layers), &Flags::default(), &Environment::default()).unwrap();
    let mut settings = config.settings.clone();
    settings.listeners[0].listen = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
    let shown = config.effective_yaml();
    let instrument = Instrument::start(&settings, None, Arc::new(move || shown.clone())).unwrap();
    let Address::Tcp { host, port } = instrument.addresses()[0].clone() else { panic!("a TCP listener") };
    // The payload of the token is {"sub":"acme","email":"hunter2"}.
    let token = format!("Bearer e30.eyJzdWIiOiJhY21lIiwiZW1haWwiOiJodW50ZXIyIn0.{SECRET}");
    let load = load::Settings {
        url: format!("http://{host}:{port}"),
        concurrency: 2,
        requests: Some(6),
        max_tokens: 20,
        include_usage: true,
        headers: vec![("authorization".to_owned(), token)],
        ..load::Settings::default()
    };
    let summary = runtime.block_on(load::run(load, |_| {})).unwrap();
    // Output of `printf acme | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef`, shortened.
    let tenant = "tenant=\"d8ad00265ff0\"";
    let page = until("all requests are exported", || {
        let page = get(instrument.admin(), "/metrics");
        let done = value(&page, &["tokometer_tenant_requests_total", tenant, "\"success\""]) == Some(6.0);
        done.then_some(page)
    });
    let output = value(&page, &["tokometer_tenant_output_tokens_total", tenant, "source=\"usage\""]).unwrap();
    let input = value(&page, &["tokometer_tenant_input_tokens_total", tenant, "source=\"usage\""]).unwrap();
    assert_eq!(output, summary.tokens_from_usage as f64);
    let cost = value(&page, &["tokometer_cost_total", tenant, "currency=\"USD\"", "source=\"exact\""]).unwrap();
    assert!((cost - (input + 2.0 * output) / 1e6).abs() < 1e-12, "{cost}");
    assert_eq!(value(&page, &["tokometer_budget_spent_total", "\"daily\"", "unit=\"tokens\""]), Some(input + output));
    assert_eq!(value(&page, &["tokometer_budget_limit", "\"daily\""]), Some(1000.0));
    let everything = [page, get(instrument.admin(), "/config"), get(instrument.admin(), "/requests")];
    instrument.stop();
    runtime.block_on(simulator.stop());
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.lines().count(), 6);
    for reported in everything.iter().chain([&log]) {
        for secret in [SECRET, "acme", "0123456789abcdef", "eyJzdWIi"] {
            assert!(!reported.contains(secret), "{secret} is in {reported}");
        }
    }
}
