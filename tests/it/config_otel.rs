//! The standard `OTEL_*` variables: what each sets, and that none of them can prevent a start.

use std::time::Duration;

use tokometer::config::{Config, Environment, Flags};
use tokometer_telemetry::export::{Endpoint, Protocol, Sampler, Semconv, Settings, Temporality};

fn config(variables: &[(&str, &str)]) -> Config {
    let environment: Environment = variables.iter().copied().collect();
    Config::from_layers(None, &Flags::default(), &environment).expect("no OTEL variable prevents a start")
}

/// The exporters' settings; asserts that the variables give no warning.
fn export(variables: &[(&str, &str)]) -> Settings {
    let config = config(variables);
    assert_eq!(config.warnings, [], "{variables:?}");
    config.settings.export
}

fn metrics(variables: &[(&str, &str)]) -> Option<Endpoint> {
    export(variables).metrics.endpoint
}

fn traces(variables: &[(&str, &str)]) -> Option<Endpoint> {
    export(variables).traces.endpoint
}

const BASE: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");

#[test]
fn otlp_is_off_without_endpoint_or_exporter() {
    assert_eq!((metrics(&[]), traces(&[])), (None, None));
    assert_eq!(traces(&[("OTEL_TRACES_EXPORTER", "otlp")]).unwrap().url, "http://localhost:4318/v1/traces");
    let grpc = [("OTEL_METRICS_EXPORTER", "otlp,prometheus"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    assert_eq!(metrics(&grpc).unwrap().url, "http://localhost:4317");
    for off in [("OTEL_TRACES_EXPORTER", "none"), ("OTEL_SDK_DISABLED", "true"), ("OTEL_SDK_DISABLED", "TRUE")] {
        assert_eq!(traces(&[BASE, off]), None, "{off:?}");
    }
    assert_eq!(metrics(&[BASE, ("OTEL_METRICS_EXPORTER", "prometheus")]), None);
    assert_eq!(metrics(&[BASE, ("OTEL_SDK_DISABLED", "true"), ("OTEL_METRICS_EXPORTER", "otlp")]), None);
    assert!(metrics(&[BASE, ("OTEL_SDK_DISABLED", "1")]).is_some(), "only `true` disables");
}

#[test]
fn only_generic_endpoints_get_the_signal_path() {
    assert_eq!(metrics(&[BASE]).unwrap().url, "http://c:4318/v1/metrics");
    let own = [BASE, ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://m/x")];
    assert_eq!(metrics(&own).unwrap().url, "https://m/x");
    assert_eq!(traces(&own).unwrap().url, "http://c:4318/v1/traces");
    // `dTpw` is the output of `printf 'u:p' | base64`.
    let user = metrics(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:p@c:4318")]).unwrap();
    assert_eq!((user.url.as_str(), user.headers[0].1.as_str()), ("http://c:4318/v1/metrics", "Basic dTpw"));
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20x");
    let own = metrics(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:p@c:4318"), headers]).unwrap();
    assert_eq!(own.headers, [("Authorization".to_owned(), "Bearer x".to_owned())]);
    let grpc = |insecure| {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_INSECURE", insecure),
        ];
        metrics(&variables).unwrap()
    };
    assert_eq!(grpc("true").url, "http://c:4317");
    assert_eq!(grpc("false").url, "https://c:4317");
    assert_eq!(grpc("true").protocol, Protocol::Grpc);
}

#[test]
fn exporter_settings_exist_shared_and_per_signal() {
    let generic = [
        BASE,
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1,b=two%20words"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "5000"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/cert"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
    ];
    let expected = Endpoint {
        url: "http://c:4318/v1/metrics".to_owned(),
        protocol: Protocol::HttpProtobuf,
        headers: vec![("a".to_owned(), "1".to_owned()), ("b".to_owned(), "two words".to_owned())],
        gzip: true,
        timeout: Duration::from_secs(5),
        ca: Some("/ca".into()),
        identity: Some(("/cert".into(), "/key".into())),
    };
    assert_eq!(metrics(&generic), Some(expected.clone()));
    assert_eq!(traces(&generic), Some(Endpoint { url: "http://c:4318/v1/traces".to_owned(), ..expected.clone() }));

    let own = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "t:1"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "c=3"),
        ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "7"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "true"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/tca"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "/tcert"),
        ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/tkey"),
    ];
    let all: Vec<_> = generic.iter().chain(&own).copied().collect();
    let own_expected = Endpoint {
        url: "http://t:1".to_owned(),
        protocol: Protocol::Grpc,
        headers: vec![("c".to_owned(), "3".to_owned())],
        gzip: false,
        timeout: Duration::from_millis(7),
        ca: Some("/tca".into()),
        identity: Some(("/tcert".into(), "/tkey".into())),
    };
    assert_eq!(traces(&all), Some(own_expected));
    assert_eq!(metrics(&all), Some(expected), "the other signal is unchanged");
    let swapped: Vec<(String, &str)> = own.iter().map(|(name, v)| (name.replace("TRACES", "METRICS"), *v)).collect();
    let swapped: Vec<(&str, &str)> = swapped.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(metrics(&swapped).unwrap().timeout, Duration::from_millis(7));
}

#[test]
fn metrics_variables_set_interval_temporality_and_histograms() {
    let settings = export(&[
        ("OTEL_METRIC_EXPORT_INTERVAL", "15000"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "LowMemory"),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "always_off"),
        ("OTEL_SEMCONV_STABILITY_OPT_IN", "http,gen_ai_latest_experimental"),
    ]);
    assert_eq!(settings.metrics.interval, Duration::from_secs(15));
    assert_eq!(settings.metrics.temporality, Temporality::LowMemory);
    assert!(settings.metrics.exponential && !settings.prometheus.exemplars);
    assert_eq!(settings.semconv, Semconv::Latest);
    assert_eq!(export(&[("OTEL_SEMCONV_STABILITY_OPT_IN", "http")]).semconv, Semconv::V1_41);
}

#[test]
fn trace_variables_set_sampler_and_batches() {
    let settings = export(&[
        ("OTEL_BSP_SCHEDULE_DELAY", "1000"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "50"),
    ])
    .traces;
    assert_eq!(settings.schedule_delay, Duration::from_secs(1));
    assert_eq!((settings.queue_size, settings.batch_size), (100, 50));
    let table = [
        ("always_on", Sampler::AlwaysOn, false),
        ("always_off", Sampler::AlwaysOff, false),
        ("traceidratio", Sampler::Ratio(1.0), false),
        ("parentbased_always_on", Sampler::AlwaysOn, true),
        ("parentbased_always_off", Sampler::AlwaysOff, true),
        ("parentbased_traceidratio", Sampler::Ratio(1.0), true),
    ];
    for (name, sampler, parent_based) in table {
        let settings = export(&[("OTEL_TRACES_SAMPLER", name)]).traces;
        assert_eq!((settings.sampler, settings.parent_based), (sampler, parent_based), "{name}");
    }
    let settings = export(&[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.25")]).traces;
    assert_eq!(settings.sampler, Sampler::Ratio(0.25));
}

#[test]
fn variables_set_resource_attributes() {
    let all = export(&[
        ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,deployment.environment.name=prod,k8s.pod.name=given"),
        ("OTEL_SERVICE_NAME", "b"),
        ("POD_NAME", "found"),
        ("POD_NAMESPACE", "ns"),
        ("LLM_D_ROLE", "decode"),
    ])
    .resource;
    let of = |name: &str| all.get(name).map(String::as_str);
    assert_eq!(of("service.name"), Some("b"), "OTEL_SERVICE_NAME overrides the attribute");
    assert_eq!(of("deployment.environment.name"), Some("prod"));
    assert_eq!(of("k8s.pod.name"), Some("given"));
    assert_eq!(of("service.instance.id"), Some("ns.given"));
    assert_eq!(of("k8s.pod.label.llm-d.ai/role"), Some("decode"));
}

#[test]
fn prometheus_variables_set_the_admin_address() {
    let address = |variables: &[(&str, &str)]| config(variables).settings.admin.listen.to_string();
    let host = "OTEL_EXPORTER_PROMETHEUS_HOST";
    let port = "OTEL_EXPORTER_PROMETHEUS_PORT";
    assert_eq!(address(&[(host, "localhost")]), "127.0.0.1:9464");
    assert_eq!(address(&[(port, "9090")]), "0.0.0.0:9090");
    assert_eq!(address(&[(host, "::1"), (port, "9090")]), "[::1]:9090");
    assert_eq!(address(&[(port, "9090"), ("TOKOMETER_ADMIN_LISTEN", ":1")]), "[::]:1");
    for (set, expected, blamed) in [
        ([(host, "127.0.0.1"), (port, "x")], "127.0.0.1:9464", port),
        ([(host, "not an address"), (port, "9090")], "0.0.0.0:9090", host),
    ] {
        assert_eq!(address(&set), expected);
        let warnings = config(&set).warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].to_string().contains(&format!("{blamed}: admin.listen")), "{warnings:?}");
    }
}

#[test]
fn log_level_variable_sets_the_level() {
    let level = |word| config(&[("OTEL_LOG_LEVEL", word)]).settings.log.levels;
    assert_eq!(level("debug"), "debug".parse().unwrap());
    assert_eq!(level("none"), "off".parse().unwrap());
    assert_eq!(level("WARNING"), "warn".parse().unwrap());
}

#[test]
fn invalid_value_is_a_warning_and_changes_nothing() {
    let table = [
        ("OTEL_TRACES_EXPORTER", "console", "write one of otlp, none"),
        ("OTEL_METRICS_EXPORTER", "statsd", "write one of otlp, none, prometheus"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "`http/protobuf`, `grpc`"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "`none`, `gzip`"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "write an integer such as 10000"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "nothing", "entry 1 has no `=`"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c", "letters, digits and dashes"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a=1,=2", "entry 2 has no name"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0", "out of range"),
        ("OTEL_METRIC_EXPORT_TIMEOUT", "1", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "1", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"),
        ("OTEL_CONFIG_FILE", "/x", "TOKOMETER_CONFIG"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "`traceidratio`"),
        ("OTEL_TRACES_SAMPLER_ARG", "2", "out of range"),
        ("OTEL_PROPAGATORS", "b3", "only W3C trace context"),
        ("OTEL_LOG_LEVEL", "loud", "unknown level"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", "some", "always_off"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "x", "invalid port"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4318", "write http://host:4318"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key", "client_certificate` too"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "9999", "at most OTEL_BSP_MAX_QUEUE_SIZE"),
    ];
    let nothing = config(&[]);
    for (name, value, part) in table {
        let config = config(&[(name, value)]);
        let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), 1, "{name}: {warnings:?}");
        assert!(warnings[0].contains(name) && warnings[0].contains(part), "{name}: {warnings:?}");
        assert_eq!(config.settings, nothing.settings, "{name}");
    }
    assert_eq!(config(&[("OTEL_PROPAGATORS", "tracecontext,baggage")]).warnings, []);
    let warnings = config(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317")]).warnings;
    assert!(warnings[0].message.contains("port 4317 is usually gRPC"), "{warnings:?}");
}
