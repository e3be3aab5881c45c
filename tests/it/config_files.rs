//! Files: the configuration file, and the files that it names.

use std::path::PathBuf;

use tokometer::config::{Config, Environment, Flags, Origin};

#[test]
fn unreadable_file_is_named() {
    let flags = Flags { config: Some(PathBuf::from("/nonexistent/t.yaml")), ..Flags::default() };
    let error = Config::load(&flags, &Environment::default()).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/t.yaml") && error.contains("check the path"), "{error}");
}

#[test]
fn invalid_utf8_is_reported_with_its_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.yaml");
    let flags = Flags { config: Some(path.clone()), ..Flags::default() };
    let table: [(&[u8], &str); 4] = [
        (b"log:\n  level: \xff\n", ":2:10: "),
        (b"\xff", ":1:1: "),
        (b"a: 1\n\xff", ":2:1: "),
        ("é: \u{e9}".as_bytes().get(..5).unwrap(), ":1:4: "),
    ];
    for (bytes, place) in table {
        std::fs::write(&path, bytes).unwrap();
        let error = Config::load(&flags, &Environment::default()).unwrap_err().to_string();
        assert!(error.contains(&format!("t.yaml{place}")) && error.contains("as UTF-8"), "{error}");
    }
}

/// Files in use are reported with their keys; unused files are not checked.
#[test]
fn unopenable_files_are_reported_with_their_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("c.pem"), "").unwrap();
    let write = |yaml: &str| std::fs::write(path("t.yaml"), yaml.replace("HERE", folder.path().to_str().unwrap()));
    let flags = Flags { config: Some(path("t.yaml").into()), ..Flags::default() };
    let environment = Environment::default();
    let problems = |environment: &Environment| match Config::load_with_files(&flags, environment) {
        Ok(_) => Vec::new(),
        Err(error) => error.to_string().lines().map(str::to_owned).collect(),
    };
    let listeners = "listeners: [{listen: ':1', upstream: ':2', tls: {certificate: HERE/c.pem, key: HERE/k.pem, client_ca: HERE}}, \
                 {listen: ':3', upstream: 'https://b:4', upstream_tls: {ca: HERE/ca.pem}}]\n";
    let otlp = "otlp: {certificate: HERE/both.pem, endpoint: 'https://c:1'}\n";
    write(&format!("{listeners}{otlp}access_log: {{enabled: true, path: HERE/none/a.log}}\n")).unwrap();
    assert!(Config::load(&flags, &environment).is_ok(), "loading alone does not open the files");
    let reported = problems(&environment);
    let expected = [
        ("listeners[0].tls.key", "/k.pem: No such file"),
        ("listeners[0].tls.client_ca", ": is a directory"),
        ("listeners[1].upstream_tls.ca", "/ca.pem: No such file"),
        ("otlp.certificate", "/both.pem: No such file"),
        ("access_log.path", "/none/a.log: No such file"),
    ];
    assert_eq!(reported.len(), expected.len(), "{reported:#?}");
    for (line, (key, part)) in reported.iter().zip(expected) {
        assert!(line.contains(&format!(": {key}: cannot ")) && line.contains(part), "{key}: {line}");
        assert!(line.contains("t.yaml:") && line.ends_with("check the path and its permissions"), "{line}");
    }
    // Valid cases: the file is not used (OTLP off or without TLS, access log off), or the log file is writable or can
    // be created.
    for yaml in [
        "otlp: {certificate: /none}",
        "otlp: {endpoint: 'http://c:1', certificate: /none}",
        "access_log: {path: /none/a.log}",
        "access_log: {enabled: true, path: HERE/a.log}",
        "access_log: {enabled: true, path: HERE/c.pem}",
        "access_log: {enabled: true, path: /dev/null}",
    ] {
        write(yaml).unwrap();
        assert_eq!(problems(&environment), Vec::<String>::new(), "{yaml}");
    }
    assert!(!folder.path().join("a.log").exists(), "the check creates no file");
    // An `OTEL_*` variable with an unusable file is ignored, like any other invalid one.
    let standard: Environment =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:1"), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/none/ca.pem")]
            .into_iter()
            .collect();
    let config = Config::load_with_files(&flags, &standard).unwrap();
    let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("OTEL_EXPORTER_OTLP_CERTIFICATE") && warnings[0].contains("is ignored"),
        "{warnings:?}"
    );
    assert_eq!(config.settings.export.metrics.endpoint.unwrap().ca, None);
}

#[test]
fn origins_have_readable_names() {
    let file = Origin::File { file: "a.yaml".into(), line: 3, column: 5 };
    assert_eq!(file.to_string(), "a.yaml:3:5");
    assert_eq!(Origin::Flag("--admin".into()).to_string(), "flag --admin");
}
