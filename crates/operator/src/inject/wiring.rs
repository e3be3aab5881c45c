//! How clients reach the sidecar, and how the sidecar reaches the server.

use crate::inject::engine::Setting;
use crate::inject::server::{Exposure, Server};
use crate::inject::texts::text;
use crate::inject::value::Value;
use crate::inject::{Mode, Options, engine};
use tokometer_decode::Engine;

/// The sidecar's own listen port, in the modes `redirect` and `explicit`.
pub(super) const OWN_PORT: u16 = 15_080;

/// The server's Unix socket.
pub(super) const SOCKET: &str = "/run/tokometer/engine.sock";

/// How sidecar and server are connected.
#[derive(Clone, Debug, Default)]
pub(super) struct Wiring {
    /// Listen address and upstream of each listener.
    pub(super) listeners: Vec<(String, String)>,
    /// The setting added to the server.
    pub(super) setting: Option<Setting>,
    /// The server's user, if the sidecar must share it.
    pub(super) user: Option<i64>,
    /// Sidecar and server share the socket volume.
    pub(super) socket: bool,
    /// Sidecar and server share a port (SO_REUSEPORT).
    pub(super) port_sharing: bool,
    /// An nftables rule redirects connections to the sidecar.
    pub(super) redirect: bool,
    /// Ports whose packets the sidecar reads, instead of listening.
    pub(super) tapped: Vec<u16>,
    /// The sidecar's listen port.
    pub(super) port: u16,
    /// The server's new port, if the kubelet can connect to it.
    pub(super) moved: Option<u16>,
}

/// The pod's own addresses: IPv4, IPv6 or both. The kubelet expands the variable.
fn of_the_pod(port: u16) -> String {
    format!("[$(POD_IPS)]:{port}")
}

/// The pod's own addresses, and 127.0.0.1 for proxies in the pod. A server on 127.0.0.1 must not become reachable on
/// the pod's addresses.
fn with_loopback(server: &Server<'_>) -> String {
    let port = server.port;
    match server.exposure {
        Exposure::Pod => format!("[$(POD_IPS),127.0.0.1]:{port}"),
        Exposure::Loopback | Exposure::Unknown => format!("127.0.0.1:{port}"),
    }
}

/// The mode that `auto` selects.
pub(super) fn mode(options: &Options) -> Mode {
    if options.mode == Mode::Auto { Mode::AddressSplit } else { options.mode }
}

