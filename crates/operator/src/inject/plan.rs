//! Plans the changes to a pod or pod template, as a patch with reasons.

use crate::inject::container::Sidecar;
use crate::inject::patch::{Operation, add, appended, entry, is_list, replace};
use crate::inject::preflight::{self, all};
use crate::inject::server::Server;
use crate::inject::value::{Value, map};
use crate::inject::wiring::{mode, wire};
use crate::inject::{Options, container, probes, server};

/// Default termination grace period of Kubernetes.
const GRACE_SECS: i64 = 30;

/// Time for pod termination after the drain: for the engine's shutdown and the last telemetry.
const AFTER_DRAIN_SECS: u64 = 30;

/// First unprivileged port (ip_unprivileged_port_start, ip-sysctl).
const FIRST_FREE_PORT: u16 = 1024;

/// The changes to a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// The changes.
    pub(super) patch: Vec<Operation>,
    /// The decisions and their reasons, one sentence each.
    pub(super) notes: Vec<String>,
    /// Problems that do not prevent the injection.
    pub(super) warnings: Vec<String>,
}

/// Plans the changes for a pod or a pod template: any object with a pod's `spec` and without an injected sidecar.
///
/// # Errors
/// Why the sidecar cannot be added, and how to fix it.
pub(super) fn plan(pod: &Value, options: &Options) -> Result<Plan, String> {
    let spec = pod.get("spec").ok_or("it has no spec")?;
    if all(spec).any(|other| other.text("name") == Some(container::NAME)) {
        let name = container::NAME;
        return Err(format!("it already has a container called {name}, which was not injected by this command"));
    }
    if let Some(why) = preflight::of_pod(spec, options) {
        return Err(why);
    }
    let mut notes = Vec::new();
    let server = server::find(spec, options, &mut notes)?;
    if let Some(why) = preflight::of_server(spec, &server, mode(options), options) {
        return Err(why);
    }
    let wiring = wire(spec, &server, options, &mut notes)?;
    let upstreams = wiring.listeners.iter().filter_map(|(_, upstream)| upstream.rsplit_once(':')?.1.parse().ok());
    let traffic: Vec<u16> = server.ports().chain([wiring.port]).chain(upstreams).collect();
    if traffic.contains(&options.admin_port) {
        let (port, free) = (options.admin_port, preflight::free_port(spec, options.admin_port, &traffic));
        return Err(format!(
            "port {port} of /metrics is already used for the server's traffic; set another one, such as --admin-port {free}"
        ));
    }
    let at = format!("/spec/containers/{}", server.number);
    let mut patch = Vec::new();
    if let Some(setting) = &wiring.setting {
        let changes = server::set(&server, &at, setting)?;
        if changes.is_empty() {
            notes.push("the server already listens there, so no setting is added".to_owned());
        }
        patch.extend(changes);
    }
    let direct = probes::direct(&server, &at, mode(options), &mut notes);
    let probe_file = !direct.is_empty();
    patch.extend(direct);
    let volumes = [(wiring.socket, &container::SOCKET, false), (probe_file, &container::PROBE, true)];
    let volumes = volumes.into_iter().filter(|(is_needed, ..)| *is_needed);
    let mounts = volumes.clone().map(|(_, volume, read_only)| volume.mount(read_only));
    patch.extend(appended(server.container, &at, "volumeMounts", mounts));
    patch.extend(appended(spec, "/spec", "volumes", volumes.map(|(_, volume, _)| volume.definition())));
    // A tap does not forward traffic, so pod termination is not changed.
    if wiring.tapped.is_empty() {
        patch.extend(hook(&server, &at, options, &mut notes));
        patch.extend(grace(spec, options, &mut notes));
        patch.extend(wiring.moved.into_iter().flat_map(|port| probes::moved(&server, &at, port, &mut notes)));
        patch.extend(low_port(spec, wiring.port, &mut notes));
    }

    let guaranteed = container::is_guaranteed(spec);
    let shared = container::has_own_resources(spec);
    if shared {
        notes.push(
            "the pod itself has resources, which the sidecar shares: it has no requests and limits of its own"
                .to_owned(),
        );
    }
    if guaranteed {
        notes.push("the pod is Guaranteed: the sidecar's requests equal its limits to keep the QoS class".to_owned());
    }
    let limited = container::is_limited(spec);
    if limited && !guaranteed {
        notes.push("every container has a CPU limit, so the sidecar gets a CPU limit too".to_owned());
    }
    let secret = options.tls_secret.as_deref().filter(|_| wiring.tapped.is_empty());
    let volume = secret.and_then(|secret| preflight::certificate(spec, secret));
    let certificate = volume.and_then(|volume| volume.text("name"));
    if let Some(volume) = certificate {
        notes.push(format!("the sidecar terminates TLS with the certificate in the volume {volume}, and connects to the server over TLS"));
    }
    let mut first = Vec::new();
    if wiring.redirect {
        let image = options.redirect_image.as_deref();
        let image = image.ok_or("the mode redirect needs an image with nft; set it with --redirect-image")?;
        first.push(container::redirect(image, server.port, guaranteed || limited, shared));
    }
    first.push(
        Sidecar {
            options,
            wiring: &wiring,
            server: Some(&server),
            guaranteed,
            limited,
            shared,
            certificate,
            probe_file,
        }
        .container(),
    );
    if !is_list(spec, "initContainers") {
        patch.push(add("/spec/initContainers", Value::List(Vec::new())));
    }
    // Inserted before the other init containers, so that they and the server start after the sidecar.
    patch.extend(first.into_iter().enumerate().map(|(n, new)| add(format!("/spec/initContainers/{n}"), new)));
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        notes.push(format!(
            "the pod uses the node's network, and port {} is a port of the node: only one such pod fits on a node",
            options.admin_port
        ));
    }
    let warnings = preflight::warnings(spec, &server, options, &patch);
    Ok(Plan { patch, notes, warnings })
}

