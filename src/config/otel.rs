//! The standard `OTEL_*` variables and the keys that they set, and the detected resource attributes.
//!
//! These variables are often set for every program in a cluster. An invalid value is only a warning (the
//! specification's rule for unknown values): a sidecar must not stop a pod because of a setting for other programs.
//!
//! Source: OpenTelemetry specification 1.60, "Environment variable specification", "OTLP exporter configuration".

use std::collections::BTreeMap;

use crate::config::conform::conform;
use crate::config::shape::{self, Kind};
use crate::config::sources::{self, Environment};
use crate::config::tree::{Node, Origin, Problem, Value};

/// A variable that is read.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// The key that the variable sets, or a description of its effect.
    pub(crate) sets: String,
    read: Read,
}

/// How a variable's text maps to keys.
#[derive(Clone, Copy, Debug)]
enum Read {
    /// The text is the value of the key.
    Plain,
    /// Parsed by this function; its error is a warning.
    Special(fn(&str) -> Set),
    /// Known, but without effect.
    Unused,
}

/// The keys that a text sets, or why it is invalid.
type Set = Result<Vec<(&'static str, Value)>, String>;

/// Exporter settings with a variable for both signals and one per signal (`OTEL_EXPORTER_OTLP_[TRACES_|METRICS_]...`).
const PER_SIGNAL: [&str; 9] = [
    "endpoint",
    "headers",
    "compression",
    "timeout",
    "protocol",
    "insecure",
    "certificate",
    "client_key",
    "client_certificate",
];

/// Why the span limits have no effect.
const FIXED: &str =
    "no effect: the set of span attributes is fixed, and values from requests are truncated when they are parsed";

/// The other variables: name, key or effect, and how the text is parsed.
const OTHERS: [(&str, &str, Read); 26] = [
    ("OTEL_METRIC_EXPORT_INTERVAL", "otlp.metrics.interval", Read::Plain),
    ("OTEL_TRACES_SAMPLER", "otlp.traces.sampler", Read::Plain),
    ("OTEL_TRACES_SAMPLER_ARG", "otlp.traces.sampler_ratio", Read::Plain),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "otlp.traces.queue_size", Read::Plain),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "otlp.traces.batch_size", Read::Plain),
    ("OTEL_BSP_SCHEDULE_DELAY", "otlp.traces.schedule_delay", Read::Plain),
    ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "otlp.metrics.temporality", Read::Plain),
    ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "otlp.metrics.histograms", Read::Plain),
    ("OTEL_RESOURCE_ATTRIBUTES", "telemetry.resource", Read::Plain),
    ("OTEL_SERVICE_NAME", "`service.name` in `telemetry.resource`", Read::Special(service_name)),
    ("OTEL_LOG_LEVEL", "log.level", Read::Special(log_level)),
    (
        "OTEL_SEMCONV_STABILITY_OPT_IN",
        "`telemetry.semconv`: `gen_ai_latest_experimental` selects `latest`",
        Read::Special(semconv),
    ),
    ("OTEL_METRICS_EXEMPLAR_FILTER", "prometheus.exemplars", Read::Special(exemplars)),
    (
        "OTEL_PROPAGATORS",
        "no effect: only `tracecontext` is supported, and it stays enabled",
        Read::Special(propagators),
    ),
    (
        "OTEL_TRACES_EXPORTER",
        "`otlp.traces.enabled`: `otlp` sets `true`, `none` sets `false`",
        Read::Special(|text| exporter(text, "otlp.traces.enabled", &["otlp", "none"])),
    ),
    (
        "OTEL_METRICS_EXPORTER",
        "`otlp.metrics.enabled`: a list that contains `otlp` sets `true`; `none`, or `prometheus` alone, sets `false`",
        Read::Special(|text| exporter(text, "otlp.metrics.enabled", &["otlp", "none", "prometheus"])),
    ),
    (
        "OTEL_SDK_DISABLED",
        "`true` sets `otlp.metrics.enabled` and `otlp.traces.enabled` to `false`; the Prometheus endpoint stays enabled",
        Read::Special(sdk_disabled),
    ),
    ("OTEL_METRIC_EXPORT_TIMEOUT", "no effect: use `OTEL_EXPORTER_OTLP_METRICS_TIMEOUT` instead", Read::Unused),
    ("OTEL_BSP_EXPORT_TIMEOUT", "no effect: use `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` instead", Read::Unused),
    ("OTEL_ATTRIBUTE_COUNT_LIMIT", FIXED, Read::Unused),
    ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", FIXED, Read::Unused),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", FIXED, Read::Unused),
    ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", FIXED, Read::Unused),
    ("OTEL_SPAN_EVENT_COUNT_LIMIT", FIXED, Read::Unused),
    ("OTEL_SPAN_LINK_COUNT_LIMIT", FIXED, Read::Unused),
    (
        "OTEL_CONFIG_FILE",
        "no effect: tokometer has its own configuration file, set by `--config` or `TOKOMETER_CONFIG`",
        Read::Unused,
    ),
];

