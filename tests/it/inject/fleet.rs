//! Injection into the pods of serving platforms in `tests/fixtures/inject/fleet.yaml`. `tests/live/policy.py` checks
//! the admission policy with the same file.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use serde_json::{Value, json};
use tokometer_decode::Engine;
use tokometer_operator::inject::{Mode, Options, Outcome, inject};

use super::{json as read, options};

/// Command and arguments of the container with this name.
fn words(pod: &Value, container: &str) -> Vec<String> {
    let all = ["initContainers", "containers"].into_iter().flat_map(|list| pod["spec"][list].as_array());
    let found = all.flatten().find(|other| other["name"] == container).unwrap();
    let lists = ["command", "args"].into_iter().flat_map(|list| found[list].as_array()).flatten();
    lists.map(|word| word.as_str().unwrap().to_owned()).collect()
}

pub(super) fn options_of(case: &Value) -> Options {
    let text = |name: &str| case[name].as_str();
    let numbers = case["ports"].as_array().into_iter().flatten();
    Options {
        mode: text("mode").map_or(Mode::Auto, |name| Mode::ALL.into_iter().find(|mode| mode.as_str() == name).unwrap()),
        engine: text("engine").map(|name| Engine::of_name(name).unwrap()),
        container: text("container").map(str::to_owned),
        ports: numbers.map(|port| u16::try_from(port.as_u64().unwrap()).unwrap()).collect(),
        tls_secret: text("tlsSecret").map(str::to_owned),
        redirect_image: Some("nft:1".to_owned()),
        ..options()
    }
}

#[test]
fn platform_pods_are_injected_or_refused_with_a_reason() {
    let cases = read(include_str!("../../fixtures/inject/fleet.yaml"));
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 30, "{}", cases.len());
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let before = json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": case["spec"]});
        let (after, reports) = inject(&before.to_string(), &options_of(case)).unwrap();
        let after: Value = serde_json::from_str(&after).unwrap();
        let report = &reports[0];
        if let Some(reason) = case["refused"].as_str() {
            assert_eq!((report.outcome, &after), (Outcome::Skipped, &before), "{name}: {report:?}");
            assert!(report.notes[0].contains(reason), "{name}: {report:?}");
            continue;
        }
        assert_eq!(report.outcome, Outcome::Injected, "{name}: {report:?}");
        let container = case["container"].as_str().unwrap();
        let replaced = |mut word: String| {
            for (old, new) in case["text"].as_object().into_iter().flatten() {
                word = word.replace(old, new.as_str().unwrap());
            }
            word
        };
        let appended = case["args"].as_array().into_iter().flatten().map(|word| word.as_str().unwrap().to_owned());
        let expected: Vec<String> = words(&before, container).into_iter().map(replaced).chain(appended).collect();
        assert_eq!(words(&after, container), expected, "{name}");
        let is_changed = case.get("text").or(case.get("args")).is_some();
        assert_eq!(words(&before, container) != expected, is_changed, "{name}: the flag is given");
        let warning = case["warning"].as_str().unwrap_or_default();
        assert_eq!(
            report.warnings.iter().any(|text| text.contains(warning)),
            !warning.is_empty(),
            "{name}: {report:?}"
        );
        let sidecar =
            after["spec"]["initContainers"].as_array().unwrap().iter().find(|c| c["name"] == "tokometer").unwrap();
        if let Some(listen) = case["listen"].as_str() {
            assert!(
                words(&after, "tokometer").contains(&format!("--listen={listen}")),
                "{name}: {:?}",
                words(&after, "tokometer")
            );
        }
        let mount =
            json!({"name": case["spec"]["volumes"][0]["name"], "mountPath": "/etc/tokometer-tls", "readOnly": true});
        let is_mounted = sidecar["volumeMounts"].as_array().is_some_and(|mounts| mounts.contains(&mount));
        let terminates = words(&after, "tokometer").contains(&"--set=listeners[].upstream_tls.enabled=true".to_owned());
        let has_secret = case.get("tlsSecret").is_some();
        assert_eq!((is_mounted, terminates), (has_secret, has_secret), "{name}");
        for port in case["ports"].as_array().into_iter().flatten() {
            let (container, found) = match case["mode"].as_str() {
                Some("tap") => ("tokometer", format!("--port={port}")),
                Some("redirect") => ("tokometer-redirect", format!("dport {port} ")),
                _ if case["listen"].is_string() => ("tokometer", format!(":{port} ")),
                _ => ("tokometer", format!("]:{port}")),
            };
            assert!(words(&after, container).join(" ").contains(&found), "{name}: {port}");
        }
    }
}
