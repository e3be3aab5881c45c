//! The checks before a pod is changed: reasons that prevent the injection, and warnings. The admission policy makes the
//! same checks.

use tokometer_decode::Engine;

use crate::inject::patch::Operation;
use crate::inject::probes::{RESTARTING, is_direct};
use crate::inject::server::{Exposure, Server, declared, is_server, number};
use crate::inject::texts::{list, of_engine, text};
use crate::inject::value::Value;
use crate::inject::wiring::mode;
use crate::inject::{Mode, Options};

/// Time until the kubelet has restarted a sidecar that hangs: its liveness probe with the chart's values, and the restart.
const RESTART_SECS: i64 = 10;

/// Default mode of the files in a Secret's volume (Kubernetes API, SecretVolumeSource).
const DEFAULT_MODE: i64 = 0o644;

/// Why this pod cannot have a sidecar, regardless of its server.
pub(super) fn of_pod(spec: &Value, options: &Options) -> Option<String> {
    let reason = |name: &str| Some(text("reasons", name, &[("admin", &options.admin_port.to_string())]));
    if spec.at(&["os", "name"]) == Some(&Value::from("windows")) {
        return reason("windows");
    }
    let admin = options.admin_port;
    let is_declared = all(spec).flat_map(declared).any(|(port, _)| port == i64::from(admin));
    let why = is_declared.then(|| reason("admin-port")).flatten()?;
    Some(format!("{why}; port {} is free", free_port(spec, admin, &[])))
}

/// The first port after `port` that no container declares and that is not in `others`.
pub(super) fn free_port(spec: &Value, port: u16, others: &[u16]) -> u16 {
    let is_declared = |port: u16| all(spec).flat_map(declared).any(|(declared, _)| declared == i64::from(port));
    let free = (port..=u16::MAX).skip(1).find(|port| !others.contains(port) && !is_declared(*port));
    free.unwrap_or(port)
}

/// Why this server cannot have a sidecar in this mode.
pub(super) fn of_server(spec: &Value, server: &Server<'_>, mode: Mode, options: &Options) -> Option<String> {
    let listen = server.engine.and_then(|engine| engine.info().listen);
    let port_flag = listen.and_then(|listen| listen.port.names().0);
    let host = listen.map_or((Some("--host"), None), |listen| listen.host.names());
    let host = host.0.or(host.1).unwrap_or_default();
    // The modes that change where the server listens.
    let moves = matches!(mode, Mode::AddressSplit | Mode::PortSwap | Mode::Uds);
    let hides = matches!(mode, Mode::AddressSplit | Mode::Uds);
    let is_dynamo = |word: &&str| word.starts_with("dynamo.") || word.contains("-m dynamo.");
    let words = server.words();
    let is_frontend = words.iter().any(|word| word.contains("dynamo.frontend"));
    let is_kserve = server.container.text("image").is_some_and(|image| image.contains("huggingfaceserver"));
    let is_proxy = |other: &Value| {
        other.text("image").is_some_and(|image| image.contains("llm-d-routing-sidecar"))
            || other.text("name") == Some("routing-proxy")
    };
    let has_socket = server.has("--uds") && mode != Mode::Uds;
    let port_differs = port_flag.is_some_and(|flag| server.flags(flag).any(|value| !server.accepts(value)));
    let given = port_flag.is_some_and(|flag| server.flags(flag).next().is_some());
    let declares: Vec<i64> = declared(server.container).map(|(port, _)| port).collect();
    let is_main = |port: &i64| *port == i64::from(server.port);
    let next = server.ports().max().map_or(0, |last| i64::from(last) + 1);
    let is_other = |port: &i64| !server.ports().any(|listed| *port == i64::from(listed));
    let is_alone = server.engine.is_some_and(|engine| list("alone").contains(&engine.as_str()));
    let flags = |name| server.has_any(&of_engine(name, server.engine).unwrap_or_default());
    let follows = server.more.is_empty() && flags("follow") || !is_alone && declares.iter().any(is_other);
    let moved = i64::from(server.port) + 1;
    let is_moved_port = all(spec).flat_map(declared).any(|(port, _)| port == moved);
    let ranks = matches!(server.engine, Some(Engine::Vllm | Engine::Sglang))
        && (declares.contains(&next) || server.more.is_empty() && server.has("--data-parallel-multi-port-external-lb"));
    let checks = [
        ("dynamo", server.engine != Some(Engine::Dynamo) && words.iter().any(is_dynamo) && (moves || !is_frontend)),
        ("kserve", moves && is_kserve),
        ("proxy", !matches!(mode, Mode::PortSwap | Mode::Explicit | Mode::Tap) && all(spec).any(is_proxy)),
        ("start", moves && !server.is_started),
        ("register", mode != Mode::Redirect && mode != Mode::Tap && flags("register")),
        ("tls-tap", mode == Mode::Tap && server.serves_tls()),
        ("socket", has_socket),
        ("port", port_differs),
        ("declared", !declares.is_empty() && !given && !declares.iter().any(is_main)),
        ("loopback", server.exposure == Exposure::Loopback && !matches!(mode, Mode::PortSwap | Mode::Uds | Mode::Tap)),
        ("address", server.exposure == Exposure::Unknown && !matches!(mode, Mode::Redirect | Mode::Tap)),
        ("ranks", hides && ranks),
        ("follow", hides && follows),
        ("moved-port", mode == Mode::PortSwap && server.more.is_empty() && is_moved_port),
        ("probe", hides && probed(server.container).any(|port| !is_reached(server, options, port))),
        ("liveness", is_proxied(mode) && !is_direct(server, mode, "livenessProbe") && is_hasty(server)),
    ];
    let checks = checks.into_iter().chain(tls(spec, server, options));
    let (name, _) = checks.into_iter().find(|(_, applies)| *applies)?;
    let values = [
        ("port", server.port.to_string()),
        ("moved", moved.to_string()),
        ("host", host.to_owned()),
        ("flag", if mode == Mode::PortSwap { port_flag.unwrap_or(host) } else { host }.to_owned()),
        ("portFlag", port_flag.unwrap_or_default().to_owned()),
        ("secret", options.tls_secret.clone().unwrap_or_default()),
    ];
    Some(text("reasons", name, &values.each_ref().map(|(key, value)| (*key, value.as_str()))))
}

