//! Whether clients can bypass the proxy and reach the server directly.

use std::fs;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::net::SocketAddr;
use std::net::UdpSocket;
use std::time::Duration;

use crate::client::Caller;
use crate::verify::canary;
use crate::verify::counted;
use crate::verify::mask::Hide;
use crate::verify::mask::masked;
use crate::verify::report::Check;
use crate::verify::report::Grade;
use crate::verify::settings::CheckName;
use crate::verify::settings::Settings;
use tokometer_decode::engine::Advice;

/// Timeout of a request to one of this host's addresses.
const TIMEOUT: Duration = Duration::from_secs(2);

/// What answers at an address of this host on the server's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
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
    let made = |grade, detail: String| Check::new(CheckName::Bypass, grade, detail);
    let own = settings.own_addresses.clone().unwrap_or_else(own_addresses);
    let port = settings.upstream.port();
    let host: Vec<IpAddr> = settings.upstream.addresses().unwrap_or_default().iter().map(SocketAddr::ip).collect();
    if let Some(elsewhere) = host.iter().find(|address| !address.is_loopback() && !own.contains(address)) {
        return made(
            Grade::Note,
            format!("the server is at {elsewhere}, not this host: clients that can reach it there bypass the proxy"),
        )
        .fix("run this on the server's host, against 127.0.0.1; let a NetworkPolicy or firewall admit only the proxy");
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
            .fix(format!("{}, so that only the proxy can reach it", advice.bypass));
    }
    if !either.is_empty() {
        let detail =
            format!("{} answers; without the admin server it is unknown whether that is the proxy", either.join(", "));
        return made(Grade::Unknown, detail).fix("give --admin http://HOST:PORT");
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
    let mut caller = Caller::at(address, &settings.upstream, TIMEOUT);
    let before = counted::look(settings, admin);
    let request = canary::get(settings, &settings.upstream, "/v1/models", "*/*");
    let Ok(response) = caller.ask(&request) else { return Found::Nothing };
    if masked(&response.body(), Hide::Momentary) != masked(models, Hide::Momentary) {
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

/// Every address of this host except loopback and link-local ones.
fn own_addresses() -> Vec<IpAddr> {
    // Linux only; if these files are missing or hidden, only the address of the default route is found.
    let v4 = fs::read_to_string("/proc/net/fib_trie").map(|trie| local_v4(&trie)).unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").map(|list| global_v6(&list)).unwrap_or_default();
    let mut found: Vec<IpAddr> = v4.into_iter().map(IpAddr::from).chain(v6.into_iter().map(IpAddr::from)).collect();
    found.extend(default_route());
    found.sort();
    found.dedup();
    found
}

/// Source address of the default route. Connecting a UDP socket sends no packet (192.0.2.1 is reserved for
/// documentation).
fn default_route() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// From `/proc/net/fib_trie`: an address is on the line before the one that marks it as local.
fn local_v4(trie: &str) -> Vec<Ipv4Addr> {
    let mut last = None;
    let mut found = Vec::new();
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(last.filter(|address| !address.is_loopback() && !address.is_link_local()));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// From `/proc/net/if_inet6`: 32 hexadecimal digits; the fourth column is the scope, 00 for global.
fn global_v6(list: &str) -> Vec<Ipv6Addr> {
    let address = |line: &str| {
        let mut columns = line.split_ascii_whitespace();
        let digits = columns.next().filter(|digits| digits.len() == 32)?;
        let scope = columns.nth(2)?;
        (scope == "00").then(|| u128::from_str_radix(digits, 16).ok().map(Ipv6Addr::from)).flatten()
    };
    list.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_addresses_are_found_in_proc_net() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     +-- 127.0.0.0/8 2 0 2\n           \
                    |-- 127.0.0.1\n              /32 host LOCAL\n           |-- 127.255.255.255\n              /32 link BROADCAST\n     \
                    |-- 172.17.0.2\n        /32 host LOCAL\nLocal:\n     |-- 172.17.0.2\n        /32 host LOCAL\n     \
                    |-- 169.254.1.1\n        /32 host LOCAL\n";
        assert_eq!(local_v4(trie), [Ipv4Addr::new(172, 17, 0, 2)]);
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe80000000000000004211fffe000002 05 40 20 80     eth0\n\
                    20010db8000000000000000000000002 05 40 00 80     eth0\nrubbish\n";
        assert_eq!(global_v6(list), ["2001:db8::2".parse::<Ipv6Addr>().unwrap()]);
    }

    #[test]
    fn own_addresses_exclude_loopback() {
        assert!(own_addresses().iter().all(|address| !address.is_loopback()));
    }
}