/// All known variables, in the order in which they apply: later ones override earlier ones.
pub(crate) fn variables() -> Vec<Variable> {
    let per_signal = PER_SIGNAL.iter().flat_map(|key| {
        ["", "traces.", "metrics."].map(|signal| {
            let sets = format!("otlp.{signal}{key}");
            Variable { name: shape::exporter_variable(&sets), sets, read: Read::Plain }
        })
    });
    let others = OTHERS.map(|(name, sets, read)| Variable { name: name.to_owned(), sets: sets.to_owned(), read });
    per_signal.chain(others).collect()
}

/// The layer set by the `OTEL_*` variables; invalid ones become warnings.
pub(crate) fn layer(environment: &Environment, warnings: &mut Vec<Problem>) -> Node {
    let mut layer = Node::empty();
    for variable in variables() {
        let Some(text) = environment.get(&variable.name) else { continue };
        let origin = Origin::Environment(variable.name.clone());
        let mut warn = |message: String| {
            warnings.push(Problem { origin: origin.clone(), path: String::new(), message });
        };
        let set = match variable.read {
            Read::Plain => plain(&variable.sets, text, &origin).map(|value| vec![(variable.sets.as_str(), value)]),
            Read::Special(read) => read(text),
            Read::Unused => {
                warn(variable.sets.replace("no effect", "has no effect"));
                continue;
            }
        };
        let set = set.unwrap_or_else(|message| {
            warn(format!("{message}; this variable is ignored"));
            Vec::new()
        });
        for (path, value) in set {
            let node = Node::at(path, value, &origin);
            let mut problems = Vec::new();
            conform(&node, &mut problems);
            match problems.first() {
                Some(problem) => warn(format!("{}: {}; this variable is ignored", problem.path, problem.message)),
                None => layer.overlay(node),
            }
        }
    }
    layer
}

/// `admin.listen` with host and port replaced by `OTEL_EXPORTER_PROMETHEUS_HOST` and `_PORT`.
pub(crate) fn prometheus_address(environment: &Environment, current: &str) -> Option<(String, Origin)> {
    const HOST: &str = "OTEL_EXPORTER_PROMETHEUS_HOST";
    const PORT: &str = "OTEL_EXPORTER_PROMETHEUS_PORT";
    let (host, port) = (environment.get(HOST), environment.get(PORT));
    // The variable that is reported for an invalid address: HOST, unless the port is invalid or only PORT is set.
    let bad_port = port.is_some_and(|port| port.parse::<u16>().is_err());
    let name = host.map(|_| HOST).filter(|_| !bad_port).or(port.map(|_| PORT))?;
    let (own_host, own_port) = current.rsplit_once(':').unwrap_or((current, "9464"));
    let host = match host {
        Some(host) if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        Some(host) => host.to_owned(),
        None => own_host.to_owned(),
    };
    Some((format!("{host}:{}", port.unwrap_or(own_port)), Origin::Environment(name.to_owned())))
}

fn plain(path: &str, text: &str, origin: &Origin) -> Result<Value, String> {
    let shape = shape::root().find(path).ok_or_else(|| format!("unknown key {path}"))?;
    match &shape.kind {
        Kind::Names(_) => sources::names(text, origin),
        // The specification makes booleans case-insensitive; for enum values, this is a convention.
        Kind::Words(_) => Ok(Value::Text(text.to_ascii_lowercase())),
        Kind::Bool => Ok(Value::Bool(text.eq_ignore_ascii_case("true"))),
        Kind::Duration => match text.parse::<u64>() {
            Ok(millis) => Ok(Value::Text(format!("{millis}ms"))),
            Err(_) => Err(format!("`{text}` is not a number of milliseconds; write an integer such as 10000")),
        },
        _ => Ok(sources::value(text, shape, origin)),
    }
}

