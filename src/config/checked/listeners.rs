//! Listeners and their upstreams: addresses, TLS, conflicts between listeners, scraping, and the receiver of the
//! engine's spans.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use crate::config::address;
use crate::config::checked::problems::Problems;
use crate::config::raw::{EngineSpans, Listener as RawListener, ListenerScrape, Mode, Raw, Tls, UpstreamTls};
use tokometer_decode::Engine;
use tokometer_engine::scrape::Target;
use tokometer_engine::{engine_spans, scrape};
use tokometer_proxy::listen::{Address, ClientTls, Handlers, Listener, ServerTls};
use tokometer_telemetry::export;

/// Number of ports tried for a suggestion.
const NEXT_PORTS: u16 = 64;

/// Checks the listeners; invalid ones are omitted.
pub(super) fn listeners(all: &Raw, problems: &mut Problems<'_>) -> Vec<Listener> {
    let rewrite = Arc::new(all.rewrite.clone());
    let raw = &all.listeners;
    if raw.is_empty() {
        problems.error(
            "listeners",
            "no listener is configured; add one with `listen` and `upstream`, or use --listen and --upstream",
        );
    }
    let listeners: Vec<(usize, Listener)> = raw
        .iter()
        .enumerate()
        .filter_map(|(index, raw)| Some((index, listener(index, raw, &rewrite, problems)?)))
        .collect();
    for (place, (index, listener)) in listeners.iter().enumerate() {
        let mut earlier = listeners.iter().take(place);
        if let Some((other, _)) = earlier.clone().find(|(_, other)| address::collide(&other.listen, &listener.listen)) {
            let message = in_use(&format!("listeners[{other}]"), &listener.listen, all);
            problems.error(&format!("listeners[{index}].listen"), message);
        } else if let Some((other, _)) = earlier.find(|(_, other)| other.name == listener.name) {
            problems.error(
                &format!("listeners[{index}].name"),
                format!("listeners[{other}] already has the name `{}`; use unique names", listener.name),
            );
        }
    }
    report_loops(&listeners, problems);
    if rewrite.is_any() && raw.iter().all(|raw| raw.mode == Mode::Proxy) {
        problems.warn("rewrite", "has no effect: no listener has `mode: rewrite`");
    }
    listeners.into_iter().map(|(_, listener)| listener).collect()
}

/// For each listener, the first listener with the same upstream, under which the shared server's values are reported.
pub(super) fn servers(listeners: &[Listener]) -> Vec<usize> {
    let first = |(index, listener): (usize, &Listener)| {
        listeners.iter().position(|other| other.upstream == listener.upstream).unwrap_or(index)
    };
    listeners.iter().enumerate().map(first).collect()
}

/// The admin address must be neither a listen address nor an upstream.
pub(super) fn keep_clear_of_admin(raw: &Raw, listeners: &[Listener], admin: &Address, problems: &mut Problems<'_>) {
    for Listener { name, listen, upstream, .. } in listeners {
        if address::collide(listen, admin) {
            problems.error("admin.listen", in_use(&format!("the listener `{name}`"), admin, raw));
        }
        if address::reaches(upstream, admin) {
            let message = format!("this is the upstream of the listener `{name}`; write another {}", other(admin, raw));
            problems.error("admin.listen", message);
        }
    }
}

/// The message for an address that `who` already uses.
fn in_use(who: &str, address: &Address, raw: &Raw) -> String {
    format!("{who} already uses this address; write another {}", other(address, raw))
}

/// The suggested replacement for this address.
fn other(address: &Address, raw: &Raw) -> String {
    match (address, free_port(raw, address)) {
        (Address::Tcp { .. }, Some(port)) => format!("port, such as {port}"),
        (Address::Tcp { .. }, None) => "port".to_owned(),
        _ => "path".to_owned(),
    }
}

/// A free port: the first one after that of `address` that no key contains and that can be bound on this machine.
pub(crate) fn free_port(raw: &Raw, address: &Address) -> Option<u16> {
    let Address::Tcp { host, port } = address else { return None };
    let listeners = raw.listeners.iter().flat_map(|listener| [&listener.listen, &listener.upstream]);
    let texts = listeners.chain([&raw.admin.listen]).chain(&raw.engine_spans.listen);
    let named: Vec<u16> = texts.filter_map(|text| text.rsplit_once(':')?.1.parse().ok()).collect();
    let next = (1..=NEXT_PORTS).filter_map(|n| port.checked_add(n)).filter(|port| !named.contains(port));
    next.into_iter().find(|port| TcpListener::bind((host.as_str(), *port)).is_ok())
}

