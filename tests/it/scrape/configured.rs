//! Parsing of the `scrape` block of the configuration.

use std::path::Path;
use std::time::Duration;

use tokometer::config::{Config, Environment, Error, Flags};
use tokometer_decode::Engine;
use tokometer_engine::scrape::Target;

use crate::mistakes::assert_reported;

fn read(text: &str) -> Result<Config, Error> {
    Config::from_layers(Some((Path::new("t.yaml"), text)), &Flags::default(), &Environment::default())
}

fn targets(text: &str) -> Vec<Option<Target>> {
    read(text).unwrap().settings.scrape.targets
}

#[test]
fn without_settings_every_listener_is_scraped() {
    let scrape = read("").unwrap().settings.scrape;
    assert_eq!(scrape.targets, [Some(Target::default())]);
    assert_eq!((scrape.interval, scrape.timeout), (Duration::from_secs(5), Duration::from_secs(2)));
}

#[test]
fn listener_settings_override_global_ones() {
    let text = "
scrape: {enabled: true, path: /all, port_number: 9000}
listeners:
  - {listen: ':1', upstream: ':2'}
  - {listen: ':3', upstream: ':4', scrape: {path: /own, port_number: 9001}}
  - {listen: ':5', upstream: ':6', scrape: {enabled: false}}
";
    let target =
        |path: &str, port| Some(Target { path: Some(path.to_owned()), port: Some(port), engine: None, draining: true });
    assert_eq!(targets(text), [target("/all", 9000), target("/own", 9001), None]);
}

#[test]
fn configured_engine_determines_its_page() {
    let of = |engine: &str| targets(&format!("observe: {{engine: {engine}}}"))[0].clone();
    let target = |engine| Target { engine: Some(engine), ..Target::default() };
    assert_eq!(of("vllm"), Some(target(Engine::Vllm)));
    assert_eq!(of("triton"), Some(Target { port: Some(8002), ..target(Engine::Triton) }));
    assert_eq!(of("ollama"), None, "Ollama has no such page");
    let reported = "observe: {engine: ollama}\nscrape: {path: /exporter}";
    assert_eq!(targets(reported)[0].clone().unwrap().path.as_deref(), Some("/exporter"));
}

#[test]
fn pages_changed_by_reading_require_opt_in() {
    assert!(!targets("")[0].clone().unwrap().draining);
    assert!(targets("scrape: {enabled: true}")[0].clone().unwrap().draining);
    assert_eq!(targets("scrape: {enabled: false}"), [None]);
}

#[test]
fn server_with_unknown_address_is_not_scraped() {
    assert_eq!(targets("listeners: [{listen: ':1', upstream: original}]"), [None]);
}

#[test]
fn each_error_names_its_location_and_fix() {
    assert_reported(&[
        ("scrape: {path: metrics}", "t.yaml:1:16", "scrape.path", "must start with `/`"),
        ("scrape: {path: '/a b'}", "t.yaml:1:16", "scrape.path", "must start with `/`"),
        ("scrape: {port_number: 0}", "t.yaml:1:23", "scrape.port_number", "from 1 to 65535"),
        ("scrape: {interval: 1ms}", "t.yaml:1:20", "scrape.interval", "from 100"),
        (
            "{observe: {engine: tensorrt_llm}, scrape: {path: /metrics}}",
            "t.yaml:1:50",
            "scrape.path",
            "write /prometheus/metrics",
        ),
        (
            "listeners: [{listen: ':1', upstream: original, scrape: {enabled: true}}]",
            "t.yaml:1:66",
            "listeners[0].scrape.enabled",
            "write the server's address",
        ),
        (
            "listeners: [{listen: ':1', upstream: 'unix:/a', scrape: {port_number: 3}}]",
            "t.yaml:1:71",
            "listeners[0].scrape.port_number",
            "has no port",
        ),
    ]);
}
