//! Tests whether clients can bypass the proxy: connects to the server's known port and closes the connection without
//! sending a request.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::direct::DirectClients;
use crate::listen::probe::reach::Probe;
use crate::listen::settings::Address;
use crate::relay::Unreached;

/// An arbitrary loopback address to which no server binds explicitly. A server that accepts connections on it listens on
/// all addresses.
const OTHER_LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 219, 83, 57));

/// How a listener intercepts traffic to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interception {
    /// `address_split`, `shadow_bind`, `other_port`, `uds`, `redirect`, or `remote` for a server on another machine.
    pub mode: &'static str,
    /// `open`: clients can bypass tokometer, because the server accepts connections on its known port at one of
    /// tokometer's listen addresses. `bypassed`: another process is connected to the server, for example a proxy in the
    /// same pod. `closed`: neither is the case. `unknown`: this cannot be tested.
    pub result: &'static str,
}

/// Tests the listener at `listen`. `all`: the addresses of all listeners; `open`: the addresses that tokometer listens
/// on now; `direct`: what was found about other clients of the server before. Returns `None` while the server does not
/// respond.
pub fn intercepts(
    listen: &Address,
    probe: &Probe,
    all: &[Address],
    open: &[Address],
    direct: &mut DirectClients,
) -> Option<Interception> {
    let unknown = |mode| Some(Interception { mode, result: "unknown" });
    let (host, port) = match probe.upstream() {
        Address::Unix(_) => return unknown("uds"),
        // Redirected clients come from outside the pod, which cannot be tested from inside.
        Address::OriginalDestination => return unknown("redirect"),
        Address::Tcp { host, port } => (host.as_str(), *port),
    };
    let server = match host {
        "localhost" => IpAddr::from([127, 0, 0, 1]),
        host => match host.parse::<IpAddr>() {
            Ok(ip) if ip.is_loopback() => ip,
            _ => return unknown("remote"),
        },
    };
    // A server whose TLS handshake fails listens too.
    let accepts_connections = |ip: IpAddr, port: u16| {
        probe.connect(SocketAddr::new(ip, port)).map_or_else(|error| Unreached::of(&error) == Unreached::Tls, |()| true)
    };
    if !accepts_connections(server, port) {
        return None;
    }
    let mode = match listen {
        Address::Tcp { port: same, .. } if *same == port && accepts_connections(OTHER_LOOPBACK, port) => "shadow_bind",
        Address::Tcp { port: same, .. } if *same == port => "address_split",
        _ => "other_port",
    };
    let bypassed = direct.look(port, Instant::now());
    let own: Vec<IpAddr> = all.iter().filter_map(|address| specific(address).map(|(ip, _)| ip)).collect();
    // At the addresses that tokometer listens on, tokometer itself would respond.
    let ours = |ip: IpAddr| open.iter().any(|address| specific(address) == Some((ip, port)));
    let result = match own.iter().any(|&ip| !ours(ip) && accepts_connections(ip, port)) {
        true => "open",
        false if bypassed == Some(true) => "bypassed",
        false if own.is_empty() || bypassed.is_none() => "unknown",
        false => "closed",
    };
    Some(Interception { mode, result })
}

/// An address reachable from other machines: neither loopback nor unspecified.
fn specific(address: &Address) -> Option<(IpAddr, u16)> {
    let Address::Tcp { host, port } = address else { return None };
    let ip: IpAddr = host.parse().ok()?;
    (!ip.is_loopback() && !ip.is_unspecified()).then_some((ip, *port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    fn tcp(host: IpAddr, port: u16) -> Address {
        Address::from(SocketAddr::new(host, port))
    }

    /// This machine's source address for packets to other machines; `None` if it has only loopback addresses.
    fn own() -> Option<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        // Connecting a UDP socket sends no packet; 192.0.2.1 is a documentation address (RFC 5737).
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
    }

    #[test]
    fn untestable_upstream_is_unknown_and_a_stopped_server_is_none() {
        let listen = tcp(IpAddr::from([127, 0, 0, 1]), 1);
        let of = |upstream: &Address| {
            let probe = Probe::plain(upstream.clone());
            intercepts(&listen, &probe, std::slice::from_ref(&listen), &[], &mut DirectClients::default())
        };
        let unknown = |mode| Some(Interception { mode, result: "unknown" });
        assert_eq!(of(&Address::Unix("/no".into())), unknown("uds"));
        assert_eq!(of(&Address::OriginalDestination), unknown("redirect"));
        assert_eq!(of(&tcp(IpAddr::from([192, 0, 2, 1]), 80)), unknown("remote"));
        // Bound, so that no other test gets its port, but not listening.
        let down = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        down.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let port = down.local_addr().unwrap().as_socket().unwrap().port();
        assert_eq!(of(&tcp(IpAddr::from([127, 0, 0, 1]), port)), None);
    }

    #[test]
    fn mode_follows_the_address_the_server_listens_on() {
        let of = |server: &str, same: bool| {
            let server = TcpListener::bind(server).unwrap();
            let port = server.local_addr().unwrap().port();
            let listen = tcp(IpAddr::from([127, 0, 0, 3]), if same { port } else { 1 });
            let all = std::slice::from_ref(&listen);
            let probe = Probe::plain(tcp(IpAddr::from([127, 0, 0, 1]), port));
            intercepts(&listen, &probe, all, all, &mut DirectClients::default()).unwrap().mode
        };
        assert_eq!(of("127.0.0.1:0", true), "address_split");
        assert_eq!(of("0.0.0.0:0", true), "shadow_bind");
        assert_eq!(of("127.0.0.1:0", false), "other_port");
    }

    #[test]
    fn server_on_all_addresses_is_open_except_at_own_listeners() {
        // A machine without any network has no address at which clients could bypass tokometer.
        let Some(own) = own() else { return };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let when = |server: &str, at: u16, listens: bool| {
            let server = TcpListener::bind(server).unwrap();
            let port = server.local_addr().unwrap().port();
            let all = [tcp(own, if at == 0 { port } else { at })];
            let open: &[Address] = if listens { &all } else { &[] };
            let probe = Probe::plain(tcp(loopback, port));
            intercepts(&all[0], &probe, &all, open, &mut DirectClients::default()).unwrap()
        };
        let of = |server: &str, at: u16| when(server, at, true);
        assert_eq!(of("0.0.0.0:0", 1), Interception { mode: "other_port", result: "open" });
        assert_eq!(of("127.0.0.1:0", 1), Interception { mode: "other_port", result: "closed" });
        assert_eq!(of("0.0.0.0:0", 0), Interception { mode: "shadow_bind", result: "closed" });
        assert_eq!(of("127.0.0.1:0", 0), Interception { mode: "address_split", result: "closed" });
        // tokometer does not listen, so clients reach the server at tokometer's address.
        assert_eq!(when("0.0.0.0:0", 0, false), Interception { mode: "shadow_bind", result: "open" });
    }
}