fn listener(
    index: usize,
    raw: &RawListener,
    rewrite: &Arc<tokometer_rewrite::Settings>,
    problems: &mut Problems<'_>,
) -> Option<Listener> {
    let at = |key: &str| format!("listeners[{index}].{key}");
    let listen = problems.take(&at("listen"), address::listen(&raw.listen));
    let upstream = problems.take(&at("upstream"), address::upstream(&raw.upstream));
    let tls = server_tls(&at("tls"), &raw.tls, problems);
    let (listen, (upstream, https)) = listen.zip(upstream)?;
    if upstream == Address::OriginalDestination {
        if matches!(listen, Address::Unix(_)) {
            problems.error(
                &at("upstream"),
                "a Unix socket has no original destination; listen on a TCP address, or write the server's address",
            );
        }
        if tls.is_some() {
            problems.warn(&at("upstream"), "with `original`, clients do not know that they are redirected: tokometer terminates TLS with its own certificate");
        }
    }
    if raw.mode == Mode::Rewrite && !rewrite.is_any() {
        problems.error(
            &at("mode"),
            "mode `rewrite` has no changes to make; set rewrite.include_usage, rewrite.traceparent or rewrite.request_id, or write `proxy`",
        );
    }
    let upstream_tls = client_tls(&at("upstream_tls"), &raw.upstream_tls, https, &upstream, problems);
    Some(Listener {
        name: raw.name.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| raw.listen.clone()),
        listen,
        upstream,
        tls,
        upstream_tls,
        rewrite: (raw.mode == Mode::Rewrite).then(|| Arc::clone(rewrite) as Arc<dyn Handlers>),
    })
}

fn server_tls(path: &str, raw: &Tls, problems: &mut Problems<'_>) -> Option<ServerTls> {
    let identity = problems.identity(path, ("certificate", &raw.certificate), ("key", &raw.key));
    if raw.client_ca.is_some() && raw.certificate.is_none() && raw.key.is_none() {
        problems.error(
            &format!("{path}.client_ca"),
            format!("client certificates require TLS; set `{path}.certificate` and `{path}.key` too"),
        );
    }
    let (certificate, key) = identity?;
    Some(ServerTls { certificate, key, client_ca: raw.client_ca.as_ref().map(Into::into) })
}

fn client_tls(
    path: &str,
    raw: &UpstreamTls,
    https: bool,
    upstream: &Address,
    problems: &mut Problems<'_>,
) -> Option<ClientTls> {
    let identity = problems.identity(path, ("certificate", &raw.certificate), ("key", &raw.key));
    if !raw.enabled && !https {
        let set = [
            ("ca", raw.ca.is_some()),
            ("server_name", raw.server_name.is_some()),
            ("certificate", identity.is_some()),
            ("insecure", raw.insecure),
        ];
        if let Some((key, _)) = set.iter().find(|(_, set)| *set) {
            problems.error(
                &format!("{path}.{key}"),
                format!("has no effect without TLS towards the server; set `{path}.enabled: true` or write the upstream as https://host:port"),
            );
        }
        return None;
    }
    if raw.server_name.is_none() && !raw.insecure && !matches!(upstream, Address::Tcp { .. }) {
        problems.error(
            &format!("{path}.server_name"),
            "the upstream address has no host name to verify the certificate against; set `server_name`",
        );
    }
    if raw.insecure {
        problems.warn(&format!("{path}.insecure"), "any certificate is accepted from the server");
        if raw.ca.is_some() {
            problems.error(
                &format!("{path}.insecure"),
                format!("`insecure` disables the check against `{path}.ca`; remove one of the two"),
            );
        }
    }
    Some(ClientTls {
        ca: raw.ca.as_ref().map(Into::into),
        server_name: raw.server_name.clone(),
        identity,
        insecure: raw.insecure,
    })
}

/// Follows each upstream through other listeners, and reports upstreams that lead back to their own listener.
fn report_loops(listeners: &[(usize, Listener)], problems: &mut Problems<'_>) {
    let next = |from: &Listener| listeners.iter().position(|(_, to)| address::reaches(&from.upstream, &to.listen));
    for (start, (index, listener)) in listeners.iter().enumerate() {
        let mut at = next(listener);
        for _ in 0..listeners.len() {
            match at {
                Some(place) if place == start => {
                    let message = if next(listener) == Some(start) {
                        "this is tokometer's own listen address, so requests would loop; write the server's address"
                    } else {
                        "this leads through other listeners back to this listen address; write the server's address"
                    };
                    problems.error(&format!("listeners[{index}].upstream"), message);
                    break;
                }
                Some(place) => at = listeners.get(place).and_then(|(_, listener)| next(listener)),
                None => break,
            }
        }
    }
}

pub(super) fn scrape(
    raw: &Raw,
    listeners: &[Listener],
    engine: Option<Engine>,
    problems: &mut Problems<'_>,
) -> scrape::Settings {
    // Captured ports have no scrape settings of their own, only those of the block `scrape`.
    let of_ports = raw.tap.ports.iter().map(|_| ListenerScrape::default());
    let own: Vec<ListenerScrape> = match raw.tap.ports.is_empty() {
        true => raw.listeners.iter().map(|listener| listener.scrape.clone()).collect(),
        false => of_ports.collect(),
    };
    let targets = own.iter().enumerate().map(|(index, own)| {
        let upstream = listeners.get(index).map(|listener| &listener.upstream);
        target(raw, index, own, upstream, engine, problems)
    });
    let mut targets: Vec<Option<Target>> = targets.collect();
    let servers = servers(listeners);
    // A server is scraped if at least one of its listeners enables scraping.
    for (listener, server) in servers.iter().enumerate().filter(|(listener, server)| listener != *server) {
        let own = targets.get_mut(listener).and_then(Option::take);
        if let Some(target) = targets.get_mut(*server) {
            *target = target.take().or(own);
        }
    }
    scrape::Settings { targets, servers, ..raw.scrape.clone() }
}

