//! The command line: output streams and exit codes.
#![expect(clippy::unwrap_used, reason = "these functions are called by tests only")]

use std::process::{Command, Output, Stdio};

/// Runs the command with a separate environment.
fn tokometer(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tokometer"))
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_and_version_go_to_stdout_with_exit_code_0() {
    for command in [
        "run",
        "check",
        "config",
        "metrics",
        "rules",
        "dashboards",
        "demo",
        "sim",
        "load",
        "replay",
        "inject",
        "drain",
        "probe",
        "top",
        "verify",
    ] {
        let output = tokometer(&[command, "--help"], &[]);
        assert_eq!(output.status.code(), Some(0), "{command}");
        assert!(stdout(&output).contains(&format!("Examples:\n  tokometer {command}")), "{}", stdout(&output));
    }
    let output = tokometer(&["--version"], &[]);
    assert_eq!(stdout(&output), format!("tokometer {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn wrong_usage_exits_with_2_on_stderr() {
    for arguments in [
        &["rnu"][..],
        &["run", "--lisen", "x"],
        &["rules", "--time-scale", "9", "--format", "sloth"],
        &["replay"],
        &["demo", "--for", "soon"],
        &[],
    ] {
        let output = tokometer(arguments, &[]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn invalid_configuration_exits_with_2_and_every_problem() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.yaml");
    std::fs::write(&path, "relay:\n  keepalive_sec: 1\nlog: {level: loud}\n").unwrap();
    let path = path.to_str().unwrap();
    for command in ["check", "config"] {
        let output = tokometer(&[command, "--config", path], &[]);
        assert_eq!(output.status.code(), Some(2));
        let reported = stderr(&output);
        assert!(reported.contains(&format!("{path}:2:3: relay.keepalive_sec: unknown key")), "{reported}");
    }
    let output = tokometer(&["check"], &[("TOKOMETER_CONFIG", "/nonexistent.yaml")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nonexistent.yaml"));
    let output = tokometer(&["check", "--listen", ":1", "--upstream", ":1"], &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("flag --upstream: listeners[0].upstream"), "{}", stderr(&output));
}

#[test]
fn check_explains_the_configuration_and_warns() {
    let output = tokometer(&["check", "--listen", ":8000", "--upstream", "unix:/run/vllm.sock"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let reported = stdout(&output);
    for part in [
        "\n  clients connect to 0.0.0.0:8000; all bytes are forwarded to unix:/run/vllm.sock.",
        "Prometheus scrapes http://0.0.0.0:9464/metrics",
        "OTLP is not configured",
        "after SIGTERM, open streams may continue for 30 s",
    ] {
        assert!(reported.contains(part), "{part} in\n{reported}");
    }
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:hunter2@c:4318"), ("OTEL_TRACES_SAMPLER", "xray")];
    let output = tokometer(&["check"], &variables);
    let reported = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(reported.contains("OTLP metrics: http://c:4318/v1/metrics (http/protobuf) every 60 s."), "{reported}");
    assert!(
        reported.contains("environment variable OTEL_TRACES_SAMPLER: ") && !reported.contains("not configured"),
        "{reported}"
    );
    assert!(!reported.contains("hunter2"));
}

#[test]
fn check_connects_to_the_servers_and_warns_of_those_it_cannot_reach() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (up, down) = (server.local_addr().unwrap(), crate::listener::reserved());
    for (upstream, found, advice) in [
        (up.to_string(), "connected", None),
        (down.to_string(), "refused (", Some("Start the server, or correct `upstream`")),
        ("no-such-server.invalid:80".to_owned(), "DNS failure (", Some("Correct the host name in `upstream`")),
    ] {
        let output = tokometer(&["check", "--listen=127.0.0.1:0", "--upstream", &upstream], &[]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let reported = stdout(&output);
        assert!(reported.contains(&format!("\nServers\n  {upstream}: {found}")), "{reported}");
        let warning = format!("the server at {upstream} cannot be reached now");
        match advice {
            None => assert!(!reported.contains(&warning), "{reported}"),
            Some(advice) => assert!(reported.contains(&warning) && reported.contains(advice), "{reported}"),
        }
    }
}

#[test]
fn check_and_run_report_unusable_files_and_exit_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let empty = file("empty.pem", "");
    let listeners = "listeners: [{listen: '127.0.0.1:0', upstream: ':2'}]\nadmin: {listen: '127.0.0.1:0'}\n";
    let tls = |path: &str| {
        format!("listeners: [{{listen: '127.0.0.1:0', upstream: ':2', tls: {{certificate: {path}, key: {path}}}}}]\n")
    };
    let table = [
        ("missing", tls("/no/c.pem"), "listeners[0].tls.certificate: cannot read /no/c.pem"),
        (
            "vocabulary",
            format!("{listeners}observe: {{tokenizer: {{path: /no/t.json}}}}"),
            "observe.tokenizer: cannot read the tokenizer /no/t.json",
        ),
        ("key", format!("{listeners}tenants: {{enabled: true, hash_key_file: {empty}}}"), "holds 0 bytes"),
        ("empty", tls(&empty), "listeners[0]: the certificate file"),
        (
            "collector",
            format!("{listeners}otlp: {{endpoint: 'https://127.0.0.1:1', certificate: {empty}}}"),
            "otlp.metrics: ",
        ),
    ];
    for (name, yaml, part) in table {
        let path = file(&format!("{name}.yaml"), &yaml);
        for command in ["check", "run"] {
            let output = tokometer(&[command, "--config", &path], &[]);
            let reported = stderr(&output);
            assert_eq!(output.status.code(), Some(2), "{command} {name}: {reported}");
            assert!(reported.contains(part) && !stdout(&output).contains("is valid"), "{command} {name}: {reported}");
        }
    }
}

/// Runtimes that the process started before the failure must not panic when dropped.
#[test]
fn receiver_port_in_use_exits_with_2_and_names_the_key() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ports = ["--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1", "--admin", "127.0.0.1:0"];
    let otlp = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")];
    let output = tokometer(&[&["run"][..], &ports, &["--otlp-receiver", &address]].concat(), &otlp);
    let reported = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{reported}");
    assert!(
        reported.contains(&format!("cannot listen on {address}")) && reported.contains("--otlp-receiver"),
        "{reported}"
    );
}

#[test]
fn otlp_disabled_on_purpose_gives_no_warning() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = format!("--upstream={}", server.local_addr().unwrap());
    let check = ["check", "--listen=127.0.0.1:0", &upstream];
    let reported = stdout(&tokometer(&check, &[endpoint, ("OTEL_SDK_DISABLED", "true")]));
    assert!(reported.contains("OTLP metrics: off.") && reported.contains("No warnings."), "{reported}");
}

#[test]
fn config_prints_default_schema_and_effective_values() {
    let default = stdout(&tokometer(&["config", "--print-default"], &[("TOKOMETER_LOG_LEVEL", "debug")]));
    assert_eq!(default, tokometer::config::default_yaml());
    let schema: serde_json::Value = serde_json::from_str(&stdout(&tokometer(&["config", "--schema"], &[]))).unwrap();
    assert_eq!(schema, tokometer::config::schema());
    let effective = stdout(&tokometer(&["config", "--admin", ":1"], &[("TOKOMETER_LOG_LEVEL", "debug")]));
    assert!(effective.contains("level: debug  # environment variable TOKOMETER_LOG_LEVEL"), "{effective}");
    assert!(effective.contains("listen: \":1\"  # flag --admin"), "{effective}");
}

#[test]
fn closed_stdout_exits_with_0() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tokometer"))
        .args(["config", "--schema"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
