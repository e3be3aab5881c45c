//! The containers that are added to a pod, and the QoS class that they preserve.

use std::sync::LazyLock;

use crate::inject::preflight::all;
use crate::inject::probes::PROGRAM;
use crate::inject::server::Server;
use crate::inject::value::{Value, map};
use crate::inject::wiring::{OWN_PORT, Wiring};
use crate::inject::{Mode, Options};

/// Name of the sidecar container.
pub(super) const NAME: &str = "tokometer";

/// Default port of /metrics, health and drain.
pub const ADMIN_PORT: u16 = 9464;

/// A volume that sidecar and server share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    name: &'static str,
    path: &'static str,
    /// Medium of the `emptyDir`; empty for the node's disk.
    medium: &'static str,
}

/// The volume with the server's Unix socket.
pub(super) const SOCKET: Shared = Shared { name: "tokometer-socket", path: "/run/tokometer", medium: "" };

/// The volume with the sidecar's program, for exec probes of the server. In memory, because the cluster autoscaler does
/// not remove nodes on which a pod has an `emptyDir` on disk.
pub(super) const PROBE: Shared = Shared { name: "tokometer-probe", path: "/run/tokometer-probe", medium: "Memory" };

impl Shared {
    /// The volume of the pod.
    pub(super) fn definition(&self) -> Value {
        let medium = [("medium".to_owned(), self.medium.into())].into_iter().filter(|_| !self.medium.is_empty());
        map([("name", self.name.into()), ("emptyDir", Value::Map(medium.collect()))])
    }

    /// The mount in a container.
    pub(super) fn mount(&self, read_only: bool) -> Value {
        let mut mount = map([("name", self.name.into()), ("mountPath", self.path.into())]);
        if read_only {
            mount.set("readOnly", true.into());
        }
        mount
    }
}

/// Mount path of the volume with the engine's certificate.
const CERTIFICATE: &str = "/etc/tokometer-tls";

/// The constant parts of the containers. The chart uses the same file.
static CONTAINERS: LazyLock<Value> =
    LazyLock::new(|| yaml(include_str!("../../../../charts/tokometer/files/sidecar.yaml")));

/// The chart's values, whose defaults `inject` uses too.
static VALUES: LazyLock<Value> = LazyLock::new(|| yaml(include_str!("../../../../charts/tokometer/values.yaml")));

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).expect("a committed file, which the unit tests read")
}

/// A default setting of the sidecar.
fn default(name: &str) -> Value {
    VALUES.at(&["sidecar", name]).cloned().unwrap_or(Value::Null)
}

/// The constant parts of a container.
fn constant(name: &str) -> Value {
    CONTAINERS.get(name).cloned().unwrap_or(Value::Null)
}

/// The parts that differ between sidecars.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sidecar<'a> {
    pub(super) options: &'a Options,
    pub(super) wiring: &'a Wiring,
    pub(super) server: Option<&'a Server<'a>>,
    /// Whether the pod has the QoS class Guaranteed, which the sidecar must not change.
    pub(super) guaranteed: bool,
    /// Whether every container of the pod has a CPU limit. The sidecar then gets one too, because a quota may require
    /// it.
    pub(super) limited: bool,
    /// Whether the pod itself has resources, which all of its containers share.
    pub(super) shared: bool,
    /// Name of the pod's volume with the engine's certificate, if the sidecar terminates TLS.
    pub(super) certificate: Option<&'a str>,
    /// Whether exec probes of the server run the sidecar's program.
    pub(super) probe_file: bool,
}

