//! Detected resource attributes, which identify this process.
//!
//! Names: OpenTelemetry semantic conventions 1.44, "service", "host", "k8s"; `service.instance.id` by its "Specify
//! resource attributes using Kubernetes annotations": `<namespace>.<pod>.<container>`.

use std::collections::BTreeMap;

use crate::config::environment::Environment;

/// Attributes and the variables that may contain them; the first one set is used. Set them with the downward API.
pub(crate) const FROM_ENVIRONMENT: [(&str, &[&str]); 12] = [
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
    ("host.name", &["HOSTNAME"]),
];

/// The attributes found in the environment, overridden by `set` (file and `OTEL_RESOURCE_ATTRIBUTES`). `admin`
/// distinguishes two instances on one host.
pub(crate) fn attributes(
    environment: &Environment,
    set: &BTreeMap<String, String>,
    admin: &str,
) -> Vec<(String, String)> {
    let mut all: BTreeMap<String, String> = FROM_ENVIRONMENT
        .iter()
        .filter_map(|(attribute, names)| {
            let value = names.iter().find_map(|name| environment.get(name))?;
            Some(((*attribute).to_owned(), value.to_owned()))
        })
        .collect();
    all.extend(set.iter().map(|(name, value)| (name.clone(), value.clone())));
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
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], set: &[(&str, &str)]) -> BTreeMap<String, String> {
        let environment = variables.iter().copied().collect();
        let set = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        attributes(&environment, &set, "0.0.0.0:9464").into_iter().collect()
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
