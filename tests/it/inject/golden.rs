//! Whole manifests before and after injection. `UPDATE=1` rewrites the injected ones.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::fs;
use std::path::PathBuf;

use tokometer_operator::inject::{Error, Mode, Options, Outcome, inject, remove};

use super::{json, options};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/inject")
}

fn holds(name: &str, options: &Options) {
    let before = fs::read_to_string(folder().join(name)).unwrap();
    let (after, reports) = inject(&before, options).unwrap();
    let mut reported = String::new();
    for report in &reports {
        reported.push_str(&format!("# {}: {}\n", report.object, report.outcome.as_str()));
        report.notes.iter().for_each(|note| reported.push_str(&format!("#   - {note}\n")));
    }
    let written = if name.ends_with(".json") { after.clone() } else { format!("{reported}{after}") };
    let (stem, end) = name.rsplit_once('.').unwrap();
    let path = folder().join(format!("{stem}.injected.{end}"));
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &written).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == expected,
        "{} differs from the output of inject; review it, then update it with UPDATE=1",
        path.display()
    );
    assert_eq!(inject(&after, options).unwrap().0, after, "{name}: inject is idempotent");
    let (back, _) = remove(&after).unwrap();
    let (plain, _) = remove(&before).unwrap();
    assert_eq!(back, plain, "{name}: remove restores the manifest");
}

#[test]
fn every_workload_kind_is_injected_and_others_are_unchanged() {
    holds("kinds.yaml", &options());
}

#[test]
fn typical_deployment_is_injected() {
    holds("deployment.yaml", &options());
}

#[test]
fn json_stays_json() {
    holds("list.json", &Options { mode: Mode::Uds, ..options() });
}

#[test]
fn redirect_is_injected() {
    holds(
        "shell.yaml",
        &Options { mode: Mode::Redirect, redirect_image: Some("registry.example/nft:1".to_owned()), ..options() },
    );
}

#[test]
fn scalars_keep_their_types() {
    let manifest = "kind: Pod\nmetadata: {annotations: {a: \"yes\", b: \"0123\", c: \"1e3\", d: \"null\", e: \"on\"}}\nspec:\n  \
        containers:\n  - {name: c, image: vllm, args: [\"8000\", 'true', \"~\", \"- x\", \"a: b\", \"multi\\nline\\n\"]}\n  \
        volumes: [{name: v, configMap: {defaultMode: 0644}}]\n  terminationGracePeriodSeconds: 1000\n";
    let (after, _) = inject(manifest, &options()).unwrap();
    let (back, _) = remove(&after).unwrap();
    let after = json(&after);
    for (name, text) in [("a", "yes"), ("b", "0123"), ("c", "1e3"), ("d", "null"), ("e", "on")] {
        assert_eq!(after["metadata"]["annotations"][name], text);
    }
    let arguments = serde_json::json!(["8000", "true", "~", "- x", "a: b", "multi\nline\n", "--host=127.0.0.1"]);
    assert_eq!(after["spec"]["containers"][0]["args"], arguments);
    assert_eq!(after["spec"]["volumes"][0]["configMap"]["defaultMode"], 420, "octal, as Kubernetes reads it");
    assert_eq!(json(&back)["spec"]["containers"][0]["args"].as_array().unwrap().len(), 6);
}

#[test]
fn remove_fails_after_later_changes() {
    let before = fs::read_to_string(folder().join("deployment.yaml")).unwrap();
    let (after, _) = inject(&before, &options()).unwrap();
    let changed = after.replace("- --host=127.0.0.1\n", "- --host=0.0.0.0\n");
    assert_ne!(changed, after);
    let (same, reports) = remove(&changed).unwrap();
    assert_eq!((json(&same), reports[0].outcome), (json(&changed), Outcome::Skipped));
    assert!(reports[0].notes[0].contains("/spec/containers/0/args/"), "{reports:?}");
    // An unrelated annotation does not prevent removal.
    let restarted =
        after.replace("      annotations:\n", "      annotations:\n        kubectl.kubernetes.io/restartedAt: now\n");
    assert_ne!(restarted, after);
    let (back, reports) = remove(&restarted).unwrap();
    assert_eq!(reports[0].outcome, Outcome::Removed, "{reports:?}");
    assert!(back.contains("restartedAt: now") && !back.contains("tokometer"));
}

#[test]
fn invalid_manifest_is_reported_with_its_position() {
    let error = |text: &str| inject(text, &options()).unwrap_err();
    assert!(
        matches!(error("a: [1\nb: 2\n"), Error::Yaml(message) if message.contains("line") || message.contains("2:"))
    );
    assert!(matches!(error("{\"a\": 1"), Error::Json(message) if message.contains("line 1")));
    assert_eq!(error("kind: Pod\n---\n- a\n"), Error::NoObject(2));
    assert_eq!(error("# nothing\n"), Error::Empty);
    let (_, reports) = inject("kind: Deployment\nmetadata: {name: d}\n", &options()).unwrap();
    assert_eq!((reports[0].outcome, reports[0].notes[0].as_str()), (Outcome::Skipped, "it has no spec.template"));
}
