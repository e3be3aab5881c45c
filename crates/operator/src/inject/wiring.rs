//! The changes of each mode: both listen addresses, the server's setting, and the sidecar's user.

use crate::inject::Mode;
use crate::inject::Options;
use crate::inject::command;
use crate::inject::container;
use crate::inject::engine::Setting;
use crate::inject::server::Server;
use crate::inject::value::Value;

/// How sidecar and server are connected.
#[derive(Clone, Debug, Default)]
pub(super) struct Wiring {
    pub(super) listen: String,
    pub(super) upstream: String,
    /// The setting added to the server.
    pub(super) setting: Option<Setting>,
    /// The server's user, if the sidecar must share it.
    pub(super) user: Option<i64>,
    /// They share the socket volume.
    pub(super) socket: bool,
    /// They share a port (SO_REUSEPORT).
    pub(super) port_sharing: bool,
    /// An nftables rule redirects connections to the sidecar.
    pub(super) redirect: bool,
    /// The sidecar's listen port.
    pub(super) port: u16,
}

/// The pod's own addresses, of both families if it has both. The kubelet expands the variable.
fn of_the_pod(port: u16) -> String {
    format!("[$(POD_IPS)]:{port}")
}

/// Plans the wiring and explains it in `notes`. The error is why the mode is impossible, and an alternative.
pub(super) fn wire(
    spec: &Value,
    server: &Server<'_>,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Wiring, String> {
    let port = server.port;
    let at = |upstream: String| Wiring { listen: of_the_pod(port), upstream, port, ..Wiring::default() };
    let direct = command::indirect(server.container).is_none();
    let has = |flag: &str| command::flag(server.container, flag).is_some();
    let engine = || {
        server.engine.ok_or("its engine is unknown, so its listen address cannot be set; set the engine with --engine")
    };
    let mode = if options.mode == Mode::Auto { Mode::AddressSplit } else { options.mode };
    Ok(match mode {
        Mode::Auto | Mode::AddressSplit => {
            let setting = reaching(server, engine()?.host("127.0.0.1", port, has, direct))?;
            notes.push(format!("the server is set to listen on 127.0.0.1:{port} ({}); the sidecar listens on the pod's addresses and the same port, so Services, probes and policies need no change", told(&setting)));
            Wiring { setting: Some(setting), ..at(format!("127.0.0.1:{port}")) }
        }
        Mode::Uds => {
            let engine = engine()?;
            let setting = engine.socket(container::SOCKET, has);
            let setting =
                setting.ok_or_else(|| format!("{} cannot listen on a Unix socket; omit --mode", engine.name()))?;
            let setting = reaching(server, setting)?;
            notes.push(format!(
                "the server is set to listen on {} ({}), in a volume that both mount",
                container::SOCKET,
                told(&setting)
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
            let setting = reaching(server, engine()?.other_port(inner, has, direct))?;
            notes.push(format!(
                "the server is set to listen on port {inner} ({}); the sidecar listens on port {port}",
                told(&setting)
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
    match command::indirect(server.container) {
        Some(why) if command::flag(server.container, flag).as_ref() != Some(value) => {
            Err(format!("{why}; add {flag} {value} to the command, or use --mode redirect"))
        }
        _ => Ok(setting),
    }
}

fn told(setting: &Setting) -> String {
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
