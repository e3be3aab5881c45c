//! What each mode changes: where both listen, what the server is told, and whose user the sidecar is.

use crate::inject::Mode;
use crate::inject::Options;
use crate::inject::command;
use crate::inject::container;
use crate::inject::engine::Setting;
use crate::inject::server::Server;
use crate::inject::value::Value;

/// How sidecar and server are joined.
#[derive(Clone, Debug, Default)]
pub(super) struct Wiring {
    pub(super) listen: String,
    pub(super) upstream: String,
    /// What the server is told.
    pub(super) setting: Option<Setting>,
    /// The user that the sidecar shares with the server.
    pub(super) user: Option<i64>,
    /// They share the volume of a socket.
    pub(super) socket: bool,
    /// They share a port by SO_REUSEPORT.
    pub(super) port_sharing: bool,
    /// Connections are turned to the sidecar by a rule.
    pub(super) redirect: bool,
    /// The port on which the sidecar listens.
    pub(super) port: u16,
}

/// The pod's own addresses, of both families where it has both. The kubelet puts them in.
fn of_the_pod(port: u16) -> String {
    format!("[$(POD_IPS)]:{port}")
}

/// Works it out, and says in `notes` what it means. An error is why it cannot be, and what can.
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
    let engine =
        || server.engine.ok_or("its engine is not known, so it cannot be told where to listen; name it with --engine");
    let mode = if options.mode == Mode::Auto { Mode::AddressSplit } else { options.mode };
    Ok(match mode {
        Mode::Auto | Mode::AddressSplit => {
            let setting = reaching(server, engine()?.host("127.0.0.1", port, has, direct))?;
            notes.push(format!("the server is told to listen on 127.0.0.1:{port} ({}); the sidecar has the pod's addresses and the same port, so Services, probes and policies stay as they are", told(&setting)));
            Wiring { setting: Some(setting), ..at(format!("127.0.0.1:{port}")) }
        }
        Mode::Uds => {
            let engine = engine()?;
            let setting = engine.socket(container::SOCKET, has);
            let setting =
                setting.ok_or_else(|| format!("{} cannot listen on a Unix socket; leave --mode out", engine.name()))?;
            let setting = reaching(server, setting)?;
            notes.push(format!(
                "the server is told to listen on {} ({}), in a volume that both mount",
                container::SOCKET,
                told(&setting)
            ));
            let user = Some(user(spec, server, notes)?);
            Wiring { setting: Some(setting), user, socket: true, ..at(format!("unix:{}", container::SOCKET)) }
        }
        Mode::ShadowBind => {
            notes.push(format!("the server is left as it is, on all addresses of port {port}; the sidecar binds the pod's addresses, which the kernel prefers. The server must set SO_REUSEPORT (vLLM does with --api-server-count above 1), or the one that starts last fails"));
            Wiring { user: Some(user(spec, server, notes)?), port_sharing: true, ..at(format!("127.0.0.1:{port}")) }
        }
        Mode::PortSwap => {
            let inner = port.checked_add(1).ok_or("its port is 65535, there is no next one")?;
            let setting = reaching(server, engine()?.other_port(inner, has, direct))?;
            notes.push(format!(
                "the server is told to listen on port {inner} ({}); the sidecar takes port {port}",
                told(&setting)
            ));
            Wiring { setting: Some(setting), ..at(format!("127.0.0.1:{inner}")) }
        }
        Mode::Redirect => {
            if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
                return Err(
                    "it has the node's network, where a redirect would turn the node's connections; use another mode"
                        .to_owned(),
                );
            }
            notes.push(format!("an init container turns connections for port {port} to the sidecar with nftables. It needs root and NET_ADMIN, which the profiles baseline and restricted of pod security refuse"));
            let listen = of_the_pod(container::OWN_PORT);
            Wiring { listen, redirect: true, port: container::OWN_PORT, ..at("original".to_owned()) }
        }
        Mode::Explicit => {
            notes.push(format!(
                "nothing leads to the sidecar by itself: point a Service at port {} (llm-traffic)",
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

/// A flag has to reach the program, unless its text has it already; a variable always does.
fn reaching(server: &Server<'_>, setting: Setting) -> Result<Setting, String> {
    let (Setting::Joined(flag, value) | Setting::Spaced(flag, value) | Setting::Single(flag, value)) = &setting else {
        return Ok(setting);
    };
    match command::indirect(server.container) {
        Some(why) if command::flag(server.container, flag).as_ref() != Some(value) => {
            Err(format!("{why}; write {flag} {value} into it by hand, or use --mode redirect"))
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

/// The user of the server's process: a socket, and a port that is shared, belong to one.
fn user(spec: &Value, server: &Server<'_>, notes: &mut Vec<String>) -> Result<i64, String> {
    let of = |place: &Value, name: &str| place.at(&["securityContext", name]).cloned();
    let set = |name: &str| of(server.container, name).or_else(|| of(spec, name));
    match set("runAsUser").and_then(|user| user.integer()) {
        Some(user) => {
            notes.push(format!("the sidecar runs as the server's user, {user}"));
            Ok(user)
        }
        None if set("runAsNonRoot") == Some(Value::Bool(true)) => {
            Err("the sidecar must run as the server's user, which only the image knows; set runAsUser".to_owned())
        }
        None => {
            notes.push("the sidecar runs as root, which is taken for the server's user because the pod names none; it has no capabilities all the same".to_owned());
            Ok(0)
        }
    }
}
