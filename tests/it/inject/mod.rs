//! Injection of the sidecar into manifests, and its removal.

mod cases;
mod command;
mod component;
mod fleet;
mod golden;
mod platforms;
mod probes;
mod properties;
mod undo;

use tokometer_operator::inject::{Options, Outcome, inject};

/// Sidecar image in these tests.
const IMAGE: &str = "registry.example/tokometer:1";

/// A Deployment whose pod has this `spec` (YAML, in braces).
fn deployment(spec: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\nspec:\n  template:\n    metadata:\n      labels: {{app: d}}\n    spec: {spec}\n"
    )
}

fn options() -> Options {
    Options::new(IMAGE)
}

/// The pod spec after injection, and the notes. Asserts that the sidecar was injected.
fn injected(spec: &str, options: &Options) -> (serde_json::Value, Vec<String>) {
    let (text, reports) = inject(&deployment(spec), options).expect("a manifest");
    assert_eq!(reports[0].outcome, Outcome::Injected, "{reports:?}");
    (json(&text)["spec"]["template"]["spec"].clone(), reports[0].notes.clone())
}

/// The reason why the pod was skipped. Asserts that the manifest is unchanged.
fn skipped(spec: &str, options: &Options) -> String {
    let before = deployment(spec);
    let (text, reports) = inject(&before, options).expect("a manifest");
    assert_eq!(reports[0].outcome, Outcome::Skipped, "{reports:?}");
    assert_eq!(json(&text), json(&before));
    reports[0].notes.join("; ")
}

/// Converts a YAML document to JSON.
fn json(yaml: &str) -> serde_json::Value {
    serde_yaml::from_str(yaml).expect("YAML")
}
