//! Tests finding the servers of a capture whose ports are not known.

use std::net::SocketAddr;

use crate::tests::packets::{ACK, SYN, Tcp};
use crate::tests::talk::{GET, Talk};
use crate::{Evidence, Link, Servers};

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
    let segments =
        [talk.client_segment(SYN, b""), talk.server_segment(SYN | ACK, b""), talk.server_segment(ACK, GET.as_bytes())];
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
