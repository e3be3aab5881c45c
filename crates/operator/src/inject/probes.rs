//! The probes that restart the server. They are changed to reach the server itself, so that no state of the sidecar
//! restarts the server.

use crate::inject::Mode;
use crate::inject::patch::{Operation, replace};
use crate::inject::server::{Exposure, Server, number};
use crate::inject::value::{Value, map};
use crate::inject::wiring::SOCKET;

/// The sidecar's program, in the volume that it shares with the server.
pub(super) const PROGRAM: &str = "/run/tokometer-probe/tokometer";

/// The probes whose failure restarts a container.
pub(super) const RESTARTING: [&str; 2] = ["livenessProbe", "startupProbe"];

/// Default timeout of a probe (Kubernetes API, Probe).
const TIMEOUT_SECS: i64 = 1;

/// Time to start a process in the container, in addition to the timeout of the check: on a busy node, the container
/// runtime needs more than a second.
const START_SECS: i64 = 2;

/// Lets the probes run the sidecar's program in the server's container, which connects to the server itself.
pub(super) fn direct(server: &Server<'_>, at: &str, mode: Mode, notes: &mut Vec<String>) -> Vec<Operation> {
    let changed = RESTARTING.into_iter().filter_map(|name| {
        let command = command(server, mode, name)?;
        let Value::Map(fields) = server.container.get(name)? else { return None };
        let exec = ("exec".to_owned(), map([("command", command.into())]));
        let mut probe = Value::Map([exec].into_iter().chain(fields.iter().cloned()).collect());
        // `kubectl apply` merges the probe with that of the cluster, and removes a field only if it is null.
        for kind in ["httpGet", "tcpSocket"] {
            if let Some(replaced) = probe.get_mut(kind) {
                *replaced = Value::Null;
            }
        }
        probe.set("timeoutSeconds", (timeout(&probe) + START_SECS).into());
        Some(replace(format!("{at}/{name}"), probe))
    });
    let changed: Vec<Operation> = changed.collect();
    if !changed.is_empty() {
        notes.push(format!("liveness and startup probes of {} run `tokometer probe` in its container, which connects to the server itself: the sidecar copies its program to a shared volume", server.name));
    }
    changed
}

/// True if injection lets this probe reach the server itself, without the sidecar.
pub(super) fn is_direct(server: &Server<'_>, mode: Mode, name: &str) -> bool {
    command(server, mode, name).is_some()
}

/// The command in place of a probe, which the kubelet would send through the sidecar; `None` for other probes.
fn command(server: &Server<'_>, mode: Mode, name: &str) -> Option<Vec<String>> {
    let is_proxied = matches!(mode, Mode::AddressSplit | Mode::Uds | Mode::ShadowBind);
    let probe = server.container.get(name).filter(|_| is_proxied && server.exposure == Exposure::Pod)?;
    let (get, action) = (probe.get("httpGet"), probe.get("httpGet").or(probe.get("tcpSocket"))?);
    let port = action.get("port").and_then(|port| number(server.container, port))?;
    let is_listed = server.ports().any(|listed| i64::from(listed) == port);
    // With a host, the kubelet does not connect to the pod.
    if !is_listed || action.text("host").is_some_and(|host| !host.is_empty()) {
        return None;
    }
    let scheme = match get.map(|get| get.text("scheme")) {
        None => "tcp",
        Some(Some("HTTPS")) => "https",
        Some(_) => "http",
    };
    let path = get.map_or("", |get| get.text("path").unwrap_or("/"));
    let slash = if get.is_none() || path.starts_with('/') { "" } else { "/" };
    let mut words = vec![
        PROGRAM.to_owned(),
        "probe".to_owned(),
        format!("{scheme}://127.0.0.1:{port}{slash}{path}"),
        format!("--timeout={}s", timeout(probe)),
    ];
    words.extend((mode == Mode::Uds).then(|| format!("--socket={SOCKET}")));
    let headers = get.map_or(&[][..], |get| get.list("httpHeaders"));
    words.extend(headers.iter().map(|header| {
        let text = |name| header.text(name).unwrap_or_default();
        format!("--header={}: {}", text("name"), text("value"))
    }));
    // The kubelet expands variables, `$(NAME)`, in the command, but not in the fields of httpGet.
    Some(words.into_iter().map(|word| word.replace('$', "$$")).collect())
}

fn timeout(probe: &Value) -> i64 {
    let set = probe.get("timeoutSeconds").and_then(Value::integer);
    set.filter(|seconds| *seconds > 0).unwrap_or(TIMEOUT_SECS)
}

/// Lets the probes go to the server's new port.
pub(super) fn moved(server: &Server<'_>, at: &str, port: u16, notes: &mut Vec<String>) -> Vec<Operation> {
    let probed = RESTARTING
        .into_iter()
        .flat_map(|probe| ["httpGet", "tcpSocket", "grpc"].into_iter().map(move |kind| [probe, kind, "port"]));
    let is_server = |path: &[&str; 3]| {
        server.container.at(path).and_then(|port| number(server.container, port)) == Some(i64::from(server.port))
    };
    let moved = probed.filter(is_server).map(|path| replace(format!("{at}/{}", path.join("/")), port));
    let moved: Vec<Operation> = moved.collect();
    if !moved.is_empty() {
        notes.push(format!("liveness and startup probes of {} go to port {port}, directly to the server", server.name));
    }
    moved
}
