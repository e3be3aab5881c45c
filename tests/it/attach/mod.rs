//! The sidecar in manifests: what is put in, what is left out and why, and that it can be taken out again.

mod cases;
mod command;
mod component;
mod golden;
mod properties;

use tokometer_operator::inject::Options;
use tokometer_operator::inject::Outcome;
use tokometer_operator::inject::Value;
use tokometer_operator::inject::inject;

/// The image of these tests.
const IMAGE: &str = "registry.example/tokometer:1";

/// A Deployment of a pod with this `spec` (YAML, in braces).
fn deployment(spec: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\nspec:\n  template:\n    metadata:\n      labels: {{app: d}}\n    spec: {spec}\n"
    )
}

fn options() -> Options {
    Options::new(IMAGE)
}

/// The spec of the pod after it, and what was told. It must have been injected.
fn injected(spec: &str, options: &Options) -> (serde_json::Value, Vec<String>) {
    let (text, reports) = inject(&deployment(spec), options).expect("a manifest");
    assert_eq!(reports[0].outcome, Outcome::Injected, "{reports:?}");
    (json(&text)["spec"]["template"]["spec"].clone(), reports[0].notes.clone())
}

/// Why it was left as it is. The manifest must be the same.
fn skipped(spec: &str, options: &Options) -> String {
    let before = deployment(spec);
    let (text, reports) = inject(&before, options).expect("a manifest");
    assert_eq!(reports[0].outcome, Outcome::Skipped, "{reports:?}");
    assert_eq!(json(&text), json(&before));
    reports[0].notes.join("; ")
}

/// A YAML document as JSON.
fn json(yaml: &str) -> serde_json::Value {
    let value: Value = serde_yaml::from_str(yaml).expect("YAML");
    serde_json::to_value(value).expect("JSON")
}
