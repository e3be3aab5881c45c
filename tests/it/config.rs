//! Layers of the configuration, the resulting settings, and the errors of invalid values.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokometer::config::{Config, Environment, Error, Flags, reload};
use tokometer_proxy::listen::Address;
use tokometer_proxy::relay;
use tokometer_settings::Size;
use tokometer_telemetry::export;

use crate::mistakes::{Mistake, assert_reported};

fn load(yaml: &str, variables: &[(&str, &str)], flags: &Flags) -> Result<Config, Error> {
    let environment: Environment = variables.iter().copied().collect();
    Config::from_layers(Some((Path::new("t.yaml"), yaml)), flags, &environment)
}

fn from_yaml(yaml: &str) -> Config {
    load(yaml, &[], &Flags::default()).expect("a configuration without errors")
}

fn from_variables(variables: &[(&str, &str)]) -> Config {
    load("", variables, &Flags::default()).expect("a configuration without errors")
}

fn message(yaml: &str) -> String {
    load(yaml, &[], &Flags::default()).expect_err(yaml).to_string()
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

#[test]
fn empty_configuration_gives_the_defaults_of_every_module() {
    let environment = Environment::default();
    let config = Config::from_layers(None, &Flags::default(), &environment).unwrap();
    let settings = &config.settings;
    assert_eq!(settings.relay, relay::Settings::default());
    assert_eq!(settings.observe, tokometer_observe::observer::Settings::default());
    assert_eq!(settings.admin, tokometer::admin::Settings::default());
    assert_eq!(settings.log, tokometer::logging::Settings::default());
    assert_eq!(settings.access_log, None);
    assert_eq!(settings.threads, None);
    let defaults = export::Settings::default();
    let export =
        export::Settings { resource: defaults.resource.clone(), listeners: Vec::new(), ..settings.export.clone() };
    assert_eq!(export, defaults);
    let listener = tokometer_metrics::Listener {
        name: "0.0.0.0:8000".to_owned(),
        address: "127.0.0.1".to_owned(),
        port: Some(8001),
    };
    assert_eq!(settings.export.listeners, [listener]);
    assert_eq!(settings.listeners.len(), 1);
    assert_eq!(settings.listeners[0].listen, tcp("0.0.0.0", 8000));
    assert_eq!(settings.listeners[0].upstream, tcp("127.0.0.1", 8001));
    assert_eq!(config.warnings, []);
}

#[test]
fn empty_file_and_empty_blocks_set_nothing() {
    for yaml in ["", "# only a comment\n", "---\n", "relay:\n", "otlp:\n  headers:\n", "{}"] {
        assert_eq!(from_yaml(yaml).settings, from_yaml("").settings, "{yaml}");
    }
}

#[test]
fn each_layer_overrides_the_one_before() {
    let yaml = "otlp: {endpoint: 'http://file:4318'}\nlog: {level: error}\nadmin: {listen: 127.0.0.1:1}\n";
    let shown = |config: &Config| config.settings.export.metrics.endpoint.as_ref().unwrap().url.clone();
    assert_eq!(shown(&from_yaml(yaml)), "http://file:4318/v1/metrics");
    let otel = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318");
    let own = ("TOKOMETER_OTLP_ENDPOINT", "http://own:4318");
    let flags = Flags { set: vec!["otlp.endpoint=http://flag:4318".to_owned()], ..Flags::default() };
    let none = Flags::default();
    assert_eq!(shown(&load(yaml, &[otel], &none).unwrap()), "http://otel:4318/v1/metrics");
    assert_eq!(shown(&load(yaml, &[otel, own], &none).unwrap()), "http://own:4318/v1/metrics");
    assert_eq!(shown(&load(yaml, &[otel, own], &flags).unwrap()), "http://flag:4318/v1/metrics");
    let flags = Flags { admin: Some(":9".to_owned()), ..Flags::default() };
    let config = load(yaml, &[("TOKOMETER_ADMIN_LISTEN", ":8")], &flags).unwrap();
    assert_eq!(config.settings.admin.listen.port(), 9);
}

#[test]
fn flags_and_variables_define_listeners() {
    let flags = Flags { listen: Some(":1".into()), upstream: Some("unix:/s".into()), ..Flags::default() };
    let settings = load("", &[("TOKOMETER_LISTEN", ":2")], &flags).unwrap().settings;
    assert_eq!(settings.listeners[0].listen, tcp("0.0.0.0", 1));
    assert_eq!(settings.listeners[0].upstream, Address::Unix(PathBuf::from("/s")));
    assert_eq!(settings.listeners[0].name, ":1");

    let flags = Flags { listeners: vec![":1=:2".into(), ":3=https://h".into()], ..Flags::default() };
    let settings = load("listeners: [{listen: ':9', upstream: ':8'}]", &[], &flags).unwrap().settings;
    assert_eq!(settings.listeners.len(), 2);
    assert_eq!(settings.listeners[1].upstream, tcp("h", 443));
    assert!(settings.listeners[1].upstream_tls.is_some() && settings.listeners[0].upstream_tls.is_none());

    let settings = from_variables(&[("TOKOMETER_LISTENERS", ":1=:2, :3=original")]).settings;
    assert_eq!(settings.listeners[1].upstream, Address::OriginalDestination);

    // An address from a flag keeps the other settings of the file's listener.
    let yaml = "listeners: [{name: a, listen: ':9', upstream: ':8', tls: {certificate: c, key: k}}]";
    let flags = Flags { upstream: Some(":7".into()), ..Flags::default() };
    let settings = load(yaml, &[], &flags).unwrap().settings;
    assert_eq!((settings.listeners[0].name.as_str(), &settings.listeners[0].upstream), ("a", &tcp("127.0.0.1", 7)));
    assert!(settings.listeners[0].tls.is_some());

    // `listeners[].` sets a key of every listener.
    let flags = Flags {
        listeners: vec!["[127.0.0.2,127.0.0.3]:1=:2".into()],
        set: ["tls.certificate=c", "tls.key=k", "upstream_tls.enabled=true", "upstream_tls.insecure=true"]
            .map(|key| format!("listeners[].{key}"))
            .to_vec(),
        ..Flags::default()
    };
    let settings = load("", &[], &flags).unwrap().settings;
    assert_eq!(settings.listeners.len(), 2);
    for listener in &settings.listeners {
        assert_eq!(listener.tls.as_ref().unwrap().key, PathBuf::from("k"));
        assert!(listener.upstream_tls.as_ref().unwrap().insecure);
    }

    let flags = Flags { upstream: Some(":7".into()), ..Flags::default() };
    let two = "listeners: [{listen: ':9', upstream: ':8'}, {listen: ':7', upstream: ':6'}]";
    let error = load(two, &[], &flags).unwrap_err().to_string();
    assert!(error.contains("flag --upstream: listeners[].upstream: 2 listeners are configured"), "{error}");
}

#[test]
fn suggested_port_is_free_and_no_other_key_names_it() {
    // `held` represents another program, which uses the port after the two in the configuration.
    let (held, first) = std::iter::repeat_with(|| TcpListener::bind("127.0.0.1:0").unwrap())
        .find_map(|held| {
            let first = held.local_addr().unwrap().port().checked_sub(2)?;
            (first..first + 2).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()).then_some((held, first))
        })
        .unwrap();
    let next = first + 1;
    let yaml = format!(
        "admin: {{listen: '127.0.0.1:{first}'}}\nlisteners: [{{listen: '127.0.0.1:{first}', upstream: '127.0.0.1:{next}'}}]"
    );
    let error = load(&yaml, &[], &Flags::default()).unwrap_err().to_string();
    let suggested: u16 = error.split_once("another port, such as ").unwrap().1.trim().parse().unwrap();
    assert!(suggested > held.local_addr().unwrap().port(), "{error}");
    drop(TcpListener::bind(("127.0.0.1", suggested)).unwrap());
}