/// Plans the wiring and explains it in `notes`. The error is the reason why the mode is impossible, and an alternative.
pub(super) fn wire(
    spec: &Value,
    server: &Server<'_>,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Wiring, String> {
    let port = server.port;
    let between =
        |listen: String, upstream: String| Wiring { listeners: vec![(listen, upstream)], port, ..Wiring::default() };
    // One listener for each port, to the same port on loopback.
    let every = || Wiring {
        listeners: server.ports().map(|port| (of_the_pod(port), format!("127.0.0.1:{port}"))).collect(),
        port: server.ports().min().unwrap_or(port),
        ..Wiring::default()
    };
    let direct = matches!(server.shell, Ok(None));
    let has = |flag: &str| server.has(flag);
    let listen = || match server.engine.map(Engine::info) {
        Some(info) => info.listen.as_ref().ok_or_else(|| {
            format!("the listen address of {} cannot be set; use the mode redirect or explicit", info.title)
        }),
        None => {
            Err("its engine is unknown, so its listen address cannot be set; set the engine with --engine".to_owned())
        }
    };
    let mode = mode(options);
    if !server.more.is_empty() && !matches!(mode, Mode::AddressSplit | Mode::ShadowBind | Mode::Tap) {
        return Err(format!("the mode {} serves one port; use address-split for several", mode.as_str()));
    }
    Ok(match mode {
        Mode::Auto | Mode::AddressSplit => {
            let setting = engine::host(listen()?, "127.0.0.1", port, has, direct);
            notes.push(format!("the server is set to listen on 127.0.0.1:{port} ({}); the sidecar listens on the pod's addresses and the same port, so Services, probes and policies need no change", setting));
            Wiring { setting: Some(setting), ..every() }
        }
        Mode::Uds => {
            let setting = engine::socket(listen()?, SOCKET, has);
            let title = server.engine.map_or("", |engine| engine.info().title);
            let setting = setting.ok_or_else(|| format!("{title} cannot listen on a Unix socket; omit --mode"))?;
            notes.push(format!("the server is set to listen on {} ({}), in a volume that both mount", SOCKET, setting));
            let user = Some(user(spec, server, mode, notes)?);
            Wiring {
                setting: Some(setting),
                user,
                socket: true,
                ..between(with_loopback(server), format!("unix:{}", SOCKET))
            }
        }
        Mode::ShadowBind => {
            notes.push(format!("the server is not changed and listens on all addresses of port {port}; the sidecar binds the pod's addresses, which the kernel prefers. The server must set SO_REUSEPORT (vLLM does with --api-server-count above 1); otherwise, the process that starts last fails"));
            Wiring { user: Some(user(spec, server, mode, notes)?), port_sharing: true, ..every() }
        }
        Mode::PortSwap => {
            let inner = port.checked_add(1).ok_or("its port is 65535, so there is no next port")?;
            let is_local = server.exposure == Exposure::Loopback;
            let (host, places) = if is_local {
                ("127.0.0.1", "of 127.0.0.1, as the server did")
            } else {
                ("0.0.0.0", "of the pod's addresses and of 127.0.0.1")
            };
            let setting = engine::port(listen()?, host, inner, has, direct);
            notes.push(format!(
                "the server is set to listen on port {inner} ({setting}); the sidecar listens on port {port} {places}"
            ));
            let moved = (!is_local).then_some(inner);
            Wiring { setting: Some(setting), moved, ..between(with_loopback(server), format!("127.0.0.1:{inner}")) }
        }
        Mode::Redirect => {
            if spec.get("hostNetwork") == Some(&Value::Bool(true)) {
                return Err(
                    "the pod uses the node's network, where a redirect would affect the node's connections; use another mode"
                        .to_owned(),
                );
            }
            notes.push(format!("an init container redirects connections for port {port} to the sidecar with nftables. It needs root and NET_ADMIN, which the pod security profiles baseline and restricted forbid"));
            Wiring { redirect: true, port: OWN_PORT, ..between(of_the_pod(OWN_PORT), "original".to_owned()) }
        }
        Mode::Tap => {
            notes.push("the server is not changed; the sidecar reads copies of its packets. It needs root and NET_RAW, which the pod security profiles baseline and restricted forbid".to_owned());
            Wiring { tapped: server.ports().collect(), port, user: Some(0), ..Wiring::default() }
        }
        Mode::Explicit => {
            notes.push(format!(
                "no traffic reaches the sidecar yet: point a Service to port {} (llm-traffic)",
                OWN_PORT
            ));
            Wiring { port: OWN_PORT, ..between(of_the_pod(OWN_PORT), format!("127.0.0.1:{port}")) }
        }
    })
}

/// The user of the server's process. To share a socket or a port, the sidecar must run as the same user.
fn user(spec: &Value, server: &Server<'_>, mode: Mode, notes: &mut Vec<String>) -> Result<i64, String> {
    let of = |place: &Value, name: &str| place.at(&["securityContext", name]).cloned();
    let set = |name: &str| of(server.container, name).or_else(|| of(spec, name));
    match set("runAsUser").and_then(|user| user.integer()) {
        Some(user) => {
            notes.push(format!("the sidecar runs as the server's user, {user}"));
            Ok(user)
        }
        None if set("runAsNonRoot") == Some(Value::Bool(true)) => {
            Err(text("reasons", "user", &[("mode", mode.as_str())]))
        }
        None => {
            notes.push("the pod sets no user, so the sidecar runs as root, the assumed user of the server; the sidecar has no capabilities".to_owned());
            Ok(0)
        }
    }
}