fn service_name(text: &str) -> Set {
    let origin = Origin::Environment("OTEL_SERVICE_NAME".to_owned());
    Ok(vec![("telemetry.resource", Value::names([("service.name".to_owned(), text.to_owned())], &origin))])
}

fn log_level(text: &str) -> Set {
    let level = match text.to_ascii_lowercase().as_str() {
        "none" | "off" => "off",
        "fatal" | "error" => "error",
        "warn" | "warning" => "warn",
        "info" => "info",
        "debug" => "debug",
        "trace" | "verbose" | "all" => "trace",
        _ => return Err(format!("unknown level `{text}`; write off, error, warn, info, debug or trace")),
    };
    Ok(vec![("log.level", Value::Text(level.to_owned()))])
}

fn semconv(text: &str) -> Set {
    let latest = text.split(',').any(|word| word.trim() == "gen_ai_latest_experimental");
    Ok(if latest { vec![("telemetry.semconv", Value::Text("latest".to_owned()))] } else { Vec::new() })
}

fn exemplars(text: &str) -> Set {
    match text.to_ascii_lowercase().as_str() {
        "always_off" => Ok(vec![("prometheus.exemplars", Value::Bool(false))]),
        "trace_based" | "always_on" => Ok(vec![("prometheus.exemplars", Value::Bool(true))]),
        _ => Err(format!("unknown value `{text}`; write trace_based, always_on or always_off")),
    }
}

fn propagators(text: &str) -> Set {
    if text.split(',').any(|word| word.trim().eq_ignore_ascii_case("tracecontext")) {
        return Ok(Vec::new());
    }
    Err(format!("`{text}`: only W3C trace context (`traceparent`) is supported, and it stays enabled"))
}

fn exporter(text: &str, path: &'static str, known: &[&str]) -> Set {
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_ascii_lowercase()).collect();
    match words.iter().find(|word| !known.contains(&word.as_str())) {
        Some(word) => Err(format!("unknown exporter `{word}`; write one of {}", known.join(", "))),
        None => Ok(vec![(path, Value::Bool(words.iter().any(|word| word == "otlp")))]),
    }
}

fn sdk_disabled(text: &str) -> Set {
    Ok(if text.eq_ignore_ascii_case("true") {
        vec![("otlp.metrics.enabled", Value::Bool(false)), ("otlp.traces.enabled", Value::Bool(false))]
    } else {
        Vec::new()
    })
}

// Names: OpenTelemetry semantic conventions 1.44, "service", "host", "k8s". `service.instance.id` is defined there in
// "Specify resource attributes using Kubernetes annotations": `<namespace>.<pod>.<container>`.

/// Attributes and the variables that may contain them; the first one set is used. Set them with the downward API.
pub(crate) const RESOURCE: [(&str, &[&str]); 13] = [
    ("k8s.cluster.name", &["K8S_CLUSTER_NAME"]),
    ("k8s.node.name", &["K8S_NODE_NAME", "NODE_NAME"]),
    ("k8s.namespace.name", &["K8S_NAMESPACE_NAME", "POD_NAMESPACE"]),
    ("k8s.pod.name", &["K8S_POD_NAME", "POD_NAME"]),
    ("k8s.pod.uid", &["K8S_POD_UID", "POD_UID"]),
    ("k8s.container.name", &["K8S_CONTAINER_NAME", "CONTAINER_NAME"]),
    ("k8s.deployment.name", &["K8S_DEPLOYMENT_NAME"]),
    ("k8s.replicaset.name", &["K8S_REPLICASET_NAME"]),
    ("k8s.statefulset.name", &["K8S_STATEFULSET_NAME"]),
    ("k8s.daemonset.name", &["K8S_DAEMONSET_NAME"]),
    ("k8s.job.name", &["K8S_JOB_NAME"]),
    // The engine's role: prefill, decode or both. By the conventions, label names keep their dots.
    ("k8s.pod.label.llm-d.ai/role", &["LLM_D_ROLE"]),
    ("host.name", &["HOSTNAME"]),
];

