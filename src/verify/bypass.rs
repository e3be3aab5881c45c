//! Whether the server can be reached past the relay, where others can.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::time::Duration;

use crate::client::Caller;
use crate::verify::canary;
use crate::verify::counted;
use crate::verify::engine::Engine;
use crate::verify::mask::Hide;
use crate::verify::mask::masked;
use crate::verify::own_addresses::own_addresses;
use crate::verify::report::Check;
use crate::verify::report::Grade;
use crate::verify::settings::CheckName;
use crate::verify::settings::Settings;

/// Longest that an address of this host is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who answers at an address of this host on the server's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nobody,
    /// The server itself.
    Server,
    /// The relay, which may listen on the same port of another address.
    Relay,
    /// The server or the relay: nothing tells which.
    Either,
    /// Something with another list of models.
    Other,
}

/// Looks for the server at this host's addresses. `models` is the body of its list of models.
pub(super) fn check(settings: &Settings, admin: &mut Caller, engine: Engine, models: &[u8]) -> Check {
    let made = |grade, said: String| Check::new(CheckName::Bypass, grade, said);
    let own = settings.own_addresses.clone().unwrap_or_else(own_addresses);
    let port = settings.upstream.port();
    let host: Vec<IpAddr> = settings.upstream.addresses().unwrap_or_default().iter().map(SocketAddr::ip).collect();
    if let Some(elsewhere) = host.iter().find(|address| !address.is_loopback() && !own.contains(address)) {
        return made(
            Grade::Note,
            format!(
                "the server is at {elsewhere}, which is not this host: whoever reaches it there can bypass the relay"
            ),
        )
        .mend("run this beside the server, against 127.0.0.1; let a NetworkPolicy or firewall admit the relay alone");
    }
    if own.is_empty() {
        return made(Grade::Unknown, "no address of this host was found but loopback".to_owned());
    }
    let found: Vec<(IpAddr, Found)> =
        own.iter().map(|address| (*address, at(settings, admin, SocketAddr::new(*address, port), models))).collect();
    let which = |wanted: Found| -> Vec<String> {
        let those = found.iter().filter(|(_, found)| *found == wanted);
        those.map(|(address, _)| SocketAddr::new(*address, port).to_string()).collect()
    };
    let (server, either, other) = (which(Found::Server), which(Found::Either), which(Found::Other));
    if !server.is_empty() {
        return made(Grade::Wrong, format!("the server answers at {} too, past the relay", server.join(", ")))
            .mend(format!("{}, so that the relay alone reaches it", engine.mend_bypass()));
    }
    if !either.is_empty() {
        let said = format!(
            "{} answers, and without the admin server it cannot be told whether that is the relay",
            either.join(", ")
        );
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
    // What the relay accepts, it counts.
    match (before, counted::look(settings, admin)) {
        (Ok(before), Ok(after)) if after.since(&before).connections > 0.0 => Found::Relay,
        (Ok(_), Ok(_)) => Found::Server,
        _ => Found::Either,
    }
}
