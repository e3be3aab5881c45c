//! Plans the changes to a pod or pod template, as a patch with reasons.

use crate::inject::Mode;
use crate::inject::Options;
use crate::inject::container;
use crate::inject::container::Sidecar;
use crate::inject::engine;
use crate::inject::engine::Setting;
use crate::inject::patch::Operation;
use crate::inject::patch::add;
use crate::inject::patch::replace;
use crate::inject::server;
use crate::inject::server::Server;
use crate::inject::value::Value;
use crate::inject::value::map;

/// Default termination grace period of Kubernetes.
const GRACE_SECS: i64 = 30;

/// Time that a pod needs to end in addition to the drain: for the engine's shutdown and the last telemetry.
const AFTER_DRAIN_SECS: u64 = 30;

/// First unprivileged port (ip_unprivileged_port_start, ip-sysctl).
const FIRST_FREE_PORT: u16 = 1024;

/// The changes to a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The changes.
    pub patch: Vec<Operation>,
    /// The decisions and their reasons, one sentence each.
    pub notes: Vec<String>,
}

/// Plans the changes for a pod or a pod template: any object with a pod's `spec`. It must not have an injected sidecar.
///
/// # Errors
/// Why the sidecar cannot be added, and how to fix it.
pub fn plan(pod: &Value, options: &Options) -> Result<Plan, String> {
    let spec = pod.get("spec").ok_or("it has no spec")?;
    if let Some(why) = server::unfit(spec, options) {
        return Err(why);
    }
    let mut notes = Vec::new();
    let server = server::find(spec, options, &mut notes)?;
    let wiring = wire(spec, &server, options, &mut notes)?;
    let upstream = wiring.upstream.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    if [Some(server.port), Some(wiring.port), upstream].contains(&Some(options.admin_port)) {
        let port = options.admin_port;
        return Err(format!(
            "port {port} of /metrics is already used for the server's traffic; set another one with --admin-port"
        ));
    }
    let at = format!("/spec/containers/{}", server.number);
    let mut patch = Vec::new();
    if let Some(setting) = &wiring.setting {
        let changes = server::set(server.container, &at, setting);
        if changes.is_empty() {
            notes.push("it already listens there, so no setting is added".to_owned());
        }
        patch.extend(changes);
    }
    if wiring.socket {
        patch.extend(appended(server.container, &at, "volumeMounts", container::mount()));
        patch.extend(appended(spec, "/spec", "volumes", container::volume()));
    }
    patch.extend(hook(&server, &at, options, &mut notes));
    patch.extend(grace(spec, options, &mut notes));
    patch.extend(low_port(spec, wiring.port, &mut notes));

    let guaranteed = container::is_guaranteed(spec);
    if guaranteed {
        notes.push(
            "the pod is Guaranteed: the sidecar's requests equal its limits, so that the QoS class does not change"
                .to_owned(),
        );
    }
    let sidecar = Sidecar {
        image: &options.image,
        listen: wiring.listen,
        upstream: wiring.upstream,
        engine: server.engine.map(|engine| engine.as_str()),
        admin_port: options.admin_port,
        own_port: options.mode == Mode::Explicit,
        drain_secs: options.drain.as_secs(),
        guaranteed,
        user: wiring.user,
        port_sharing: wiring.port_sharing,
        socket: wiring.socket,
        variables: &options.variables,
    };
    let mut first = Vec::new();
    if wiring.redirect {
        let image = options.redirect_image.as_deref();
        let image = image.ok_or("the mode redirect needs an image with nft; set it with --redirect-image")?;
        first.push(container::redirect(image, server.port, guaranteed));
    }
    first.push(sidecar.container());
    if !is_list(spec, "initContainers") {
        patch.push(add("/spec/initContainers", Value::List(Vec::new())));
    }
    // First among the init containers, so that the others and the server find it running.
    patch.extend(first.into_iter().enumerate().map(|(n, new)| add(format!("/spec/initContainers/{n}"), new)));
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        notes.push(format!(
            "it uses the node's network: port {} is a port of the node, so only one such pod fits on a node",
            options.admin_port
        ));
    }
    Ok(Plan { patch, notes })
}

fn is_list(parent: &Value, name: &str) -> bool {
    matches!(parent.get(name), Some(Value::List(_)))
}

