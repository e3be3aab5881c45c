//! Changes that the user made after an injection: removal and a second injection keep them.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use serde_json::{Value, json};
use tokometer_operator::inject::{Mode, Options, Outcome, inject, remove};

use super::{deployment, json, options};

/// The manifest with this entry set in a map (`/a/b`) or appended to a list (`/a/b/-`) of its pod template. Parents are
/// created.
fn with(manifest: &str, pointer: &str, entry: &Value) -> Value {
    let mut manifest = json(manifest);
    let mut place = &mut manifest["spec"]["template"];
    for step in pointer.split('/').skip(1) {
        place = match step.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) if step == "-" => {
                if place.is_null() {
                    *place = json!([]);
                }
                let items = place.as_array_mut().unwrap();
                items.push(Value::Null);
                items.last_mut().unwrap()
            }
            Err(_) => &mut place[step],
        };
    }
    *place = entry.clone();
    manifest
}

#[test]
fn later_additions_survive_removal_and_a_second_injection() {
    let hook = json!({"exec": {"command": ["sleep", "1"]}});
    let additions = [
        ("/spec/containers/0/env/-", json!({"name": "HF_TOKEN", "value": "x"})),
        ("/spec/containers/0/args/-", json!("--verbose")),
        ("/spec/containers/0/lifecycle/postStart", hook),
        ("/spec/containers/0/volumeMounts/-", json!({"name": "models", "mountPath": "/models"})),
        ("/spec/volumes/-", json!({"name": "models", "emptyDir": {}})),
        ("/spec/initContainers/-", json!({"name": "fetch", "image": "fetch"})),
        ("/spec/securityContext/fsGroup", json!(1000)),
        ("/spec/securityContext/sysctls/-", json!({"name": "net.core.somaxconn", "value": "1024"})),
        ("/metadata/annotations/team", json!("a")),
        ("/metadata/labels/team", json!("a")),
    ];
    // Injection creates `env` in the first pod, `args` and `securityContext` (for the low port) in the second, `args`
    // and volumes in the third.
    for (pod, mode) in [
        ("{containers: [{name: c, image: ollama/ollama}]}", Mode::Auto),
        ("{containers: [{name: c, image: vllm, ports: [{containerPort: 80}]}]}", Mode::Auto),
        ("{containers: [{name: c, image: vllm, command: [vllm, serve]}]}", Mode::Uds),
    ] {
        let (plain, options) = (deployment(pod), Options { mode, ..options() });
        let (once, reports) = inject(&plain, &options).unwrap();
        assert_eq!(reports[0].outcome, Outcome::Injected, "{pod}: {reports:?}");
        assert_eq!(remove(&once).unwrap().0, remove(&plain).unwrap().0, "{pod}");
        for (pointer, entry) in &additions {
            let (later, expected) = (with(&once, pointer, entry).to_string(), with(&plain, pointer, entry));
            let (back, reports) = remove(&later).unwrap();
            assert_eq!(reports[0].outcome, Outcome::Removed, "{pod} {pointer}: {reports:?}");
            assert_eq!(json(&back), expected, "{pod} {pointer}");
            let (again, reports) = inject(&later, &options).unwrap();
            assert_eq!(reports[0].outcome, Outcome::Injected, "{pod} {pointer}: {reports:?}");
            assert_eq!(json(&again), json(&inject(&expected.to_string(), &options).unwrap().0), "{pod} {pointer}");
        }
    }
}

#[test]
fn replaced_hook_is_not_removed() {
    let once = inject(&deployment("{containers: [{name: c, image: vllm}]}"), &options()).unwrap().0;
    let later = with(&once, "/spec/containers/0/lifecycle/preStop", &json!({"sleep": {"seconds": 5}}));
    let (same, reports) = remove(&later.to_string()).unwrap();
    assert_eq!((json(&same), reports[0].outcome), (later, Outcome::Skipped), "{reports:?}");
    assert!(reports[0].notes[0].contains("/lifecycle/preStop"), "{reports:?}");
}