impl Sidecar<'_> {
    /// The container: a native sidecar (an init container with `restartPolicy: Always`; Kubernetes 1.29).
    pub(super) fn container(&self) -> Value {
        let mut container = constant("container");
        container.set("image", self.options.image.as_str().into());
        container.set("args", self.arguments().into());
        container.set("ports", self.ports().into());
        if let Some(Value::List(variables)) = container.get_mut("env") {
            let is_set = |name: &str| self.options.variables.iter().any(|(other, _)| name == other);
            variables.retain(|variable| !variable.text("name").is_some_and(is_set));
            let variable = |(name, value): &(String, String)| {
                map([("name", name.as_str().into()), ("value", value.as_str().into())])
            };
            variables.extend(self.options.variables.iter().map(variable));
        }
        let taps = self.taps();
        if taps {
            // The server starts only after the startup probe succeeds, and a failed capture must not delay the server.
            container.remove("startupProbe");
            container.remove("lifecycle");
        }
        for probe in ["startupProbe", "livenessProbe"] {
            if let Some(probe_of) = container.get_mut(probe) {
                self.fill(probe_of, default(probe));
            }
        }
        if !taps {
            container.set("lifecycle", map([("preStop", map([("exec", map([("command", self.drain().into())]))]))]));
        }
        match self.resources() {
            Some(resources) => container.set("resources", resources),
            None => container.remove("resources"),
        }
        let user = self.wiring.user.map_or_else(|| default("runAsUser"), Value::from);
        if let Some(context) = container.get_mut("securityContext") {
            context.set("runAsNonRoot", (user.integer() != Some(0)).into());
            context.set("runAsUser", user);
            if taps {
                let capabilities = map([("drop", vec!["ALL"].into()), ("add", vec!["NET_RAW"].into())]);
                context.set("capabilities", capabilities);
            }
        }
        let certificate = self
            .certificate
            .map(|volume| map([("name", volume.into()), ("mountPath", CERTIFICATE.into()), ("readOnly", true.into())]));
        let socket = self.wiring.socket.then(|| SOCKET.mount(false));
        let probe = self.probe_file.then(|| PROBE.mount(false));
        let mounts: Vec<Value> = socket.into_iter().chain(certificate).chain(probe).collect();
        if !mounts.is_empty() {
            container.set("volumeMounts", mounts.into());
        }
        container
    }

    /// True if the container reads packets instead of forwarding connections.
    fn taps(&self) -> bool {
        !self.wiring.tapped.is_empty()
    }

    /// The preStop command. It runs concurrently with the server's own hook, which waits for the drain.
    fn drain(&self) -> Vec<String> {
        let mut command = vec!["/tokometer".to_owned(), "drain".to_owned()];
        if self.options.admin_port != ADMIN_PORT {
            command.push(format!("--admin=http://127.0.0.1:{}", self.options.admin_port));
        }
        command
    }

    fn arguments(&self) -> Vec<String> {
        let admin = format!("--admin=:{}", self.options.admin_port);
        let engine = self
            .server
            .and_then(|server| server.engine)
            .map(|engine| format!("--set=observe.engine={}", engine.as_str()));
        if self.taps() {
            let ports = self.wiring.tapped.iter().map(|port| format!("--port={port}"));
            return ["tap".to_owned()].into_iter().chain(ports).chain([admin]).chain(engine).collect();
        }
        let mut arguments = vec!["run".to_owned()];
        match self.wiring.listeners.as_slice() {
            [(listen, upstream)] => {
                arguments.extend([format!("--listen={listen}"), format!("--upstream={upstream}")]);
            }
            several => {
                arguments.extend(several.iter().map(|(listen, upstream)| format!("--listener={listen}={upstream}")))
            }
        }
        arguments.extend([
            // Without a host, tokometer binds both address families, because a probe may use either address of the pod.
            admin,
            // Without a CPU limit, the default is one thread per core of the node, which may be hundreds.
            format!("--set=process.threads={}", default("threads").integer().unwrap_or(1)),
            format!("--set=process.grace_period={}s", self.options.drain.as_secs()),
        ]);
        arguments.extend(self.wiring.port_sharing.then(|| "--set=relay.port_sharing=true".to_owned()));
        if self.certificate.is_some() {
            // The connection to the engine does not leave the pod, so its certificate needs no check.
            let keys =
                [("tls.certificate", format!("{CERTIFICATE}/tls.crt")), ("tls.key", format!("{CERTIFICATE}/tls.key"))];
            let upstream = ["upstream_tls.enabled", "upstream_tls.insecure"].map(|key| (key, "true".to_owned()));
            arguments.extend(
                keys.into_iter().chain(upstream).map(|(key, value)| format!("--set=listeners[].{key}={value}")),
            );
        }
        arguments.extend(engine);
        arguments.extend(self.probe_file.then(|| format!("--set=process.probe_file={PROGRAM}")));
        arguments
    }

    fn ports(&self) -> Vec<Value> {
        let port = |name: &str, number: u16| map([("name", name.into()), ("containerPort", number.into())]);
        let own = (self.options.mode == Mode::Explicit).then(|| port("llm-traffic", OWN_PORT));
        [port("llm-metrics", self.options.admin_port)].into_iter().chain(own).collect()
    }

    /// Sets a probe's port, and its intervals and thresholds from `numbers`.
    fn fill(&self, probe: &mut Value, numbers: Value) {
        if let Some(get) = probe.get_mut("httpGet") {
            get.set("port", self.options.admin_port.into());
        }
        if let Value::Map(numbers) = numbers {
            numbers.into_iter().for_each(|(name, number)| probe.set(&name, number));
        }
    }

    fn resources(&self) -> Option<Value> {
        if self.shared {
            // The API server rejects containers whose sum exceeds the pod's resources.
            return None;
        }
        if self.guaranteed {
            let amounts = default("guaranteedResources");
            return Some(map([("requests", amounts.clone()), ("limits", amounts)]));
        }
        let mut resources = default("resources");
        if self.limited
            && let Some(limits) = resources.get_mut("limits")
        {
            limits.set("cpu", default("guaranteedResources").get("cpu").cloned().unwrap_or(Value::Null));
        }
        self.server.into_iter().for_each(|server| keep_ratio(&mut resources, server.container));
        Some(resources)
    }
}