/// Appends an item to a list, creating the list if needed.
fn appended(parent: &Value, at: &str, name: &str, item: Value) -> Vec<Operation> {
    let list = (!is_list(parent, name)).then(|| add(format!("{at}/{name}"), Value::List(Vec::new())));
    list.into_iter().chain([add(format!("{at}/{name}/-"), item)]).collect()
}

/// Adds a preStop hook that delays the server's shutdown until the open streams have ended.
fn hook(server: &Server<'_>, at: &str, options: &Options, notes: &mut Vec<String>) -> Option<Operation> {
    let lifecycle = server.container.get("lifecycle").filter(|lifecycle| matches!(lifecycle, Value::Map(_)));
    if lifecycle.and_then(|lifecycle| lifecycle.get("preStop")).is_some_and(|hook| *hook != Value::Null) {
        notes.push(format!(
            "{} has a preStop hook, which is not changed; to wait for open streams, let it GET /drain/wait on port {}",
            server.name, options.admin_port
        ));
        return None;
    }
    notes
        .push(format!("{} gets a preStop hook that delays its SIGTERM until the open streams have ended", server.name));
    // A port number: a named port would be resolved in the server's own container.
    let hook = map([("httpGet", map([("path", "/drain/wait".into()), ("port", options.admin_port.into())]))]);
    Some(match lifecycle {
        Some(_) => add(format!("{at}/lifecycle/preStop"), hook),
        None => add(format!("{at}/lifecycle"), map([("preStop", hook)])),
    })
}

fn grace(spec: &Value, options: &Options, notes: &mut Vec<String>) -> Option<Operation> {
    let needed = i64::try_from(options.drain.as_secs() + AFTER_DRAIN_SECS).unwrap_or(i64::MAX);
    let set = spec.get("terminationGracePeriodSeconds").and_then(Value::integer);
    let now = set.unwrap_or(GRACE_SECS);
    if now >= needed {
        return None;
    }
    notes.push(format!(
        "terminationGracePeriodSeconds is raised from {now} to {needed}: the drain may take {} s",
        options.drain.as_secs()
    ));
    let path = "/spec/terminationGracePeriodSeconds";
    Some(if set.is_some() { replace(path, needed) } else { add(path, needed) })
}

/// Lets the non-root sidecar listen on a low port; this sysctl is safe in the profile `restricted` too.
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
    match context {
        Some(context) => appended(context, "/spec/securityContext", "sysctls", sysctl),
        None => vec![add("/spec/securityContext", map([("sysctls", Value::List(vec![sysctl]))]))],
    }
}

/// How sidecar and server are connected.
#[derive(Clone, Debug, Default)]
struct Wiring {
    listen: String,
    upstream: String,
    /// The setting added to the server.
    setting: Option<Setting>,
    /// The server's user, if the sidecar must share it.
    user: Option<i64>,
    /// They share the socket volume.
    socket: bool,
    /// They share a port (SO_REUSEPORT).
    port_sharing: bool,
    /// An nftables rule redirects connections to the sidecar.
    redirect: bool,
    /// The sidecar's listen port.
    port: u16,
}

/// The pod's own addresses, of both families if it has both. The kubelet expands the variable.
fn of_the_pod(port: u16) -> String {
    format!("[$(POD_IPS)]:{port}")
}