fn target(
    raw: &Raw,
    index: usize,
    own: &ListenerScrape,
    upstream: Option<&Address>,
    engine: Option<Engine>,
    problems: &mut Problems<'_>,
) -> Option<Target> {
    let all = &raw.scrape;
    let at = |is_own: bool, key: &str| {
        if is_own { format!("listeners[{index}].scrape.{key}") } else { format!("scrape.{key}") }
    };
    let enabled = own.enabled.or(all.enabled);
    let path = own.path.as_ref().or(all.path.as_ref());
    let path_at = at(own.path.is_some(), "path");
    if let Some(path) = path {
        check_path(path, &path_at, engine, problems);
    }
    let port = own.port_number.or(all.port_number);
    if matches!(upstream, Some(Address::Unix(_))) && port.is_some() {
        problems.error(
            &at(own.port_number.is_some(), "port_number"),
            "the upstream is a Unix socket, which has no port; remove this key, or set `scrape.enabled: false` for this listener",
        );
    }
    if upstream == Some(&Address::OriginalDestination) {
        if enabled == Some(true) {
            problems.error(
                &at(own.enabled.is_some(), "enabled"),
                "with `original` the server's address is unknown, so its metrics cannot be scraped; write the server's address as the upstream, or remove this key",
            );
        }
        return None;
    }
    let page = engine.filter(|_| path.is_none()).map(|engine| engine.info().page);
    if enabled == Some(false) || page.is_some_and(|page| page.is_none()) {
        return None;
    }
    let own_port = page.flatten().and_then(|page| page.port);
    let port = port.or(own_port.filter(|_| matches!(upstream, Some(Address::Tcp { .. }))));
    Some(Target { path: path.cloned(), port, engine, draining: enabled == Some(true) })
}

fn check_path(path: &str, at: &str, engine: Option<Engine>, problems: &mut Problems<'_>) {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
    if !path.starts_with('/') || !path.bytes().all(plain) {
        problems.error(at, format!("invalid path `{path}`; it must start with `/`, such as /metrics"));
    } else if engine == Some(Engine::TensorrtLlm) && path.trim_end_matches('/') == "/metrics" {
        problems.error(
            at,
            "scraping TensorRT-LLM's /metrics removes its values for other scrapers; write /prometheus/metrics, or null",
        );
    }
}

/// Checks the block `engine_spans`; `None` if the receiver is off. `admin` is the admin server's address.
pub(super) fn engine_spans(
    all: &Raw,
    listeners: &[Listener],
    admin: Option<SocketAddr>,
    traces: &export::Traces,
    problems: &mut Problems<'_>,
) -> Option<engine_spans::Settings> {
    let raw: &EngineSpans = &all.engine_spans;
    let mut listen = Vec::new();
    for (index, text) in raw.listen.iter().enumerate() {
        let path = format!("engine_spans.listen[{index}]");
        let Some(address) = problems.take(&path, address::otlp(text)) else { continue };
        let this: Address = address.into();
        let listener = listeners.iter().find(|listener| address::collide(&listener.listen, &this));
        let taken_by = listener.map(|listener| format!("the listener `{}`", listener.name));
        let by_admin = admin.filter(|admin| address::collide(&(*admin).into(), &this));
        if let Some(who) = taken_by.or(by_admin.map(|_| "the admin server".to_owned())) {
            problems.error(&path, in_use(&who, &this, all));
        }
        if listen.iter().any(|earlier: &SocketAddr| address::collide(&(*earlier).into(), &this)) {
            problems.error(&path, "duplicate address; remove one");
        }
        report_span_loop(&path, address, traces, problems);
        if !address.ip().is_loopback() {
            problems.warn(
                &path,
                "anyone who can reach this address can send spans; use 127.0.0.1 for an engine in the same pod",
            );
        }
        listen.push(address);
    }
    let on = !listen.is_empty();
    on.then_some(engine_spans::Settings { listen, wait: raw.wait.0, ..engine_spans::Settings::default() })
}

/// Reports a configuration with which tokometer would forward the engine's spans to itself.
fn report_span_loop(path: &str, address: SocketAddr, traces: &export::Traces, problems: &mut Problems<'_>) {
    let target = traces.endpoint.as_ref().and_then(|endpoint| endpoint.url.parse::<http::Uri>().ok());
    let target = target.and_then(|uri| {
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        Some(Address::Tcp { host: uri.host()?.to_owned(), port: uri.port_u16().unwrap_or(default) })
    });
    if target.is_some_and(|target| address.port() != 0 && address::reaches(&target, &address.into())) {
        problems.error(
            path,
            "spans are forwarded to `otlp.traces`, which is this address; set `otlp.traces` to the collector, or write another port here",
        );
    }
}