/// Why the sidecar cannot use the engine's certificate.
fn tls(spec: &Value, server: &Server<'_>, options: &Options) -> Vec<(&'static str, bool)> {
    let Some(secret) = options.tls_secret.as_ref().filter(|_| options.mode != Mode::Tap) else { return Vec::new() };
    let requires_certificates = |value: &str| value.trim_start_matches(['"', '\'']).starts_with(['2', '$']);
    let volume = certificate(spec, secret);
    let mode = |volume: &Value| volume.at(&["secret", "defaultMode"]).and_then(Value::integer).unwrap_or(DEFAULT_MODE);
    let is_readable = |volume: &Value| mode(volume) % 8 >= 4 || spec.at(&["securityContext", "fsGroup"]).is_some();
    vec![
        ("tls-none", !server.serves_tls()),
        ("tls-client", server.flags("--ssl-cert-reqs").any(requires_certificates)),
        ("tls-volume", volume.is_none()),
        ("tls-unreadable", volume.is_some_and(|volume| !is_readable(volume))),
    ]
}

/// The pod's volume with this Secret. Volumes with `items` are excluded, because `items` can omit or rename files.
pub(super) fn certificate<'a>(spec: &'a Value, secret: &str) -> Option<&'a Value> {
    let is_name = |name: &str| secret.strip_prefix('*').map_or(name == secret, |suffix| name.ends_with(suffix));
    spec.list("volumes").iter().find(|volume| {
        let secret = volume.get("secret");
        secret.is_some_and(|secret| secret.get("items").is_none() && secret.text("secretName").is_some_and(is_name))
    })
}

/// Warnings that do not prevent the injection.
pub(super) fn warnings(spec: &Value, server: &Server<'_>, options: &Options, patch: &[Operation]) -> Vec<String> {
    let hook = server.container.at(&["lifecycle", "preStop"]);
    let other = |(number, other): (usize, &Value)| number != server.number && is_server(other);
    // Kubernetes starts the image's CMD only if the container has neither command nor args.
    let of_image = ["command", "args"].into_iter().all(|list| server.container.list(list).is_empty());
    let args = format!("/spec/containers/{}/args/", server.number);
    let adds_args = patch.iter().any(|change| matches!(change, Operation::Add { path, .. } if path.starts_with(&args)));
    let warnings = [
        (
            "prestop",
            options.mode != Mode::Tap
                && hook.is_some_and(|hook| {
                    *hook != Value::Null && hook.at(&["httpGet", "path"]) != Some(&"/drain/wait".into())
                }),
        ),
        ("cmd", of_image && adds_args),
        (
            "grpc",
            matches!(mode(options), Mode::AddressSplit | Mode::Uds | Mode::ShadowBind)
                && RESTARTING.into_iter().any(|probe| server.container.at(&[probe, "grpc"]).is_some()),
        ),
        ("second", spec.list("containers").iter().enumerate().any(other)),
        ("tls", server.serves_tls() && options.tls_secret.is_none()),
    ];
    let admin = options.admin_port.to_string();
    let found = warnings.into_iter().filter(|(_, applies)| *applies);
    found.map(|(name, _)| text("warnings", name, &[("admin", &admin)])).collect()
}

/// Every container of a pod.
pub(super) fn all(spec: &Value) -> impl Iterator<Item = &Value> {
    spec.list("initContainers").iter().chain(spec.list("containers"))
}

/// The ports that a container's probes connect to.
fn probed(container: &Value) -> impl Iterator<Item = &Value> {
    let probes = ["startupProbe", "livenessProbe", "readinessProbe"].into_iter();
    probes.flat_map(move |probe| {
        ["httpGet", "tcpSocket", "grpc"].into_iter().filter_map(move |kind| container.at(&[probe, kind, "port"]))
    })
}

/// True if the kubelet's probes of the server go through the sidecar.
fn is_proxied(mode: Mode) -> bool {
    !matches!(mode, Mode::PortSwap | Mode::Explicit | Mode::Tap)
}

/// True if the server's liveness probe fails before the kubelet has restarted a sidecar that hangs.
fn is_hasty(server: &Server<'_>) -> bool {
    let Some(probe) = server.container.get("livenessProbe") else { return false };
    let of = |name: &str, default: i64| probe.get(name).and_then(Value::integer).unwrap_or(default);
    let is_network = ["httpGet", "tcpSocket", "grpc"].into_iter().any(|kind| probe.get(kind).is_some());
    is_network && (of("failureThreshold", 3) - 1) * of("periodSeconds", 10) < RESTART_SECS
}

/// True if the sidecar forwards this port (a number or a name), or if this is the sidecar's admin port.
fn is_reached(server: &Server<'_>, options: &Options, port: &Value) -> bool {
    let number = number(server.container, port);
    number.is_some_and(|number| server.ports().chain([options.admin_port]).any(|port| i64::from(port) == number))
}
