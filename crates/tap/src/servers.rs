//! The servers of a capture; finds them if their ports are not known.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use crate::flow::synchronise::{begins_request, tls_handshake};
use crate::packet::Packet;
use crate::segment::{Endpoint, Segment, parse};

/// First bytes of an HTTP/2 client (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// First bytes of an HTTP/1 response.
const RESPONSE: &[u8] = b"HTTP/1.";

/// Handshake messages of TLS (RFC 8446, section 4): of a client, and of a server.
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;

/// A server's TCP port, which determines the direction of each segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// The server's address; `None` for any.
    pub address: Option<IpAddr>,
    /// The server's port.
    pub port: u16,
    /// Index of the listener under which the server's requests are reported.
    pub listener: usize,
}

/// Evidence that an endpoint is a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// The endpoint accepted a connection whose payload was not recognized.
    Handshake,
    /// The endpoint received a TLS ClientHello or sent a ServerHello.
    Tls,
    /// The endpoint received an HTTP request or sent an HTTP response.
    Http,
}

/// Finds the servers in the packets of a capture. If the handshake was captured, the server is the endpoint that
/// received it. In a connection already in progress, the server is the endpoint that receives an HTTP request or sends
/// an HTTP response.
#[derive(Debug, Default)]
pub struct Servers {
    /// The server of each connection whose handshake was captured, by the connection's sorted endpoints.
    accepted: HashMap<[Endpoint; 2], Endpoint>,
    found: BTreeMap<Endpoint, Evidence>,
}

impl Servers {
    /// Processes one packet.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        let Ok(segment) = parse(packet) else { return };
        let Segment { source, destination, .. } = segment;
        let ends = [source.min(destination), source.max(destination)];
        if segment.syn() {
            let server = if segment.opens() { destination } else { source };
            self.accepted.insert(ends, server);
            if !segment.opens() {
                self.add(server, Evidence::Handshake);
            }
        }
        if let Some((from_client, evidence)) = recognise(segment.payload) {
            // The handshake takes precedence, because a segment of a response may begin like a request.
            let by_content = if from_client { destination } else { source };
            self.add(self.accepted.get(&ends).copied().unwrap_or(by_content), evidence);
        }
    }

    fn add(&mut self, server: Endpoint, evidence: Evidence) {
        let known = self.found.entry(server).or_insert(evidence);
        *known = evidence.max(*known);
    }

    /// The servers found: endpoints with HTTP or TLS; if there are none, all endpoints that accepted a connection.
    pub fn found(&self) -> Vec<(SocketAddr, Evidence)> {
        let is_known = |evidence: &Evidence| *evidence != Evidence::Handshake;
        let any_known = self.found.values().any(is_known);
        let found = self.found.iter().filter(|(_, evidence)| !any_known || is_known(evidence));
        found.map(|(server, evidence)| (server.socket_address(), *evidence)).collect()
    }
}

/// Whether a client sent this payload, and the evidence in it; `None` if the payload is not recognized.
fn recognise(payload: &[u8]) -> Option<(bool, Evidence)> {
    if begins_request(payload) || payload.starts_with(HTTP2_PREFACE) {
        return Some((true, Evidence::Http));
    }
    if payload.starts_with(RESPONSE) {
        return Some((false, Evidence::Http));
    }
    match tls_handshake(payload)? {
        CLIENT_HELLO => Some((true, Evidence::Tls)),
        SERVER_HELLO => Some((false, Evidence::Tls)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Link;
    use crate::tests::packets::{ACK, SYN, Tcp};
    use crate::tests::talk::{GET, Talk};

    const HELLO: [u8; 6] = [22, 3, 1, 0, 200, 1];
    const SERVER_HELLO: [u8; 6] = [22, 3, 3, 0, 90, 2];

    /// The servers found in these segments.
    fn found(segments: &[Tcp]) -> Vec<(SocketAddr, Evidence)> {
        let mut servers = Servers::default();
        segments.iter().for_each(|segment| servers.packet(&segment.packet(Link::Ethernet).as_packet()));
        servers.found()
    }

    #[test]
    fn content_shows_the_server_of_a_connection_in_progress() {
        let mut talk = Talk::new();
        let server = talk.server;
        for (from_client, bytes, evidence) in [
            (true, GET.as_bytes(), Evidence::Http),
            (true, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Evidence::Http),
            (false, b"HTTP/1.1 200 OK\r\n", Evidence::Http),
            (true, &HELLO, Evidence::Tls),
            (false, &SERVER_HELLO, Evidence::Tls),
        ] {
            let segment = if from_client { talk.client_segment(ACK, bytes) } else { talk.server_segment(ACK, bytes) };
            assert_eq!(found(&[segment]), [(server, evidence)], "{bytes:?}");
        }
        let segment = talk.server_segment(ACK, b"data: {}\n\n");
        assert_eq!(found(&[segment]), []);
    }

    #[test]
    fn handshake_prevails_over_content() {
        let mut talk = Talk::new();
        let segments = [
            talk.client_segment(SYN, b""),
            talk.server_segment(SYN | ACK, b""),
            talk.server_segment(ACK, GET.as_bytes()),
        ];
        assert_eq!(found(&segments), [(talk.server, Evidence::Http)]);
        // A handshake alone is enough if nothing else is known.
        assert_eq!(found(&segments[..2]), [(talk.server, Evidence::Handshake)]);
        assert_eq!(found(&segments[..1]), [], "nothing accepted the connection");
    }

    #[test]
    fn servers_of_other_protocols_are_left_out() {
        let mut talk = Talk::new();
        let other: SocketAddr = ([10, 0, 0, 2], 5432).into();
        let accepted = Tcp { from: other, ..talk.server_segment(SYN | ACK, b"") };
        let segments = [accepted, talk.client_segment(ACK, GET.as_bytes())];
        assert_eq!(found(&segments), [(talk.server, Evidence::Http)]);
    }
}