const BAD: &[Mistake] = &[
    (
        "admin: {listen: '127.0.0.1:9464'}\nlisteners: [{listen: '127.0.0.1:9464', upstream: ':1'}]",
        "t.yaml:1:17",
        "admin.listen",
        "write another port, such as ",
    ),
    ("relay:\n  keep_alive: 1s", "t.yaml:2:3", "relay.keep_alive", "did you mean `keepalive`?"),
    ("relai: {}", "t.yaml:1:1", "relai", "did you mean `relay`?"),
    ("keepalive: 1s", "t.yaml:1:1", "keepalive", "did you mean `relay.keepalive`?"),
    ("admin:\n  colour: red", "t.yaml:2:3", "admin.colour", "are `allowed_hosts`, `listen`, `remote_drain`"),
    ("relay:\n  keepalive: soon", "t.yaml:2:14", "relay.keepalive", "write a number and a unit: 500ms, 10s"),
    ("relay:\n  keepalive: 30", "t.yaml:2:14", "relay.keepalive", "`30` has no unit; write a duration from 0s to 9h"),
    (
        "otlp: {traces: {endpoint: 'http://c:4318'}}",
        "t.yaml:1:17",
        "otlp.traces.endpoint",
        "set the variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ),
    ("relay:\n  keepalive: 1.5", "t.yaml:2:14", "relay.keepalive", "has no unit"),
    (
        "relay:\n  keepalive: 10h",
        "t.yaml:2:14",
        "relay.keepalive",
        "10h is out of range; write a duration from 0s to 9h",
    ),
    ("relay: {unreachable: reset_}", "t.yaml:1:22", "relay.unreachable", "did you mean `reset`?"),
    ("relay: {unreachable: 503}", "t.yaml:1:22", "relay.unreachable", "write `refuse`, `http_503`, `reset`"),
    ("relay: 5", "t.yaml:1:8", "relay", "write an object"),
    ("relay: {connect_timeout: 99999999ms}", "t.yaml:1:26", "relay.connect_timeout", "to 1h"),
    ("observe: {enabled: maybe}", "t.yaml:1:20", "observe.enabled", "write true or false"),
    ("observe: {memory: 64}", "t.yaml:1:19", "observe.memory", "`64` has no unit; write a size from 0B"),
    ("observe: {memory: 64MB}", "t.yaml:1:19", "observe.memory", "write a number and a unit: 64KiB"),
    ("observe: {engine: vlm}", "t.yaml:1:19", "observe.engine", "did you mean `vllm`?"),
    ("observe: {path_prefixes: [engine1]}", "t.yaml:1:27", "observe.path_prefixes[0]", "must start with `/`"),
    ("observe: {path_prefixes: /a}", "t.yaml:1:26", "observe.path_prefixes", "write a list of strings"),
    ("observe: {routes: {llm: chat}}", "t.yaml:1:25", "observe.routes.llm", "must start with `/`"),
    ("observe: {routes: {/a/*/b: chat}}", "t.yaml:1:28", "observe.routes./a/*/b", "or /llm/* for everything below it"),
    ("observe: {routes: {/v1.0/llm: caht}}", "t.yaml:1:31", "observe.routes./v1.0/llm", "did you mean `chat`?"),
    ("observe: {routes: {/llm: something}}", "t.yaml:1:26", "observe.routes./llm", "write one of chat, completions"),
    ("observe: {routes: {/llm: 1}}", "t.yaml:1:26", "observe.routes./llm", "put it in quotes"),
    ("wedge: {decode: 1s}", "t.yaml:1:17", "wedge.decode", "write a higher value, such as 60"),
    ("telemetry: {max_models: 0}", "t.yaml:1:25", "telemetry.max_models", "from 1"),
    (
        "prometheus: {exemplars: false}",
        "t.yaml:1:14",
        "prometheus.exemplars",
        "set the variable OTEL_METRICS_EXEMPLAR_FILTER",
    ),
    (
        "telemetry: {prompt_classes: {cache_hits: true}}",
        "t.yaml:1:30",
        "telemetry.prompt_classes.cache_hits",
        "did you mean `cache_hit`?",
    ),
    ("telemetry: {max_label_sets: 0}", "t.yaml:1:29", "telemetry.max_label_sets", "from 1"),
    ("telemetry: {semconv: v1.40}", "t.yaml:1:22", "telemetry.semconv", "`v1.41`, `latest`, `both`"),
    ("telemetry: {resource: {a: 1}}", "t.yaml:1:27", "telemetry.resource.a", "put it in quotes"),
    ("otlp: {endpoint: 'localhost:4318'}", "t.yaml:1:18", "otlp.endpoint", "write http://host:4318"),
    ("otlp: {endpoint: 'ftp://a'}", "t.yaml:1:18", "otlp.endpoint", "write http:// or https://"),
    ("otlp: {endpoint: 'http://'}", "t.yaml:1:18", "otlp.endpoint", "write http://host:port"),
    ("otlp: {protocol: http/json}", "t.yaml:1:18", "otlp.protocol", "`http/protobuf`, `grpc`"),
    ("otlp: {compression: zstd}", "t.yaml:1:21", "otlp.compression", "`none`, `gzip`"),
    ("otlp: {timeout: 0}", "t.yaml:1:17", "otlp.timeout", "from 1ms"),
    ("otlp: {client_key: k}", "t.yaml:1:20", "otlp.client_key", "set `otlp.client_certificate` too"),
    ("otlp: {client_certificate: c}", "t.yaml:1:28", "otlp.client_certificate", "client_key` too"),
    ("otlp: {headers: {'a b': c}}", "t.yaml:1:25", "otlp.headers.a b", "letters, digits and dashes"),
    ("otlp: {metrics: {intervall: 1s}}", "t.yaml:1:18", "otlp.metrics.intervall", "did you mean `interval`?"),
    (
        "otlp: {metrics: {interval: 0}}",
        "t.yaml:1:28",
        "otlp.metrics.interval",
        "0s is out of range; write a duration from 100ms",
    ),
    ("otlp: {traces: {sampler_ratio: 1.1}}", "t.yaml:1:32", "otlp.traces.sampler_ratio", "from 0 to 1"),
    ("otlp: {traces: {sampler_ratio: -0.1}}", "t.yaml:1:32", "otlp.traces.sampler_ratio", "from 0 to 1"),
    ("otlp: {traces: {sampler: xray}}", "t.yaml:1:26", "otlp.traces.sampler", "`parentbased_always_on`"),
    ("otlp: {traces: {batch_size: 9}}", "t.yaml:1:17", "otlp.traces.batch_size", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"),
    ("admin: {listen: 9464}", "t.yaml:1:17", "admin.listen", "put it in quotes"),
    ("admin: {listen: 'unix:/a'}", "t.yaml:1:17", "admin.listen", "TCP only"),
    ("admin: {listen: ':8000'}", "t.yaml:1:17", "admin.listen", "already uses this address; write another port"),
    ("admin: {listen: '127.0.0.1:8001'}", "t.yaml:1:17", "admin.listen", "this is the upstream of the listener"),
    ("relay: {max_connections: -1}", "t.yaml:1:26", "relay.max_connections", "from 0"),
    ("log: {level: loud}", "t.yaml:1:14", "log.level", "write off, error, warn"),
    ("log: {format: xml}", "t.yaml:1:15", "log.format", "`text`, `json`"),
    ("access_log: {path: ''}", "t.yaml:1:20", "access_log.path", "null for stdout"),
    ("process: {threads: 5000}", "t.yaml:1:20", "process.threads", "to 1024"),
    ("listeners: []", "t.yaml:1:12", "listeners", "use --listen and --upstream"),
    ("listeners: [{listen: ':1'}]", "t.yaml:1:13", "listeners[0].upstream", "missing; add `upstream: ...`"),
    ("listeners: [{listen: ':1', upstream: ':2', tsl: {}}]", "t.yaml:1:44", "listeners[0].tsl", "did you mean `tls`?"),
    ("listeners: [{listen: '1', upstream: ':2'}]", "t.yaml:1:22", "listeners[0].listen", "has no port"),
    ("listeners: [{listen: ':1', upstream: 'ftp://a'}]", "t.yaml:1:38", "listeners[0].upstream", "https://host:port"),
    (
        "listeners: [{listen: ':1', upstream: ':1'}]",
        "t.yaml:1:38",
        "listeners[0].upstream",
        "tokometer's own listen address",
    ),
    (
        "listeners: [{listen: 'unix:/a', upstream: original}]",
        "t.yaml:1:43",
        "listeners[0].upstream",
        "listen on a TCP address",
    ),
    (
        "listeners: [{listen: ':1', upstream: ':2', tls: {key: k}}]",
        "t.yaml:1:55",
        "listeners[0].tls.key",
        "set `listeners[0].tls.certificate` too",
    ),
    (
        "listeners: [{listen: ':1', upstream: ':2', tls: {client_ca: k}}]",
        "t.yaml:1:61",
        "listeners[0].tls.client_ca",
        "client certificates require TLS",
    ),
    (
        "listeners: [{listen: ':1', upstream: ':2', upstream_tls: {ca: k}}]",
        "t.yaml:1:63",
        "listeners[0].upstream_tls.ca",
        "write the upstream as https://",
    ),
    (
        "listeners: [{listen: ':1', upstream: 'https://a', upstream_tls: {certificate: k}}]",
        "t.yaml:1:79",
        "listeners[0].upstream_tls.certificate",
        "set `listeners[0].upstream_tls.key` too",
    ),
    (
        "listeners: [{listen: ':1', upstream: 'unix:/a', upstream_tls: {enabled: true}}]",
        "t.yaml:1:63",
        "listeners[0].upstream_tls.server_name",
        "set `server_name`",
    ),
    (
        "listeners: [{listen: ':1', upstream: ':2'}, {listen: '127.0.0.1:1', upstream: ':3'}]",
        "t.yaml:1:54",
        "listeners[1].listen",
        "listeners[0] already uses this address",
    ),
    (
        "listeners: [{name: a, listen: ':1', upstream: ':2'}, {name: a, listen: ':3', upstream: ':4'}]",
        "t.yaml:1:61",
        "listeners[1].name",
        "use unique names",
    ),
    ("observe: {tokenizer: {path: ''}}", "t.yaml:1:29", "observe.tokenizer.path", "write the path of a tokenizer.json"),
    ("observe: {tokenizer: {models: {m: ''}}}", "t.yaml:1:35", "observe.tokenizer.models.m", "or remove the model"),
];

#[test]
fn invalid_value_is_reported_with_place_key_and_fix() {
    assert_reported(BAD);
}

#[test]
fn listener_loop_is_reported_at_each_listener() {
    let message = message("listeners: [{listen: ':1', upstream: ':2'}, {listen: ':2', upstream: ':1'}]");
    assert_eq!(message.lines().count(), 2, "{message}");
    for place in ["t.yaml:1:38: listeners[0].upstream: ", "t.yaml:1:70: listeners[1].upstream: "] {
        assert!(message.contains(&format!("{place}this leads through other listeners back")), "{message}");
    }
}

#[test]
fn text_is_kept_only_if_a_vocabulary_is_set() {
    assert_eq!(from_yaml("observe: {tokenizer: {path: null}}").settings.observe.text, None);
    for yaml in ["{path: /t.json}", "{models: {m: /t.json}}"] {
        let settings = from_yaml(&format!("observe: {{tokenizer: {yaml}}}")).settings;
        let text = tokometer_observe::observer::Text { response_bytes: 262_144, memory_bytes: 67_108_864 };
        assert_eq!((settings.observe.text, settings.tokenizer.is_on()), (Some(text), true), "{yaml}");
    }
}

#[test]
fn all_problems_are_reported_together_and_once() {
    let message = message("relay: {keepalive: x}\nlog: {format: xml}\nfoo: 1\n");
    assert_eq!(message.lines().count(), 3, "{message}");
    let message = self::message("otlp: {client_key: k}\nlisteners: [{listen: '1', upstream: '2'}]");
    assert_eq!(message.lines().count(), 3, "{message}");
}

#[test]
fn invalid_yaml_is_reported_with_its_place() {
    for (yaml, place) in [("relay: [1\nadmin: {", "t.yaml:2:"), ("a: 1\na: 2\n", "t.yaml:2:1")] {
        let message = message(yaml);
        assert!(message.starts_with(place) && message.contains("not valid YAML"), "{yaml}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    assert!(message("\t- x").contains("without tabs"), "{}", message("\t- x"));
    let two = message("log: {level: info}\n---\nrelay: {keepalive: 1s}\n");
    assert!(two.starts_with("t.yaml:3:1: ") && two.contains("a second document begins here; write one"), "{two}");
    assert!(message("- a").contains("a list is not valid here"));
}

#[test]
fn invalid_flags_and_variables_are_named() {
    let flags = |text: &str| Flags { set: vec![text.to_owned()], ..Flags::default() };
    let table = [
        (flags("relay.keepaliv=1s"), "flag --set: relay.keepaliv: unknown key; did you mean `relay.keepalive`?"),
        (flags("slo.ttft[].name=a"), "flag --set: slo.ttft[].name: keys of lists cannot be set here; use a file"),
        (flags("relay.keepalive"), "flag --set: missing `=`; write KEY=VALUE"),
        (flags("relay.keepalive=x"), "flag --set: relay.keepalive: invalid duration `x`; write a number and a unit"),
        (flags("listeners[].listen=x"), "use --listener"),
        (
            Flags { listeners: vec!["x".into()], ..Flags::default() },
            "flag --listener: listeners: invalid listener `x`; write LISTEN=UPSTREAM",
        ),
        (Flags { listen: Some("x".into()), ..Flags::default() }, "flag --listen: listeners[0].listen: `x` has no port"),
        (Flags { admin: Some("x".into()), ..Flags::default() }, "flag --admin: admin.listen: `x` has no port"),
    ];
    for (flags, expected) in table {
        let error = load("", &[], &flags).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let table = [
        (("TOKOMETER_OTLP_TRACES_ENDPOINT", "x"), "set the variable OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        (("TOKOMETER_RELAY_KEEPALIVE", "x"), "environment variable TOKOMETER_RELAY_KEEPALIVE: relay.keepalive:"),
        (
            ("TOKOMETER_UPSTREAM", "x"),
            "environment variable TOKOMETER_UPSTREAM: listeners[0].upstream: `x` has no port",
        ),
        (("TOKOMETER_OTLP_TRACES_SAMPLER_RATIO", "nan"), "otlp.traces.sampler_ratio: NaN is out of range"),
        (("TOKOMETER_LISTENERS", "x"), "environment variable TOKOMETER_LISTENERS: listeners: invalid listener `x`"),
    ];
    for (variable, expected) in table {
        let error = load("", &[variable], &Flags::default()).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn unknown_variables_give_a_warning_except_service_links() {
    let config = from_variables(&[
        ("TOKOMETER_LOG_LEVL", "debug"),
        ("TOKOMETER_PORT", "tcp://10.0.0.1:9464"),
        ("TOKOMETER_SERVICE_HOST", "10.0.0.1"),
        ("TOKOMETER_ADMIN_PORT_9464_TCP_ADDR", "10.0.0.1"),
    ]);
    let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("TOKOMETER_LOG_LEVL") && warnings[0].contains("did you mean TOKOMETER_LOG_LEVEL?"));
}

#[test]
fn variables_parse_by_the_type_of_their_key() {
    let settings = from_variables(&[
        ("TOKOMETER_OBSERVE_ENABLED", "0"),
        ("TOKOMETER_OBSERVE_PATH_PREFIXES", "/a, /b/"),
        ("TOKOMETER_RELAY_KEEPALIVE", "0"),
        ("TOKOMETER_RELAY_UNREACHABLE", "reset"),
        ("TOKOMETER_TELEMETRY_RESOURCE", "team=ml,cost%20centre=7"),
        ("TOKOMETER_RELAY_CONNECT_TIMEOUT", "250ms"),
        ("TOKOMETER_OBSERVE_MEMORY", "32MiB"),
        ("TOKOMETER_PROCESS_LAME_DUCK", ""),
        ("TOKOMETER_ACCESS_LOG_ENABLED", "true"),
        ("TOKOMETER_ACCESS_LOG_PATH", "null"),
    ])
    .settings;
    assert!(!settings.observe.enabled);
    assert_eq!(settings.observe.path_prefixes, ["/a", "/b/"]);
    assert_eq!(settings.relay.keepalive, None);
    assert_eq!(settings.relay.unreachable, relay::Unreachable::Reset);
    assert!(settings.export.resource.get("cost centre").is_some_and(|value| value == "7"));
    assert_eq!(settings.relay.connect_timeout, Some(Duration::from_millis(250)));
    assert_eq!(settings.observe.memory, Size(32 << 20));
    assert_eq!(settings.lame_duck, Duration::from_secs(5), "an empty variable counts as not set");
    assert_eq!(settings.access_log.unwrap().path, None);
}

#[test]
fn prompt_classes_are_off_by_default() {
    let classes = |config: &Config| config.settings.export.prompt_classes;
    assert_eq!(classes(&from_yaml("")), export::PromptClasses::default());
    let on = classes(&from_yaml("telemetry: {prompt_classes: {input_length: true}}"));
    assert_eq!(on, export::PromptClasses { input_length: true, cache_hit: false });
    let on = classes(&from_variables(&[
        ("TOKOMETER_TELEMETRY_PROMPT_CLASSES_INPUT_LENGTH", "true"),
        ("TOKOMETER_TELEMETRY_PROMPT_CLASSES_CACHE_HIT", "true"),
    ]));
    assert_eq!(on, export::PromptClasses { input_length: true, cache_hit: true });
}

#[test]
fn zero_disables_optional_limits() {
    let yaml = "relay: {connect_timeout: 0, keepalive: 0, idle_timeout: 0}\n\
                otlp: {traces: {keep_first_token_over: 0}}\nprocess: {threads: 0, grace_period: 0}";
    let settings = from_yaml(yaml).settings;
    assert_eq!(settings.relay.connect_timeout, None);
    assert_eq!(settings.relay.keepalive, None);
    assert_eq!(settings.relay.idle_timeout, None);
    assert_eq!(settings.export.traces.keep_first_token_over, None);
    assert_eq!(settings.threads, None);
    assert_eq!(settings.grace_period, Duration::ZERO);
    assert_eq!(settings.grace_period, Duration::ZERO);
}

#[test]
fn names_of_tenants_are_shown_as_the_hash_of_their_label() {
    let yaml = "tenants: {enabled: true, names: {sk-hunter2: acme, sk-hunter3: other}}\n\
        budgets: [{name: b, tenants: [sk-hunter2], tokens_per_day: 1}]\n\
        slo: {stall: [{applies_to: {tenants: [sk-hunter3]}}]}\n";
    let config = load(yaml, &[], &Flags::default()).unwrap();
    let shown = config.effective_yaml();
    assert!(!shown.contains("hunter"), "{shown}");
    // printf %s sk-hunter2 | sha256sum | cut -c-12
    let masked = "<redacted af859d6b5906>";
    assert!(shown.contains(&format!("\"{masked}\": acme")), "{shown}");
    assert!(shown.contains(&format!("tenants: [\"{masked}\"]")), "{shown}");
    let keyless =
        load("tenants: {enabled: true, hash_key_file: /none, names: {sk-hunter2: a}}", &[], &Flags::default());
    let shown = keyless.unwrap().effective_yaml();
    assert!(!shown.contains("hunter") && shown.contains("<redacted>"), "{shown}");
    for yaml in [
        "tenants: {names: {sk-hunter2: [a]}}",
        "tenants: {names: {sk-hunter2: ' '}}",
        "budgets: [{name: b, tenants: [{sk-hunter2: 1}], tokens_per_day: 1}]",
        "budgets: [{name: b, tenants: sk-hunter2, tokens_per_day: 1}]",
    ] {
        assert!(!message(yaml).contains("hunter"), "{}", message(yaml));
    }
}

#[test]
fn secrets_are_redacted() {
    let yaml = "otlp:\n  endpoint: https://user:hunter2@otel.example:4318/x?key=hunter2\n  headers: {authorization: Bearer hunter2}\n";
    let variables =
        [("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "k=hunter2"), ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=hunter2")];
    let config = load(yaml, &variables, &Flags::default()).unwrap();
    let shown = config.effective_yaml();
    assert!(!shown.contains("hunter2"), "{shown}");
    for part in ["authorization: \"<redacted>\"", "x-key: \"<redacted>\"", "<redacted>@otel.example:4318"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let endpoint = config.settings.export.metrics.endpoint.as_ref().unwrap();
    // Credentials in a URL become a header, because URLs are logged.
    assert_eq!(endpoint.url, "https://otel.example:4318/x/v1/metrics?key=hunter2");
    assert_eq!(endpoint.headers.len(), 2);
    assert_eq!(endpoint.headers[0], ("k".to_owned(), "hunter2".to_owned()));
    for yaml in ["otlp: {headers: hunter2}", "otlp: {headers: {a: [hunter2]}}", "otlp: {headers: {a: \"hunter2\\n\"}}"]
    {
        assert!(!message(yaml).contains("hunter2"), "{}", message(yaml));
    }
    let config = from_variables(&[("OTEL_EXPORTER_OTLP_HEADERS", "hunter2")]);
    assert!(!config.warnings.is_empty() && !format!("{:?}", config.warnings).contains("hunter2"));
    let error = load("", &[("TOKOMETER_OTLP_HEADERS", "hunter2")], &Flags::default()).unwrap_err().to_string();
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn effective_yaml_shows_origins_and_parses_back() {
    let yaml = "listeners:\n  - listen: :1\n    upstream: :2\n  - listen: ':3'\n    upstream: 'unix:/run/a b.sock'\n    name: \"no\"\n\
                telemetry:\n  resource: {a.b: 'x # y', version: '1.10'}\nobserve: {path_prefixes: [/a, '/b: c']}\n";
    let variables = [
        ("OTEL_METRIC_EXPORT_INTERVAL", "1000"),
        ("TOKOMETER_LOG_FORMAT", "json"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=ml"),
    ];
    let config = load(yaml, &variables, &Flags { admin: Some(":5".into()), ..Flags::default() }).unwrap();
    let shown = config.effective_yaml();
    for part in [
        "  - name: null\n    listen: \":1\"  # t.yaml:2:13\n",
        "    name: \"no\"  # t.yaml:6:11\n".trim_start(),
        "  interval: 1s  # environment variable OTEL_METRIC_EXPORT_INTERVAL\n",
        "    team: ml  # environment variable OTEL_RESOURCE_ATTRIBUTES\n",
        "  format: json  # environment variable TOKOMETER_LOG_FORMAT\n",
        "  listen: \":5\"  # flag --admin\n",
        "  keepalive: 1m\n",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    let again = from_yaml(&shown);
    assert_eq!(again.settings, config.settings);

    // A file cannot set these values, so the YAML shows them as comments.
    let variables = [("OTEL_BSP_SCHEDULE_DELAY", "1000"), ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b")];
    let shown = load("", &variables, &Flags::default()).unwrap().effective_yaml();
    for part in [
        "    # schedule_delay: 1s  # environment variable OTEL_BSP_SCHEDULE_DELAY\n",
        "    # headers: {a: \"<redacted>\"}  # environment variable OTEL_EXPORTER_OTLP_TRACES_HEADERS\n",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    assert_eq!(from_yaml(&shown).settings, from_yaml("").settings);
}

#[test]
fn reload_lists_changes_and_rejects_an_invalid_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.yaml");
    let flags = Flags { config: Some(path.clone()), ..Flags::default() };
    let environment = Environment::default();
    std::fs::write(&path, "log: {level: info}\notlp: {headers: {a: one}}\n").unwrap();
    let old = Config::load(&flags, &environment).unwrap();

    assert_eq!(reload(&old, &flags, &environment).unwrap().changes, []);

    std::fs::write(&path, "log: {level: debug}\notlp: {headers: {a: two}}\nobserve: {path_prefixes: [/x]}\n").unwrap();
    let new = reload(&old, &flags, &environment).unwrap();
    let changes: Vec<String> = new
        .changes
        .iter()
        .map(|c| format!("{} {} -> {} {}", c.path, c.from, c.to, if c.needs_restart { "restart" } else { "live" }))
        .collect();
    assert_eq!(
        changes,
        [
            "observe.path_prefixes [] -> [/x] live",
            "otlp.headers.a \"<redacted>\" -> \"<redacted>\" restart",
            "log.level info -> debug live",
        ]
    );
    assert_eq!(new.config.settings.observe.path_prefixes, ["/x"]);

    // The next reload is compared with the effective configuration after this one.
    let running = old.adopting(&new.config);
    let shown = running.effective_yaml();
    assert!(shown.contains("level: debug  # ") && shown.contains("path_prefixes: [/x]"), "{shown}");
    assert_eq!(running.settings.observe.path_prefixes, ["/x"]);
    assert_eq!(running.settings.export, old.settings.export, "this waits for a restart");
    let again = reload(&running, &flags, &environment).unwrap().changes;
    assert_eq!(
        again.iter().map(|c| (c.path.as_str(), c.needs_restart)).collect::<Vec<_>>(),
        [("otlp.headers.a", true)]
    );
    std::fs::write(&path, "otlp: {headers: {a: one}}\n").unwrap();
    let back = running.adopting(&reload(&running, &flags, &environment).unwrap().config);
    let read = Config::load(&flags, &environment).unwrap();
    assert_eq!((back.raw(), &back.settings), (read.raw(), &read.settings));

    // Files that are opened only at startup may be missing during a reload.
    std::fs::write(&path, "access_log: {enabled: true, path: /none/a.log}\nlog: {level: debug}\n").unwrap();
    assert!(reload(&old, &flags, &environment).unwrap().changes.iter().any(|c| c.path == "log.level"));

    std::fs::write(&path, "log: {level: loud}\n").unwrap();
    let error = reload(&old, &flags, &environment).unwrap_err().to_string();
    assert!(error.contains("log.level"), "{error}");
}
