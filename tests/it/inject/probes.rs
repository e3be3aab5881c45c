//! Liveness and startup probes of the server, which must not depend on the sidecar.

use serde_json::{Value, json};
use tokometer_operator::inject::{Mode, Options, inject, remove};

use super::cases::{arguments, with};
use super::{deployment, injected, options, skipped};

const PROGRAM: &str = "/run/tokometer-probe/tokometer";

/// A pod whose server has these probes.
fn pod(probes: &str) -> String {
    format!(
        "{{containers: [{{name: c, image: vllm, args: [m], ports: [{{containerPort: 8000, name: api}}], {probes}}}]}}"
    )
}

#[test]
fn probes_that_restart_the_server_connect_to_it_directly() {
    let url = "http://127.0.0.1:8000";
    for (probe, words, timeout) in [
        ("httpGet: {path: /health, port: api}", vec![format!("{url}/health"), "--timeout=1s".to_owned()], 3),
        ("httpGet: {port: 8000}, timeoutSeconds: 5", vec![format!("{url}/"), "--timeout=5s".to_owned()], 7),
        ("httpGet: {port: 8000, path: 'a?b', host: ''}", vec![format!("{url}/a?b"), "--timeout=1s".to_owned()], 3),
        (
            "httpGet: {scheme: HTTPS, port: 8000, path: /$(A), httpHeaders: [{name: X, value: $1}, {name: Empty, value: ''}]}",
            ["https://127.0.0.1:8000/$$(A)", "--timeout=1s", "--header=X: $$1", "--header=Empty: "]
                .map(str::to_owned)
                .into(),
            3,
        ),
        ("tcpSocket: {port: api}", ["tcp://127.0.0.1:8000", "--timeout=1s"].map(str::to_owned).into(), 3),
    ] {
        let probe = format!(
            "{probe}, initialDelaySeconds: 1, periodSeconds: 2, failureThreshold: 30, terminationGracePeriodSeconds: 9"
        );
        let probes =
            ["startupProbe", "livenessProbe", "readinessProbe"].map(|name| format!("{name}: {{{probe}}}")).join(", ");
        for mode in [Mode::Auto, Mode::ShadowBind, Mode::Uds] {
            let (spec, notes) = injected(&pod(&probes), &with(mode));
            let server = &spec["containers"][0];
            let mut command = vec![PROGRAM.to_owned(), "probe".to_owned()];
            command.extend(words.clone());
            if mode == Mode::Uds {
                command.insert(4, "--socket=/run/tokometer/engine.sock".to_owned());
            }
            let kind = probe.split(':').next().unwrap();
            let expected = json!({kind: null, "exec": {"command": command}, "timeoutSeconds": timeout, "initialDelaySeconds": 1,
                "periodSeconds": 2, "failureThreshold": 30, "terminationGracePeriodSeconds": 9});
            assert_eq!((&server["startupProbe"], &server["livenessProbe"]), (&expected, &expected), "{mode:?} {probe}");
            assert!(server["readinessProbe"].get("exec").is_none(), "{mode:?} {probe}");
            let mounts = |container: &Value| container["volumeMounts"].as_array().unwrap().last().unwrap().clone();
            let path = "/run/tokometer-probe";
            assert_eq!(mounts(server), json!({"name": "tokometer-probe", "mountPath": path, "readOnly": true}));
            assert_eq!(mounts(&spec["initContainers"][0]), json!({"name": "tokometer-probe", "mountPath": path}));
            let volume = json!({"name": "tokometer-probe", "emptyDir": {"medium": "Memory"}});
            assert_eq!(spec["volumes"].as_array().unwrap().last(), Some(&volume));
            assert!(arguments(&spec).contains(&format!("--set=process.probe_file={PROGRAM}").as_str()), "{spec}");
            assert!(notes.iter().any(|note| note.contains("tokometer probe")), "{notes:?}");
        }
    }
}

#[test]
fn probe_command_is_accepted_by_the_program() {
    use clap::Parser;
    let probe =
        "livenessProbe: {httpGet: {path: /health, port: api, httpHeaders: [{name: X, value: 'a: b'}, {name: Empty}]}}";
    for mode in [Mode::Auto, Mode::Uds] {
        let (spec, _) = injected(&pod(probe), &with(mode));
        let command = spec["containers"][0]["livenessProbe"]["exec"]["command"].as_array().unwrap();
        let words = command.iter().map(|word| word.as_str().unwrap());
        assert!(tokometer::cli::Cli::try_parse_from(words).is_ok(), "{command:?}");
    }
}

#[test]
fn every_listed_port_is_probed_directly() {
    let spec = pod("livenessProbe: {httpGet: {port: 8001}}, startupProbe: {tcpSocket: {port: 8000}}");
    let (spec, _) = injected(&spec, &Options { ports: vec![8000, 8001], ..options() });
    let command = |probe: &str| spec["containers"][0][probe]["exec"]["command"][2].clone();
    assert_eq!(command("livenessProbe"), "http://127.0.0.1:8001/");
    assert_eq!(command("startupProbe"), "tcp://127.0.0.1:8000");
}

