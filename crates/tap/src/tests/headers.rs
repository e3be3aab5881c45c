//! Headers in front of TCP.

use std::net::SocketAddr;

use tokometer_observe::input::Direction;

use crate::segment::{NoSegment, parse};
use crate::tests::packets::{ACK, Tcp, framed, ipv4, ipv6};
use crate::tests::talk::Talk;
use crate::{Link, OwnedPacket};

const LINKS: [Link; 5] = [Link::Ethernet, Link::Cooked, Link::Cooked2, Link::RawIp, Link::Null];

fn owned(link: Link, bytes: Vec<u8>) -> OwnedPacket {
    OwnedPacket { link, original_len: bytes.len(), bytes, at: std::time::Duration::ZERO, outgoing: None }
}

/// A segment from a client to a server, with IPv6 addresses if `v6`.
fn tcp(v6: bool, payload: &[u8]) -> Tcp {
    let mut talk = Talk::new();
    if v6 {
        talk.client = "[2001:db8::1]:40000".parse().unwrap();
        talk.server = "[2001:db8::2]:8000".parse().unwrap();
    }
    talk.client_segment(ACK, payload)
}

fn payload(packet: &OwnedPacket) -> Result<(Vec<u8>, u32), NoSegment> {
    parse(&packet.as_packet()).map(|segment| (segment.payload.to_vec(), segment.len))
}

#[test]
fn segments_are_found_behind_all_link_layers() {
    for link in LINKS {
        for v6 in [false, true] {
            let tcp = tcp(v6, b"abc");
            let packet = tcp.packet(link);
            let packet = packet.as_packet();
            let segment = parse(&packet).unwrap();
            assert_eq!(segment.payload, b"abc", "{link:?} {v6}");
            assert_eq!((segment.sequence, segment.acknowledged, segment.window), (tcp.seq, Some(tcp.ack), tcp.window));
            assert_eq!([segment.source, segment.destination].map(|end| end.socket_address()), [tcp.from, tcp.to]);
        }
    }
}

#[test]
fn whole_connections_work_on_all_link_layers() {
    for link in LINKS {
        let mut talk = Talk::new();
        talk.link = link;
        talk.client = "[2001:db8::1]:40000".parse().unwrap();
        talk.server = "[2001:db8::2]:8000".parse().unwrap();
        talk.open().c("a").s("b").c_fin().s_fin();
        assert_eq!((talk.calls().len(), talk.tap.stats().malformed.get()), (5, 0), "{link:?}");
    }
}

#[test]
fn padding_and_vlan_tags_are_removed() {
    let tcp = tcp(false, b"ab");
    let mut packet = tcp.packet(Link::Ethernet);
    packet.bytes.extend([0; 9]);
    packet.original_len += 9;
    assert_eq!(payload(&packet), Ok((b"ab".to_vec(), 2)));
    for tags in 1..=5_usize {
        let mut packet = tcp.packet(Link::Ethernet);
        let tag = |n: usize| [[0x81, 0], [0x88, 0xa8], [0x91, 0]][n % 3];
        let all: Vec<u8> = (0..tags).flat_map(|n| [tag(n)[0], tag(n)[1], 0, 5]).collect();
        packet.bytes.splice(12..12, all);
        let expected = if tags < 5 { Ok((b"ab".to_vec(), 2)) } else { Err(NoSegment::Other) };
        assert_eq!(payload(&owned(Link::Ethernet, packet.bytes)), expected, "{tags}");
    }
}

#[test]
fn packets_before_segmentation_may_exceed_64_kib() {
    for v6 in [false, true] {
        for len in [65_000, 200_000] {
            assert_eq!(payload(&tcp(v6, &vec![b'x'; len]).packet(Link::Ethernet)), Ok((vec![b'x'; len], len as u32)));
        }
    }
}

#[test]
fn ipv4_options_are_skipped_and_fragments_rejected() {
    let tcp = tcp(false, b"ab");
    let ip = tcp.ip();
    let with = |protocol, fragment, options: &[u8]| {
        payload(&owned(Link::RawIp, ipv4(&ip[12..20], protocol, 1, fragment, options, &ip[20..])))
    };
    assert_eq!(with(6, 0, &[1; 40]), Ok((b"ab".to_vec(), 2)));
    assert_eq!(with(6, 0x4000, &[]), Ok((b"ab".to_vec(), 2)));
    assert_eq!(with(17, 0, &[]), Err(NoSegment::Other));
    assert_eq!(with(17, 0x2000, &[]), Err(NoSegment::Other));
    for fragment in [0x2000, 5, 0x2005] {
        assert_eq!(with(6, fragment, &[]), Err(NoSegment::Fragment), "{fragment:x}");
    }
}