/// Raises the requests so that no limit is a larger multiple of its request than in the server's container: a LimitRange
/// may have a maximum (`maxLimitRequestRatio`).
fn keep_ratio(resources: &mut Value, server: &Value) {
    for (name, unit, suffix) in [("cpu", 1e-3, "m"), ("memory", 1_048_576.0, "Mi")] {
        let of = |place: &Value, kind| place.at(&[kind, name]).and_then(quantity);
        // A missing request defaults to the limit.
        let other = server
            .get("resources")
            .and_then(|set| of(set, "limits").map(|limit| limit / of(set, "requests").unwrap_or(limit)));
        let (Some(limit), Some(request), Some(ratio)) = (of(resources, "limits"), of(resources, "requests"), other)
        else {
            continue;
        };
        if ratio >= 1.0 && limit / request > ratio {
            let raised = (limit / ratio / unit).ceil() as u64;
            if let Some(requests) = resources.get_mut("requests") {
                requests.set(name, format!("{raised}{suffix}").into());
            }
        }
    }
}

/// The init container that redirects connections for the server's port to the sidecar.
pub(super) fn redirect(image: &str, port: u16, limited: bool, shared: bool) -> Value {
    let mut container = constant("redirect");
    container.set("image", image.into());
    let words = container.texts("command").join("\n");
    let command = words.replacen("%d", &port.to_string(), 1).replacen("%d", &OWN_PORT.to_string(), 1);
    container.set("command", command.lines().collect::<Vec<_>>().into());
    if shared {
        container.remove("resources");
    }
    if limited && let Some(resources) = container.get_mut("resources") {
        let amounts = resources.get("requests").cloned().unwrap_or(Value::Null);
        resources.set("limits", amounts);
    }
    container
}

/// True when every container has CPU and memory limits, and requests equal to them. If the pod itself has resources,
/// they alone determine the class.
///
/// Source: kubernetes.io, "Pod Quality of Service Classes".
pub(super) fn is_guaranteed(spec: &Value) -> bool {
    !has_own_resources(spec) && !spec.list("containers").is_empty() && all(spec).all(has_equal_limits)
}

/// True when every container has a CPU limit, and the pod itself has no resources.
pub(super) fn is_limited(spec: &Value) -> bool {
    !has_own_resources(spec) && all(spec).all(|container| container.at(&["resources", "limits", "cpu"]).is_some())
}

pub(super) fn has_own_resources(spec: &Value) -> bool {
    spec.at(&["resources", "limits"]).or(spec.at(&["resources", "requests"])).is_some()
}

fn has_equal_limits(container: &Value) -> bool {
    ["cpu", "memory"].into_iter().all(|resource| {
        let limit = container.at(&["resources", "limits", resource]).and_then(quantity);
        // A missing request defaults to the limit.
        let request = container.at(&["resources", "requests", resource]);
        limit.is_some_and(|limit| limit > 0.0 && request.is_none_or(|request| quantity(request) == Some(limit)))
    })
}

/// Parses a Kubernetes quantity: `100m`, `2`, `1.5Gi`, `1e3`.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Number(number) => return number.as_f64(),
        Value::Text(text) => text.trim(),
        _ => return None,
    };
    const UNITS: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let (number, unit) =
        UNITS.iter().find_map(|(unit, by)| Some((text.strip_suffix(unit)?, *by))).unwrap_or((text, 1.0));
    number.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sidecar(guaranteed: bool) -> Value {
        let options = Options { mode: Mode::Explicit, ..Options::new("i") };
        let listeners = vec![(":1".to_owned(), ":2".to_owned())];
        let wiring = Wiring { listeners, socket: true, ..Wiring::default() };
        Sidecar {
            options: &options,
            wiring: &wiring,
            server: None,
            guaranteed,
            limited: !guaranteed,
            shared: false,
            certificate: Some("certs"),
            probe_file: true,
        }
        .container()
    }

    #[test]
    fn containers_have_no_unset_part() {
        for container in [sidecar(false), sidecar(true), redirect("i", 1, false, false), redirect("i", 1, true, false)]
        {
            let text = serde_json::to_string(&container).unwrap();
            assert!(!text.contains("null") && !text.contains('%'), "{text}");
        }
    }

    #[test]
    fn constants_equal_the_values_of_the_chart() {
        assert_eq!(constant("container").text("name"), Some(NAME));
        assert_eq!(default("adminPort"), ADMIN_PORT.into());
        assert_eq!(default("listenPort"), OWN_PORT.into());
    }

    #[test]
    fn kubernetes_quantities_are_parsed() {
        for (text, expected) in [
            ("2", Some(2.0)),
            ("2000m", Some(2.0)),
            ("1Gi", Some(1_073_741_824.0)),
            ("1024Mi", Some(1_073_741_824.0)),
            ("1.5k", Some(1500.0)),
            ("1e3", Some(1000.0)),
            ("", None),
            ("lots", None),
        ] {
            assert_eq!(quantity(&Value::from(text)), expected, "{text}");
        }
    }
}