#[test]
fn other_probes_are_unchanged() {
    let local = "args: [--host=127.0.0.1], livenessProbe: {httpGet: {port: 8000}}";
    for (mode, probes) in [
        (Mode::Auto, "livenessProbe: {exec: {command: [x]}}"),
        (Mode::Auto, "livenessProbe: {grpc: {port: 8000}}"),
        (Mode::Auto, "livenessProbe: {httpGet: {port: 8000, host: example.com}}"),
        (Mode::Auto, "livenessProbe: {httpGet: {port: 9464, path: /engine/healthz}}"),
        (Mode::Auto, "livenessProbe: null, readinessProbe: {httpGet: {port: 8000}}"),
        (Mode::ShadowBind, "livenessProbe: {httpGet: {port: 9000}}"),
        (Mode::Redirect, "livenessProbe: {httpGet: {port: 8000}}"),
        (Mode::Explicit, "livenessProbe: {httpGet: {port: 8000}}"),
        (Mode::Tap, "livenessProbe: {httpGet: {port: 8000}}"),
        // The kubelet cannot reach the server.
        (Mode::Uds, local),
    ] {
        let spec = pod(probes).replace("args: [m], ports", if probes == local { "ports" } else { "args: [m], ports" });
        let before: Value = serde_yaml::from_str(&spec).unwrap();
        let (after, _) = injected(&spec, &with(mode));
        let of = |spec: &Value| {
            let mut probe = spec["containers"][0]["livenessProbe"].clone();
            if let Some(probe) = probe.as_object_mut() {
                probe.remove("terminationGracePeriodSeconds");
            }
            probe
        };
        assert_eq!(of(&after), of(&before), "{mode:?} {probes}");
        assert!(!after.to_string().contains("probe_file"), "{mode:?} {probes}");
        assert!(!after["volumes"].to_string().contains("tokometer-probe"), "{mode:?} {probes}");
    }
}

#[test]
fn grpc_probe_through_the_sidecar_is_warned_of() {
    for (mode, probe, expected) in [
        (Mode::Auto, "livenessProbe", true),
        (Mode::Uds, "startupProbe", true),
        (Mode::Auto, "readinessProbe", false),
        (Mode::PortSwap, "livenessProbe", false),
    ] {
        let manifest = deployment(&pod(&format!("{probe}: {{grpc: {{port: 8000}}}}")));
        let (_, reports) = inject(&manifest, &with(mode)).unwrap();
        let is_warned = reports[0].warnings.iter().any(|text| text.contains("type grpc"));
        assert_eq!(is_warned, expected, "{mode:?} {probe}: {reports:?}");
    }
}

#[test]
fn removal_restores_probes_that_the_api_server_has_completed() {
    let before = deployment(&pod("livenessProbe: {httpGet: {port: 8000}}"));
    let (after, _) = inject(&before, &options()).unwrap();
    let mut completed = super::json(&after);
    let probe = &mut completed["spec"]["template"]["spec"]["containers"][0]["livenessProbe"];
    probe["successThreshold"] = json!(1);
    assert_eq!(probe.as_object_mut().unwrap().remove("httpGet"), Some(Value::Null));
    assert_eq!(super::json(&remove(&completed.to_string()).unwrap().0), super::json(&before));
    let changed = after.replace("timeoutSeconds: 3", "timeoutSeconds: 4");
    let (same, reports) = remove(&changed).unwrap();
    assert_eq!(super::json(&same), super::json(&changed));
    assert!(reports[0].notes[0].contains("livenessProbe/timeoutSeconds"), "{reports:?}");
}

#[test]
fn probes_that_restart_the_server_bypass_the_sidecar_on_its_new_port() {
    for (probe, expected) in [
        ("httpGet: {path: /health, port: api}", json!({"httpGet": {"path": "/health", "port": 8001}})),
        ("httpGet: {path: /health, port: 8000}", json!({"httpGet": {"path": "/health", "port": 8001}})),
        ("tcpSocket: {port: 8000}", json!({"tcpSocket": {"port": 8001}})),
        ("grpc: {port: 8000}", json!({"grpc": {"port": 8001}})),
        ("httpGet: {path: /x, port: 9000}", json!({"httpGet": {"path": "/x", "port": 9000}})),
        ("exec: {command: [x]}", json!({"exec": {"command": ["x"]}})),
    ] {
        let probes =
            ["startupProbe", "livenessProbe", "readinessProbe"].map(|name| format!("{name}: {{{probe}}}")).join(", ");
        let pod = |host: &str| {
            format!(
                "{{terminationGracePeriodSeconds: 900, containers: [{{name: c, image: vllm, args: [{host}], ports: [{{containerPort: 8000, name: api}}], {probes}}}]}}"
            )
        };
        let (spec, _) = injected(&pod("m"), &with(Mode::PortSwap));
        let server = &spec["containers"][0];
        assert_eq!((&server["startupProbe"], &server["livenessProbe"]), (&expected, &expected), "{probe}");
        // The kubelet cannot connect to 127.0.0.1 of the pod.
        let (local, _) = injected(&pod("--host=127.0.0.1"), &with(Mode::PortSwap));
        assert_eq!(local["containers"][0]["livenessProbe"], server["readinessProbe"], "{probe}");
    }
}

#[test]
fn liveness_probe_through_the_sidecar_that_fails_before_the_sidecar_restarts_is_refused() {
    let pod = |probe: &str| format!("{{containers: [{{name: c, image: vllm, livenessProbe: {{{probe}}}}}]}}");
    let grpc = pod("grpc: {port: 8000}, periodSeconds: 3, failureThreshold: 4");
    let hasty = pod("tcpSocket: {port: 8000}, periodSeconds: 3, failureThreshold: 4");
    assert!(skipped(&grpc, &options()).contains("port-swap"));
    assert!(skipped(&hasty, &with(Mode::Redirect)).contains("port-swap"));
    injected(&grpc, &with(Mode::PortSwap));
    for mode in [Mode::Auto, Mode::ShadowBind, Mode::PortSwap] {
        injected(&hasty, &with(mode));
    }
    injected(&pod("grpc: {port: 8000}, periodSeconds: 5"), &options());
    injected(&pod("exec: {command: [x]}, periodSeconds: 1"), &with(Mode::Redirect));
}
