//! Whether clients can bypass the proxy and reach the server directly.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::time::Duration;

use crate::client::Caller;
use crate::verify::canary;
use crate::verify::counted;
use crate::verify::mask::Hide;
use crate::verify::mask::masked;
use crate::verify::own_addresses::own_addresses;
use crate::verify::report::Check;
use crate::verify::report::Grade;
use crate::verify::settings::CheckName;
use crate::verify::settings::Settings;
use tokometer_decode::engine::Advice;

/// Timeout of a request to one of this host's addresses.
const PATIENCE: Duration = Duration::from_secs(2);

/// What answers at an address of this host on the server's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nobody,
    /// The server itself.
    Server,
    /// The proxy, which may listen on the same port of another address.
    Relay,
    /// The server or the proxy; undecidable without the admin server.
    Either,
    /// Something with a different model list.
    Other,
}

/// Looks for the server at this host's addresses. `models` is the body of its model list.
pub(super) fn check(settings: &Settings, admin: &mut Caller, advice: Advice, models: &[u8]) -> Check {
    let made = |grade, said: String| Check::new(CheckName::Bypass, grade, said);
    let own = settings.own_addresses.clone().unwrap_or_else(own_addresses);
    let port = settings.upstream.port();
    let host: Vec<IpAddr> = settings.upstream.addresses().unwrap_or_default().iter().map(SocketAddr::ip).collect();
    if let Some(elsewhere) = host.iter().find(|address| !address.is_loopback() && !own.contains(address)) {
        return made(
            Grade::Note,
            format!("the server is at {elsewhere}, not this host: clients that can reach it there bypass the proxy"),
        )
        .mend(
            "run this on the server's host, against 127.0.0.1; let a NetworkPolicy or firewall admit only the proxy",
        );
    }
    if own.is_empty() {
        return made(Grade::Unknown, "no non-loopback address of this host was found".to_owned());
    }
    let found: Vec<(IpAddr, Found)> =
        own.iter().map(|address| (*address, at(settings, admin, SocketAddr::new(*address, port), models))).collect();
    let which = |wanted: Found| -> Vec<String> {
        let those = found.iter().filter(|(_, found)| *found == wanted);
        those.map(|(address, _)| SocketAddr::new(*address, port).to_string()).collect()
    };
    let (server, either, other) = (which(Found::Server), which(Found::Either), which(Found::Other));
    if !server.is_empty() {
        return made(Grade::Wrong, format!("the server also answers at {}, bypassing the proxy", server.join(", ")))
            .mend(format!("{}, so that only the proxy can reach it", advice.bypass));
    }
    if !either.is_empty() {
        let said =
            format!("{} answers; without the admin server it is unknown whether that is the proxy", either.join(", "));
        return made(Grade::Unknown, said).mend("give --admin http://HOST:PORT");
    }
    let tried: Vec<String> = own.iter().map(|address| SocketAddr::new(*address, port).to_string()).collect();
    let others = match other.is_empty() {
        true => String::new(),
        false => format!("; something else answers at {}", other.join(", ")),
    };
    made(
        Grade::Good,
        format!("the server answers at no other address of this host ({} tried){others}", tried.join(", ")),
    )
}

fn at(settings: &Settings, admin: &mut Caller, address: SocketAddr, models: &[u8]) -> Found {
    let mut caller = Caller::at(address, &settings.upstream, PATIENCE);
    let before = counted::look(settings, admin);
    let request = canary::get(settings, &settings.upstream, "/v1/models", "*/*");
    let Ok(answer) = caller.ask(&request) else { return Found::Nobody };
    if masked(&answer.body(), Hide::Momentary) != masked(models, Hide::Momentary) {
        return Found::Other;
    }
    if settings.relay.port() != settings.upstream.port() {
        return Found::Server;
    }
    // The proxy counts every connection it accepts.
    match (before, counted::look(settings, admin)) {
        (Ok(before), Ok(after)) if after.since(&before).connections > 0.0 => Found::Relay,
        (Ok(_), Ok(_)) => Found::Server,
        _ => Found::Either,
    }
}