/// Adds a preStop hook that delays the server's shutdown until the open streams have ended.
fn hook(server: &Server<'_>, at: &str, options: &Options, notes: &mut Vec<String>) -> Vec<Operation> {
    let lifecycle = server.container.get("lifecycle").filter(|lifecycle| matches!(lifecycle, Value::Map(_)));
    if lifecycle.and_then(|lifecycle| lifecycle.get("preStop")).is_some_and(|hook| *hook != Value::Null) {
        notes.push(format!(
            "{} has its own preStop hook, which is not changed; to wait for open streams, let the hook GET /drain/wait on port {}",
            server.name, options.admin_port
        ));
        return Vec::new();
    }
    notes
        .push(format!("{} gets a preStop hook that delays its SIGTERM until the open streams have ended", server.name));
    // A port number, because a named port would be resolved in the server's own container.
    let hook = map([("httpGet", map([("path", "/drain/wait".into()), ("port", options.admin_port.into())]))]);
    entry(server.container, at, "lifecycle", [add(format!("{at}/lifecycle/preStop"), hook)])
}

/// Raises the grace period of the pod's end, and keeps it for containers that are killed because a probe failed.
fn grace(spec: &Value, options: &Options, notes: &mut Vec<String>) -> Vec<Operation> {
    const NAME: &str = "terminationGracePeriodSeconds";
    let needed = i64::try_from(options.drain.as_secs() + AFTER_DRAIN_SECS).unwrap_or(i64::MAX);
    let set = spec.get(NAME).and_then(Value::integer);
    let now = set.unwrap_or(GRACE_SECS);
    if now >= needed {
        return Vec::new();
    }
    notes.push(format!(
        "{NAME} is raised from {now} to {needed}: the drain may take {} s; after failed liveness or startup probes it stays {now}",
        options.drain.as_secs()
    ));
    let path = format!("/spec/{NAME}");
    let of_the_pod = if set.is_some() { replace(path, needed) } else { add(path, needed) };
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(|list| spec.list(list).iter().enumerate().map(move |each| (list, each)));
    let of_probes = containers.flat_map(|(list, (number, container))| {
        let is_unset = |probe: &&str| {
            matches!(container.get(probe), Some(Value::Map(_))) && container.at(&[probe, NAME]).is_none()
        };
        let kept = move |probe| add(format!("/spec/{list}/{number}/{probe}/{NAME}"), now.max(1));
        probes::RESTARTING.into_iter().filter(is_unset).map(kept)
    });
    [of_the_pod].into_iter().chain(of_probes).collect()
}

/// Allows the non-root sidecar to listen on a port below 1024. Even the pod security profile `restricted` allows this
/// sysctl.
fn low_port(spec: &Value, port: u16, notes: &mut Vec<String>) -> Vec<Operation> {
    const NAME: &str = "net.ipv4.ip_unprivileged_port_start";
    let host = spec.get("hostNetwork") == Some(&Value::Bool(true));
    let context = spec.get("securityContext").filter(|context| matches!(context, Value::Map(_)));
    let set =
        context.is_some_and(|context| context.list("sysctls").iter().any(|sysctl| sysctl.text("name") == Some(NAME)));
    if port >= FIRST_FREE_PORT || host || set {
        return Vec::new();
    }
    notes.push(format!("the sysctl {NAME} lets the sidecar listen on port {port} without root"));
    let sysctl = map([("name", NAME.into()), ("value", port.to_string().into())]);
    let at = "/spec/securityContext";
    let sysctls = appended(context.unwrap_or(&Value::Null), at, "sysctls", [sysctl]);
    entry(spec, "/spec", "securityContext", sysctls)
}