/// Attributes that identify this process: those found in the environment, overridden by `set` (file and
/// `OTEL_RESOURCE_ATTRIBUTES`). `admin` distinguishes two instances on one host.
pub(crate) fn resource(
    environment: &Environment,
    set: &BTreeMap<String, String>,
    admin: &str,
    is_tap: bool,
) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = RESOURCE
        .iter()
        .filter_map(|(attribute, names)| {
            let value = names.iter().find_map(|name| environment.get(name))?;
            Some(((*attribute).to_owned(), value.to_owned()))
        })
        .collect();
    all.extend(set.iter().map(|(name, value)| (name.clone(), value.clone())));
    all.insert("tokometer.capture.mode".to_owned(), if is_tap { "tap" } else { "proxy" }.to_owned());
    let of = |name: &str| all.get(name).cloned();
    let instance = match (of("k8s.namespace.name"), of("k8s.pod.name"), of("k8s.container.name")) {
        (Some(namespace), Some(pod), Some(container)) => format!("{namespace}.{pod}.{container}"),
        (Some(namespace), Some(pod), None) => format!("{namespace}.{pod}"),
        _ => format!("{}/{admin}", of("host.name").unwrap_or_else(|| "localhost".to_owned())),
    };
    let namespace = of("k8s.namespace.name");
    let mut default = |name: &str, value: String| {
        all.entry(name.to_owned()).or_insert(value);
    };
    default("service.name", "tokometer".to_owned());
    default("service.version", env!("CARGO_PKG_VERSION").to_owned());
    default("service.instance.id", instance);
    if let Some(namespace) = namespace {
        default("service.namespace", namespace);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_variables_set_existing_keys() {
        for variable in variables().into_iter().filter(|variable| matches!(variable.read, Read::Plain)) {
            assert!(shape::root().find(&variable.sets).is_some(), "{} sets {}", variable.name, variable.sets);
        }
    }

    fn found(variables: &[(&str, &str)], set: &[(&str, &str)]) -> BTreeMap<String, String> {
        let environment = variables.iter().copied().collect();
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        resource(&environment, &set, "0.0.0.0:9464", false).into_iter().collect()
    }

    #[test]
    fn pod_instance_id_has_namespace_pod_and_container() {
        let all = found(
            &[
                ("POD_NAMESPACE", "ml"),
                ("POD_NAME", "vllm-0"),
                ("CONTAINER_NAME", "tokometer"),
                ("NODE_NAME", "n1"),
                ("POD_UID", "u"),
            ],
            &[],
        );
        for (name, value) in [
            ("service.name", "tokometer"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("service.namespace", "ml"),
            ("service.instance.id", "ml.vllm-0.tokometer"),
            ("k8s.namespace.name", "ml"),
            ("k8s.pod.name", "vllm-0"),
            ("k8s.pod.uid", "u"),
            ("k8s.container.name", "tokometer"),
            ("k8s.node.name", "n1"),
        ] {
            assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn instance_id_without_kubernetes_has_host_and_admin_address() {
        assert_eq!(found(&[("HOSTNAME", "gpu7")], &[])["service.instance.id"], "gpu7/0.0.0.0:9464");
        assert_eq!(found(&[], &[])["service.instance.id"], "localhost/0.0.0.0:9464");
        assert!(!found(&[], &[]).contains_key("host.name"), "unknown attributes are absent");
    }

    #[test]
    fn configured_attributes_override_standard_and_common_names() {
        let all = found(&[("POD_NAME", "b"), ("K8S_POD_NAME", "a"), ("POD_NAMESPACE", "x")], &[]);
        assert_eq!(all["k8s.pod.name"], "a");
        let all =
            found(&[("POD_NAME", "b"), ("POD_NAMESPACE", "x")], &[("k8s.pod.name", "c"), ("service.name", "vllm")]);
        assert_eq!(all["service.instance.id"], "x.c");
        assert_eq!(all["service.name"], "vllm");
    }
}
