//! The Kustomize component: its sidecar is generated from the code, so that it equals the one that `inject` adds.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tokometer_operator::inject::{Options, inject};

use super::{deployment, json as read};

const HEAD: &str = "# Generated from the code by the test `inject::component`; do not edit.\n";

/// Path of a file in the component's directory.
fn component(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/kustomize").join(name)
}

/// The pod spec after `inject`, for a Deployment that the component supports.
fn injected() -> serde_json::Value {
    let manifest = deployment("{containers: [{name: c, image: vllm/vllm-openai, args: [a]}]}");
    read(&inject(&manifest, &Options::new("tokometer")).unwrap().0)["spec"]["template"]["spec"].clone()
}

#[test]
fn component_has_the_same_sidecar_as_inject() {
    let spec = injected();
    let patch = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "any"},
        "spec": {"template": {"spec": {
            "initContainers": spec["initContainers"],
            "terminationGracePeriodSeconds": spec["terminationGracePeriodSeconds"],
        }}},
    });
    let written = format!("{HEAD}{}", serde_yaml::to_string(&patch).unwrap());
    let path = component("sidecar.yaml");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &written).unwrap();
    }
    let now = fs::read_to_string(&path).unwrap_or_default();
    assert!(now == written, "{} is not current; write it with `make docs`", path.display());
}

#[test]
fn component_changes_the_server_like_inject() {
    let server = injected()["containers"][0].clone();
    let value = |file: &str, name: &str, operations: usize| {
        let patch = read(&fs::read_to_string(component(file)).unwrap());
        let patch = patch.as_array().unwrap();
        assert_eq!(patch.len(), operations, "{file}");
        let last = patch.last().unwrap();
        assert_eq!(last["path"], format!("/spec/template/spec/containers/0/{name}"));
        last["value"].clone()
    };
    assert_eq!(json!(["a", value("server.yaml", "args/-", 1)]), server["args"]);
    assert_eq!(value("hook.yaml", "lifecycle", 2), server["lifecycle"]);
}
