//! The block `queue`: the receiver of the engine's spans.

use std::net::SocketAddr;
use std::time::Duration;

use crate::config::address;
use crate::config::checked::Problems;
use crate::config::checked::pairs::other_port;
use crate::config::checked::size;
use crate::config::raw;
use tokometer_engine::engine_spans;
use tokometer_proxy::listen::Address;
use tokometer_proxy::listen::Pair;
use tokometer_telemetry::export;

/// Checks the block; `None` if the receiver is off. `admin` is the admin server's address.
pub(super) fn checked(
    raw: &raw::Queue,
    pairs: &[Pair],
    admin: Option<SocketAddr>,
    traces: &export::Traces,
    problems: &mut Problems<'_>,
) -> Option<engine_spans::Settings> {
    let mut listen = Vec::new();
    for (index, text) in raw.otlp_listen.iter().enumerate() {
        let path = format!("queue.otlp_listen[{index}]");
        let Some(address) = problems.take(&path, address::otlp(text)) else { continue };
        keep_clear(&path, address, &listen, pairs, admin, problems);
        keep_from_itself(&path, address, traces, problems);
        if !address.ip().is_loopback() {
            problems.warn(
                &path,
                "anyone who can reach this address can send spans; use 127.0.0.1 for an engine in the same pod",
            );
        }
        listen.push(address);
    }
    (!listen.is_empty()).then(|| engine_spans::Settings {
        listen,
        max_message_bytes: size(raw.max_message_bytes),
        max_waiting_bytes: size(raw.max_waiting_bytes),
        max_connections: size(raw.max_connections),
        read_timeout: Duration::from_millis(raw.read_timeout_ms),
        forward_for: Duration::from_secs(raw.forward_secs),
        wait: Duration::from_millis(raw.wait_ms),
        max_held: size(raw.max_held),
    })
}

/// Reports addresses that are already in use.
fn keep_clear(
    path: &str,
    address: SocketAddr,
    earlier: &[SocketAddr],
    pairs: &[Pair],
    admin: Option<SocketAddr>,
    problems: &mut Problems<'_>,
) {
    let this: Address = address.into();
    let taken = |other: SocketAddr| address::collide(&this, &other.into());
    let other = other_port(&this, 4317);
    if let Some(pair) = pairs.iter().find(|pair| address::collide(&pair.listen, &this)) {
        let message =
            format!("the listener `{}` already uses this address; write another port, such as {other}", pair.name);
        problems.error(path, message);
    }
    if admin.is_some_and(taken) {
        problems
            .error(path, format!("the admin server already uses this address; write another port, such as {other}"));
    }
    if earlier.iter().any(|other| taken(*other)) {
        problems.error(path, "duplicate address; remove one");
    }
}

/// Reports a loop: tokometer would forward the spans to itself.
fn keep_from_itself(path: &str, address: SocketAddr, traces: &export::Traces, problems: &mut Problems<'_>) {
    let target = traces.endpoint.as_ref().and_then(|endpoint| endpoint.url.parse::<http::Uri>().ok());
    let target = target.and_then(|uri| {
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        Some(Address::Tcp { host: uri.host()?.to_owned(), port: uri.port_u16().unwrap_or(default) })
    });
    if target.is_some_and(|target| address.port() != 0 && address::reaches(&target, &address.into())) {
        problems.error(
            path,
            "spans are forwarded to `otlp.traces`, which is this address; set that to the collector, or write another port here",
        );
    }
}
