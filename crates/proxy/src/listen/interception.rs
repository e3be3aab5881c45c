//! Whether clients can reach the server past us, found out by trying: a connect, closed again without a byte.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::time::Duration;

use crate::listen::settings::Address;

/// A connect on one's own machine takes microseconds, or never ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// A loopback address that reaches only who listens on all of them.
const OTHER_LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 219, 83, 57));

/// How a pair stands between clients and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interception {
    /// `address_split`, `shadow_bind`, `other_port`, `uds`, `redirect`, or `remote` for a server on another machine.
    pub mode: &'static str,
    /// `closed`: not at the port that we know of and the addresses that we listen on; `open`: it answers there; `unknown`.
    pub result: &'static str,
}

/// Looks at a pair that listens on `listen`; `all` are the addresses of every pair. `None` while the server does not answer.
pub fn intercepts(listen: &Address, upstream: &Address, all: &[Address]) -> Option<Interception> {
    let unknown = |mode| Some(Interception { mode, result: "unknown" });
    let (host, port) = match upstream {
        Address::Unix(_) => return unknown("uds"),
        // Those who are redirected come from outside; inside nothing is to be seen of it.
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
    if !answers(server, port) {
        return None;
    }
    let mode = match listen {
        Address::Tcp { port: same, .. } if *same == port && answers(OTHER_LOOPBACK, port) => "shadow_bind",
        Address::Tcp { port: same, .. } if *same == port => "address_split",
        _ => "other_port",
    };
    let own: Vec<IpAddr> = all.iter().filter_map(|address| specific(address).map(|(ip, _)| ip)).collect();
    if own.is_empty() {
        return unknown(mode);
    }
    // Where we listen, it is we who would answer.
    let ours = |ip: IpAddr| all.iter().any(|address| specific(address) == Some((ip, port)));
    let open = own.into_iter().any(|ip| !ours(ip) && answers(ip, port));
    Some(Interception { mode, result: if open { "open" } else { "closed" } })
}

/// An address that others can reach: neither loopback nor all at once.
fn specific(address: &Address) -> Option<(IpAddr, u16)> {
    let Address::Tcp { host, port } = address else { return None };
    let ip: IpAddr = host.parse().ok()?;
    (!ip.is_loopback() && !ip.is_unspecified()).then_some((ip, *port))
}

fn answers(ip: IpAddr, port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::new(ip, port), PATIENCE).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::net::UdpSocket;

    use super::*;

    fn tcp(host: IpAddr, port: u16) -> Address {
        Address::from(SocketAddr::new(host, port))
    }

    /// An address of this machine that is not loopback, if it has one: the one it would send from.
    fn own() -> Option<IpAddr> {
        let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
        // Nothing is sent: 192.0.2.1 is for documentation (RFC 5737).
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
    }

    #[test]
    fn what_cannot_be_tried_is_unknown_and_a_server_that_is_down_is_none() {
        let listen = tcp(IpAddr::from([127, 0, 0, 1]), 1);
        let of = |upstream: &Address| intercepts(&listen, upstream, std::slice::from_ref(&listen));
        let unknown = |mode| Some(Interception { mode, result: "unknown" });
        assert_eq!(of(&Address::Unix("/no".into())), unknown("uds"));
        assert_eq!(of(&Address::OriginalDestination), unknown("redirect"));
        assert_eq!(of(&tcp(IpAddr::from([192, 0, 2, 1]), 80)), unknown("remote"));
        // Bound, so that no other test is given its port, and not listening.
        let down = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        down.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let port = down.local_addr().unwrap().as_socket().unwrap().port();
        assert_eq!(of(&tcp(IpAddr::from([127, 0, 0, 1]), port)), None);
    }

    #[test]
    fn the_mode_is_seen_from_where_the_server_listens() {
        let of = |server: &str, same: bool| {
            let server = TcpListener::bind(server).unwrap();
            let port = server.local_addr().unwrap().port();
            let listen = tcp(IpAddr::from([127, 0, 0, 3]), if same { port } else { 1 });
            intercepts(&listen, &tcp(IpAddr::from([127, 0, 0, 1]), port), std::slice::from_ref(&listen)).unwrap().mode
        };
        assert_eq!(of("127.0.0.1:0", true), "address_split");
        assert_eq!(of("0.0.0.0:0", true), "shadow_bind");
        assert_eq!(of("127.0.0.1:0", false), "other_port");
    }

    #[test]
    fn a_server_on_all_addresses_is_passable_except_where_we_listen() {
        // A machine without any network has nothing to pass by.
        let Some(own) = own() else { return };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let of = |server: &str, at: u16| {
            let server = TcpListener::bind(server).unwrap();
            let port = server.local_addr().unwrap().port();
            let listen = tcp(own, if at == 0 { port } else { at });
            intercepts(&listen, &tcp(loopback, port), std::slice::from_ref(&listen)).unwrap()
        };
        assert_eq!(of("0.0.0.0:0", 1), Interception { mode: "other_port", result: "open" });
        assert_eq!(of("127.0.0.1:0", 1), Interception { mode: "other_port", result: "closed" });
        assert_eq!(of("0.0.0.0:0", 0), Interception { mode: "shadow_bind", result: "closed" });
        assert_eq!(of("127.0.0.1:0", 0), Interception { mode: "address_split", result: "closed" });
    }
}