/// Plans the wiring and explains it in `notes`. The error is why the mode is impossible, and an alternative.
fn wire(spec: &Value, server: &Server<'_>, options: &Options, notes: &mut Vec<String>) -> Result<Wiring, String> {
    let port = server.port;
    let at = |upstream: String| Wiring { listen: of_the_pod(port), upstream, port, ..Wiring::default() };
    let direct = server::indirect(server.container).is_none();
    let has = |flag: &str| server::flag(server.container, flag).is_some();
    let listen = || {
        let known = server.engine.and_then(|engine| engine.info().listen.as_ref());
        known.ok_or("its engine is unknown, so its listen address cannot be set; set the engine with --engine")
    };
    let mode = if options.mode == Mode::Auto { Mode::AddressSplit } else { options.mode };
    Ok(match mode {
        Mode::Auto | Mode::AddressSplit => {
            let setting = reaching(server, engine::host(listen()?, "127.0.0.1", port, has, direct))?;
            notes.push(format!("the server is set to listen on 127.0.0.1:{port} ({}); the sidecar listens on the pod's addresses and the same port, so Services, probes and policies need no change", reported(&setting)));
            Wiring { setting: Some(setting), ..at(format!("127.0.0.1:{port}")) }
        }
        Mode::Uds => {
            let setting = engine::socket(listen()?, container::SOCKET, has);
            let title = server.engine.map_or("", |engine| engine.info().title);
            let setting = setting.ok_or_else(|| format!("{title} cannot listen on a Unix socket; omit --mode"))?;
            let setting = reaching(server, setting)?;
            notes.push(format!(
                "the server is set to listen on {} ({}), in a volume that both mount",
                container::SOCKET,
                reported(&setting)
            ));
            let user = Some(user(spec, server, notes)?);
            Wiring { setting: Some(setting), user, socket: true, ..at(format!("unix:{}", container::SOCKET)) }
        }
        Mode::ShadowBind => {
            notes.push(format!("the server is not changed and listens on all addresses of port {port}; the sidecar binds the pod's addresses, which the kernel prefers. The server must set SO_REUSEPORT (vLLM does with --api-server-count above 1), or the one that starts last fails"));
            Wiring { user: Some(user(spec, server, notes)?), port_sharing: true, ..at(format!("127.0.0.1:{port}")) }
        }
        Mode::PortSwap => {
            let inner = port.checked_add(1).ok_or("its port is 65535, so there is no next port")?;
            let setting = reaching(server, engine::port(listen()?, inner, has, direct))?;
            notes.push(format!(
                "the server is set to listen on port {inner} ({}); the sidecar listens on port {port}",
                reported(&setting)
            ));
            Wiring { setting: Some(setting), ..at(format!("127.0.0.1:{inner}")) }
        }
        Mode::Redirect => {
            if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
                return Err(
                    "it uses the node's network, where a redirect would affect connections of the node; use another mode"
                        .to_owned(),
                );
            }
            notes.push(format!("an init container redirects connections for port {port} to the sidecar with nftables. It needs root and NET_ADMIN, which the pod security profiles baseline and restricted forbid"));
            let listen = of_the_pod(container::OWN_PORT);
            Wiring { listen, redirect: true, port: container::OWN_PORT, ..at("original".to_owned()) }
        }
        Mode::Explicit => {
            notes.push(format!(
                "no traffic reaches the sidecar yet: point a Service to port {} (llm-traffic)",
                container::OWN_PORT
            ));
            Wiring {
                listen: of_the_pod(container::OWN_PORT),
                port: container::OWN_PORT,
                ..at(format!("127.0.0.1:{port}"))
            }
        }
    })
}

/// A flag must reach the program, unless the command already has it; a variable always does.
fn reaching(server: &Server<'_>, setting: Setting) -> Result<Setting, String> {
    let (Setting::Joined(flag, value) | Setting::Spaced(flag, value) | Setting::Single(flag, value)) = &setting else {
        return Ok(setting);
    };
    match server::indirect(server.container) {
        Some(why) if server::flag(server.container, flag).as_ref() != Some(value) => {
            Err(format!("{why}; add {flag} {value} to the command, or use --mode redirect"))
        }
        _ => Ok(setting),
    }
}

fn reported(setting: &Setting) -> String {
    match setting {
        Setting::Joined(name, value) | Setting::Single(name, value) => format!("{name}={value}"),
        Setting::Spaced(name, value) => format!("{name} {value}"),
        Setting::Variable(name, value) => format!("the variable {name}={value}"),
    }
}

/// The user of the server's process: a shared socket or port requires the same user.
fn user(spec: &Value, server: &Server<'_>, notes: &mut Vec<String>) -> Result<i64, String> {
    let of = |place: &Value, name: &str| place.at(&["securityContext", name]).cloned();
    let set = |name: &str| of(server.container, name).or_else(|| of(spec, name));
    match set("runAsUser").and_then(|user| user.integer()) {
        Some(user) => {
            notes.push(format!("the sidecar runs as the server's user, {user}"));
            Ok(user)
        }
        None if set("runAsNonRoot") == Some(Value::Bool(true)) => {
            Err("the sidecar must run as the server's user, which is set only in the image; set runAsUser".to_owned())
        }
        None => {
            notes.push("the sidecar runs as root, the assumed user of the server because the pod sets none; it has no capabilities".to_owned());
            Ok(0)
        }
    }
}
