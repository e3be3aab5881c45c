//! One pod, or the template of many: what is changed in it, as a patch, and why.

use crate::inject::Mode;
use crate::inject::Options;
use crate::inject::command;
use crate::inject::container;
use crate::inject::container::Sidecar;
use crate::inject::patch::Operation;
use crate::inject::patch::add;
use crate::inject::patch::replace;
use crate::inject::resources;
use crate::inject::server;
use crate::inject::server::Server;
use crate::inject::value::Value;
use crate::inject::value::map;
use crate::inject::wiring;

/// What Kubernetes gives a pod to end if it says nothing.
const GRACE_SECS: i64 = 30;

/// What a pod needs to end beside the drain: the engine's own end, and the last telemetry.
const AFTER_DRAIN_SECS: u64 = 30;

/// The first port that every user may listen on (ip_unprivileged_port_start, ip-sysctl).
const FIRST_FREE_PORT: u16 = 1024;

/// What is done to a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The changes.
    pub patch: Vec<Operation>,
    /// What was decided, and why: one sentence each.
    pub notes: Vec<String>,
}

/// Works out the changes for a pod, or for a pod template: anything with a pod's `spec`. It must not have a sidecar of ours.
///
/// # Errors
/// Why nothing can be done, and what would help.
pub fn plan(pod: &Value, options: &Options) -> Result<Plan, String> {
    let spec = pod.get("spec").ok_or("it has no spec")?;
    if let Some(why) = server::unfit(spec, options) {
        return Err(why);
    }
    let mut notes = Vec::new();
    let server = server::find(spec, options, &mut notes)?;
    let wiring = wiring::wire(spec, &server, options, &mut notes)?;
    let upstream = wiring.upstream.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    if [Some(server.port), Some(wiring.port), upstream].contains(&Some(options.admin_port)) {
        let port = options.admin_port;
        return Err(format!(
            "port {port} is the server's or its traffic's, and /metrics would be there; give another one with --admin-port"
        ));
    }
    let at = format!("/spec/containers/{}", server.number);
    let mut patch = Vec::new();
    if let Some(setting) = &wiring.setting {
        let changes = command::set(server.container, &at, setting);
        if changes.is_empty() {
            notes.push("it listens there already, so nothing is added".to_owned());
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

    let guaranteed = resources::is_guaranteed(spec);
    if guaranteed {
        notes.push("the pod is Guaranteed, so the sidecar's requests equal its limits and it stays so".to_owned());
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
        let image = image.ok_or("the mode redirect needs an image with nft in it; name it with --redirect-image")?;
        first.push(container::redirect(image, server.port, guaranteed));
    }
    first.push(sidecar.container());
    if !is_list(spec, "initContainers") {
        patch.push(add("/spec/initContainers", Value::List(Vec::new())));
    }
    // In front of the others, so that they and the server find it up.
    patch.extend(first.into_iter().enumerate().map(|(n, new)| add(format!("/spec/initContainers/{n}"), new)));
    if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
        notes.push(format!(
            "it has the node's network: port {} is one of the node's, so one such pod fits on a node",
            options.admin_port
        ));
    }
    Ok(Plan { patch, notes })
}

fn is_list(parent: &Value, name: &str) -> bool {
    matches!(parent.get(name), Some(Value::List(_)))
}

/// Puts an item at the end of a list that may not be there.
fn appended(parent: &Value, at: &str, name: &str, item: Value) -> Vec<Operation> {
    let list = (!is_list(parent, name)).then(|| add(format!("{at}/{name}"), Value::List(Vec::new())));
    list.into_iter().chain([add(format!("{at}/{name}/-"), item)]).collect()
}

/// Holds back the end of the server until the open streams have ended.
fn hook(server: &Server<'_>, at: &str, options: &Options, notes: &mut Vec<String>) -> Option<Operation> {
    let lifecycle = server.container.get("lifecycle").filter(|lifecycle| matches!(lifecycle, Value::Map(_)));
    if lifecycle.and_then(|lifecycle| lifecycle.get("preStop")).is_some_and(|hook| *hook != Value::Null) {
        notes.push(format!(
            "{} has a preStop hook, which is left alone; to have it wait for open streams, let it GET /drain/wait on port {}",
            server.name, options.admin_port
        ));
        return None;
    }
    notes.push(format!(
        "{} gets a preStop hook that holds back its SIGTERM until the open streams have ended",
        server.name
    ));
    // The port is a number: a name would be looked for in the server's own container.
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

/// Lets a sidecar that is not root listen on a low port; safe in the profile `restricted` too.
fn low_port(spec: &Value, port: u16, notes: &mut Vec<String>) -> Vec<Operation> {
    const NAME: &str = "net.ipv4.ip_unprivileged_port_start";
    let host = spec.get("hostNetwork") == Some(&Value::Bool(true));
    let context = spec.get("securityContext").filter(|context| matches!(context, Value::Map(_)));
    let set =
        context.is_some_and(|context| context.list("sysctls").iter().any(|sysctl| sysctl.text("name") == Some(NAME)));
    if port >= FIRST_FREE_PORT || host || set {
        return Vec::new();
    }
    notes.push(format!("the sysctl {NAME} lets the sidecar listen on port {port} without being root"));
    let sysctl = map([("name", NAME.into()), ("value", port.to_string().into())]);
    match context {
        Some(context) => appended(context, "/spec/securityContext", "sysctls", sysctl),
        None => vec![add("/spec/securityContext", map([("sysctls", Value::List(vec![sysctl]))]))],
    }
}
