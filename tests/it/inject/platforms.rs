//! Generates `docs/reference/platforms.md`: the result of `inject` for each pod in `tests/fixtures/inject/fleet.yaml`.
//! `UPDATE=1` writes the file.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::fmt::Write;

use serde_json::{Value, json};
use tokometer_operator::inject::{Mode, Options, Outcome, inject};

use super::fleet::options_of;
use super::json as read;
use crate::config_documents::same_as_committed;

const HEAD: &str = "\
# Platforms

This page lists platform pods, the result of injecting tokometer into them, and the reason if a pod stays unchanged.
Generated from [fleet.yaml](../../tests/fixtures/inject/fleet.yaml) by the test `inject::platforms`; do not edit.

The platform pods come from the platforms' own manifests (November 2026), shortened to the relevant parts. The columns
are:

- **Settings**: settings of the injection target in the chart. The corresponding flags of `tokometer inject` are
  `--container`, `--engine` (vLLM if not set), `--mode`, `--port` (also for `extraPorts`) and `--tls-secret`.
- **Result**: outcome with these settings. `tokometer inject` and the chart's admission policy produce the same pod, or
  leave the pod unchanged for the same reason. For every row, `make test` compares both results using the API server's
  code, and `make test-cluster` compares them on a real node.
- **`tap`**: outcome with `mode: tap`. This mode adds one container that reads copies of the packets. The engine's
  container stays unchanged. The added container needs NET_RAW, which the Pod Security levels `baseline` and
  `restricted` forbid.

*measured* means that the pod is injected without a warning. `make test-cluster` also starts the injected pods on a real
node, once through the policy and once through `inject`, with a simulated engine that accepts vLLM's command line. The
test checks that each pod is ready, that no container restarted, and that a request to each port is counted. Pods in
mode `redirect`, the head of production-stack's Ray cluster, and engines that the simulated engine cannot replace (Ollama,
llama.cpp, LMDeploy, engines on 127.0.0.1) are not started. In mode `tap`, only four pods are
started: llm-d decode, wide expert parallelism, KServe's Hugging Face runtime, and KubeRay.
";

/// The result of `inject` for this pod, as text for the table.
fn result(pod: &Value, options: &Options) -> String {
    let before = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": pod});
    let (_, reports) = inject(&before.to_string(), options).unwrap();
    match (reports[0].outcome, reports[0].warnings.as_slice()) {
        (Outcome::Injected, []) => "measured".to_owned(),
        (Outcome::Injected, warnings) => format!("injected, with a warning: {}", warnings.join("; ")),
        _ => format!("not injected: {}", reports[0].notes[0]),
    }
}

fn settings(case: &Value) -> String {
    let mut all = vec![format!("container: {}", case["container"].as_str().unwrap())];
    all.extend(case["engine"].as_str().filter(|name| *name != "vllm").map(|name| format!("engine: {name}")));
    all.extend(case["mode"].as_str().map(|mode| format!("mode: {mode}")));
    let ports: Vec<String> = case["ports"].as_array().into_iter().flatten().map(Value::to_string).collect();
    if let [first, more @ ..] = ports.as_slice() {
        all.push(format!("port: {first}"));
        if !more.is_empty() {
            all.push(format!("extraPorts: [{}]", more.join(", ")));
        }
    }
    all.extend(case["tlsSecret"].as_str().map(|name| format!("tlsSecret: {name:?}")));
    all.into_iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", ")
}

fn document() -> String {
    let cases = read(include_str!("../../fixtures/inject/fleet.yaml"));
    let (mut platforms, mut others, mut source) = (String::new(), String::new(), String::new());
    // Cases of mode `tap` have no row: the column `tap` shows this mode for every pod.
    for case in cases.as_array().unwrap().iter().filter(|case| case["mode"] != "tap") {
        let name = case["name"].as_str().unwrap();
        match case["source"].as_str().unwrap() {
            "own" => source = String::new(),
            same if same.starts_with("the same") => {}
            file => source = file.split([' ', ',']).take(2).collect::<Vec<_>>().join(" "),
        }
        let options = options_of(case);
        let tap = result(&case["spec"], &Options { mode: Mode::Tap, tls_secret: None, ..options.clone() });
        let tap = if case["serves"] == false {
            tap.replace("measured", "injected; the pod serves no requests, so nothing is measured")
        } else {
            tap
        };
        let (result, settings) = (result(&case["spec"], &options), settings(case));
        if source.is_empty() {
            writeln!(others, "| {name} | {settings} | {result} | {tap} |").unwrap();
        } else {
            writeln!(platforms, "| {name} | {source} | {settings} | {result} | {tap} |").unwrap();
        }
    }
    format!(
        "{HEAD}\n## Platform pods\n\n| Pod | Source | Settings | Result | `tap` |\n|---|---|---|---|---|\n{platforms}\n\
         ## Pods for the other checks\n\n| Pod | Settings | Result | `tap` |\n|---|---|---|---|\n{others}"
    )
}

#[test]
fn table_of_platforms_is_up_to_date() {
    same_as_committed("docs/reference/platforms.md", &document());
}
