//! Whether clients can bypass the proxy and reach the server directly.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;

use crate::client::Caller;
use crate::verify::counted::CONNECTIONS;
use crate::verify::mask::{Hide, masked};
use crate::verify::report::{Check, Grade};
use crate::verify::settings::{CheckName, Settings};
use crate::verify::{canary, counted};
use tokometer_decode::engine::Advice;

/// Timeout of a request to one of this host's addresses.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What responds at an address of this host on the server's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The server itself.
    Server,
    /// The proxy, which may listen on the same port of another address.
    Relay,
    /// The server or the proxy; undecidable without the admin server.
    Either,
    /// Another server, with a different model list.
    Other,
}

/// Checks whether the server responds at other addresses of this host. `models` is the body of the server's model list.
pub(super) fn check(settings: &Settings, admin: &mut Caller, advice: Advice, models: &[u8]) -> Check {
    let made = |grade, detail: String| Check::new(CheckName::Bypass, grade, detail);
    let own = settings.own_addresses.clone().unwrap_or_else(own_addresses);
    let mut host = settings.upstream.addresses().unwrap_or_default().into_iter().map(|at| at.ip().to_canonical());
    if let Some(elsewhere) = host.find(|address| !address.is_loopback() && !own.contains(address)) {
        let detail = "not this host: clients that can reach it there bypass the proxy";
        return made(Grade::Warn, format!("the server is at {elsewhere}, {detail}")).fix(
            "run verify on the server's host, against 127.0.0.1; allow only the proxy in a NetworkPolicy or firewall",
        );
    }
    if own.is_empty() {
        return made(Grade::Unknown, "no non-loopback address of this host was found".to_owned());
    }
    let addresses = own.iter().map(|address| SocketAddr::new(*address, settings.upstream.port()));
    let found: Vec<_> = addresses.map(|address| (at(settings, admin, address, models), address.to_string())).collect();
    let list = |wanted: Found| {
        let found: Vec<&str> = found.iter().filter(|(found, _)| *found == wanted).map(|(_, at)| at.as_str()).collect();
        (!found.is_empty()).then(|| found.join(", "))
    };
    if let Some(server) = list(Found::Server) {
        return made(Grade::Fail, format!("the server also responds at {server}, bypassing the proxy"))
            .fix(format!("{}, so that only the proxy can reach it", advice.bypass));
    }
    if let Some(either) = list(Found::Either) {
        let detail = format!("{either} responds; without the admin server it is unknown whether that is the proxy");
        return made(Grade::Unknown, detail).fix("set --admin http://HOST:PORT");
    }
    let tried = [Found::Nothing, Found::Relay, Found::Other].into_iter().filter_map(list);
    let tried = tried.collect::<Vec<String>>().join(", ");
    let other = list(Found::Other).map(|other| format!("; something else responds at {other}")).unwrap_or_default();
    made(Grade::Pass, format!("the server responds at no other address of this host ({tried} tried){other}"))
}

fn at(settings: &Settings, admin: &mut Caller, address: SocketAddr, models: &[u8]) -> Found {
    let port = settings.upstream.port();
    let before = counted::scrape(admin, port);
    let request = canary::get(settings, &settings.upstream, "/v1/models");
    let Ok(response) = Caller::at(address, &settings.upstream, TIMEOUT).ask(&request) else { return Found::Nothing };
    if masked(response.body(), Hide::Varying) != masked(models, Hide::Varying) {
        return Found::Other;
    }
    if settings.relay.port() != port {
        return Found::Server;
    }
    // The proxy counts every connection that it accepts: if the count has increased, the proxy has responded.
    match (before, counted::scrape(admin, port)) {
        (Ok(before), Ok(after)) if after.since(&before).total(CONNECTIONS) > 0.0 => Found::Relay,
        (Ok(_), Ok(_)) => Found::Server,
        _ => Found::Either,
    }
}

/// Every address of this host except loopback and link-local ones.
fn own_addresses() -> Vec<IpAddr> {
    let addresses = getifaddrs().into_iter().flatten().filter_map(|interface| interface.address);
    let v4_or_v6 = addresses.filter_map(|address| {
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    });
    let mut found: Vec<IpAddr> = v4_or_v6.filter(|address| !address.is_loopback() && !is_link_local(address)).collect();
    found.sort();
    found.dedup();
    found
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_exclude_loopback_and_link_local_ones() {
        assert!(own_addresses().iter().all(|address| !address.is_loopback() && !is_link_local(address)));
        for (address, expected) in
            [("169.254.1.1", true), ("172.17.0.2", false), ("fe80::1", true), ("2001:db8::2", false)]
        {
            assert_eq!(is_link_local(&address.parse().unwrap()), expected, "{address}");
        }
    }
}