#[test]
fn ipv6_extension_headers_are_skipped() {
    let tcp = tcp(true, b"ab");
    let ip = tcp.ip();
    let with = |next, extensions: &[u8]| {
        payload(&owned(Link::RawIp, ipv6(&ip[8..40], next, &[extensions, &ip[40..]].concat())))
    };
    let ok = Ok((b"ab".to_vec(), 2));
    for next in [0, 43, 60] {
        assert_eq!(with(next, &[6, 0, 0, 0, 0, 0, 0, 0]), ok);
        assert_eq!(with(next, &[60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]), ok);
    }
    assert_eq!(with(51, &[6, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), ok);
    // Fragment headers of a whole packet, a first fragment and later fragments.
    assert_eq!(with(44, &[6, 0, 0, 0, 0, 0, 0, 1]), ok);
    assert_eq!(with(44, &[6, 0, 0, 1, 0, 0, 0, 1]), Err(NoSegment::Fragment));
    assert_eq!(with(44, &[6, 0, 0, 8, 0, 0, 0, 1]), Err(NoSegment::Fragment));
    assert_eq!(with(44, &[17, 0, 0, 8, 0, 0, 0, 1]), Err(NoSegment::Other));
    assert_eq!(with(58, &[]), Err(NoSegment::Other));
    assert_eq!(with(60, &[60, 0, 0, 0, 0, 0, 0, 0].repeat(9)), Err(NoSegment::Other), "too many");
}

#[test]
fn truncated_packets_show_how_much_is_missing() {
    for link in LINKS {
        for v6 in [false, true] {
            let whole = tcp(v6, b"abcdef").packet(link);
            let headers = whole.bytes.len() - 6;
            for end in 0..whole.bytes.len() {
                let mut packet = whole.clone();
                packet.bytes.truncate(end);
                let expected = match end.checked_sub(headers) {
                    Some(captured) => Ok((b"abcdef"[..captured].to_vec(), 6)),
                    None => Err(NoSegment::Malformed),
                };
                assert_eq!(payload(&packet), expected, "{link:?} {v6} up to {end}");
            }
        }
    }
}

#[test]
fn invalid_headers_are_malformed_and_other_protocols_ignored() {
    let tcp = tcp(false, b"ab");
    let with = |at: usize, byte: u8| {
        let mut ip = tcp.ip();
        ip[at] = byte;
        payload(&owned(Link::RawIp, ip))
    };
    assert_eq!(with(0, 0x44), Err(NoSegment::Malformed), "header length");
    assert_eq!(with(0, 0x55), Err(NoSegment::Malformed), "version");
    assert_eq!(with(3, 200), Err(NoSegment::Malformed), "longer than the packet");
    assert_eq!(with(3, 10), Err(NoSegment::Malformed), "shorter than its headers");
    assert_eq!(with(32, 0x40), Err(NoSegment::Malformed), "TCP header length");
    assert_eq!(with(32, 0xf0), Err(NoSegment::Malformed), "TCP header longer than the packet");
    let arp = owned(Link::Ethernet, [&[2; 12][..], &[8, 6], &[0; 28]].concat());
    assert_eq!(payload(&arp), Err(NoSegment::Other));
}

#[test]
fn cooked_headers_show_the_direction() {
    let tcp = tcp(false, b"ab");
    for (link, at) in [(Link::Cooked, 1), (Link::Cooked2, 10)] {
        for (kind, outgoing) in [(0, Some(false)), (3, Some(false)), (4, Some(true))] {
            let mut bytes = framed(link, 4, &tcp.ip());
            bytes[at] = kind;
            let packet = owned(link, bytes);
            assert_eq!(parse(&packet.as_packet()).unwrap().outgoing, outgoing, "{link:?} {kind}");
            let packet = OwnedPacket { outgoing: Some(true), ..packet };
            assert_eq!(parse(&packet.as_packet()).unwrap().outgoing, Some(true));
        }
    }
}

#[test]
fn malformed_packets_and_fragments_are_counted() {
    let mut talk = Talk::new();
    talk.tap.packet(&owned(Link::Ethernet, vec![1, 2, 3]).as_packet());
    let ip = tcp(false, b"").ip();
    talk.tap.packet(&owned(Link::RawIp, ipv4(&ip[12..20], 6, 1, 0x2000, &[], &ip[20..])).as_packet());
    let stats = talk.tap.stats();
    assert_eq!((stats.packets.get(), stats.malformed.get(), stats.fragments.get()), (2, 1, 1));
}

#[test]
fn ipv4_address_in_ipv6_form_is_the_same_server() {
    let mut talk = Talk::new();
    talk.client = SocketAddr::from(([10, 0, 0, 1], 40_000));
    talk.server = "[::ffff:10.0.0.9]:8001".parse().unwrap();
    talk.client = "[::ffff:10.0.0.1]:40000".parse().unwrap();
    talk.open().c("a");
    assert_eq!(talk.log.bytes(Direction::Request), b"a");
}
