//! The command line of `tokometer inject`.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use super::deployment;

fn run(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tokometer"))
        .arg("inject")
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The process may exit before it has read its whole input.
    child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
    child.wait_with_output().unwrap()
}

fn texts(output: &Output) -> (String, String) {
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

#[test]
fn manifest_is_read_from_stdin_and_written_to_stdout() {
    let manifest = deployment("{containers: [{name: c, image: vllm, args: [m]}]}");
    let output = run(&["--image", "i:1"], &manifest);
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), err.as_str()), (Some(0), ""));
    assert!(out.contains("image: i:1") && out.contains("--host=127.0.0.1"), "{out}");

    let output = run(&["--image", "i:1", "--explain"], &manifest);
    let (explained, err) = texts(&output);
    assert_eq!(explained, out, "--explain writes only to stderr");
    assert!(
        err.starts_with("Deployment/d: injected\n  - the server is the container c: vLLM, recognised by its image\n"),
        "{err}"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.yaml");
    std::fs::write(&path, &out).unwrap();
    let output = run(&["--remove", "-f", path.to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(0));
    assert!(!texts(&output).0.contains("tokometer"));
}

#[test]
fn skipped_objects_are_reported_and_fail_if_nothing_is_injected() {
    let output = run(&["--image", "i"], &deployment("{containers: [{name: c, image: redis}]}"));
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        out.contains("image: redis") && err.contains("Deployment/d: skipped") && err.contains("nothing was injected"),
        "{err}"
    );
}

#[test]
fn check_reports_whether_pods_can_be_injected() {
    let check = |manifest: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pod.yaml");
        std::fs::write(&path, manifest).unwrap();
        Command::new(env!("CARGO_BIN_EXE_tokometer")).args(["check", "--pod"]).arg(&path).env_clear().output().unwrap()
    };
    let output =
        check(&deployment("{containers: [{name: c, image: vllm, lifecycle: {preStop: {sleep: {seconds: 5}}}}]}"));
    let (out, err) = texts(&output);
    assert_eq!((output.status.code(), out.as_str()), (Some(0), ""), "{err}");
    assert!(
        err.contains("Deployment/d: injected") && err.contains("warning: ") && err.contains("preStop hook"),
        "{err}"
    );
    let output = check(&deployment("{containers: [{name: c, image: vllm, args: [--uds, /s]}]}"));
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("Deployment/d: skipped\n  - the engine listens on a Unix socket"), "{err}");
    assert_eq!(check("- a").status.code(), Some(2));
}

#[test]
fn wrong_usage_exits_with_2_and_a_hint() {
    for (arguments, input, part) in [
        (&["--image", "i"][..], "- a", "document 1"),
        (&["--image", "i", "-f", "/no/file.yaml"], "", "/no/file.yaml"),
        (&["--image", "i", "--mode", "magic"], "", "address-split"),
        (&["--image", "i", "--engine", "magic"], "", "llama_cpp"),
        (&["--image", "i", "--env", "x"], "", "NAME=VALUE"),
        (&["--image", "i", "--port", "0"], "", "--port"),
        (&[], "kind: Pod", "--image"),
    ] {
        let output = run(arguments, input);
        let (out, err) = texts(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{arguments:?}: {err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    }
}
