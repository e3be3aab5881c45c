//! Finds the servers of a capture whose ports are not known.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

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
