//! Writes packets, independently of the code that parses them.

use std::net::SocketAddr;

use crate::{Link, OwnedPacket};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;
pub(crate) const URG: u8 = 32;

/// The checksums of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Sums {
    /// As in a packet that is captured before the network card computes them.
    Missing,
    /// As Linux sets them in packets that it has merged.
    Unfinished,
    Correct,
    Wrong,
}

/// The one's complement of the sum of these bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    let sum: u32 = bytes.chunks(2).map(word).sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// A TCP segment.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) id: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) urgent: u16,
    pub(crate) sums: Sums,
    pub(crate) payload: Vec<u8>,
}

impl Tcp {
    fn segment(&self) -> Vec<u8> {
        assert_eq!(self.options.len() % 4, 0);
        let mut bytes = Vec::new();
        bytes.extend(self.from.port().to_be_bytes());
        bytes.extend(self.to.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.push((5 + self.options.len() as u8 / 4) << 4);
        bytes.push(self.flags);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0xde, 0xad]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(&self.options);
        bytes.extend(&self.payload);
        if self.sums != Sums::Missing {
            bytes[16..18].fill(0);
            let address = |of: SocketAddr| match of {
                SocketAddr::V4(of) => of.ip().octets().to_vec(),
                SocketAddr::V6(of) => of.ip().octets().to_vec(),
            };
            let pseudo = [&[0, 6][..], &(bytes.len() as u16).to_be_bytes()].concat();
            let pseudo = [address(self.from), address(self.to), pseudo].concat();
            let sum = match self.sums {
                Sums::Unfinished => !checksum(&pseudo),
                _ => checksum(&[pseudo, bytes.clone()].concat()) ^ u16::from(self.sums == Sums::Wrong),
            };
            bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// The IP packet with this segment.
    pub(crate) fn ip(&self) -> Vec<u8> {
        match (self.from, self.to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                let addresses = [from.ip().octets(), to.ip().octets()].concat();
                let mut bytes = ipv4(&addresses, 6, self.id, 0x4000, &[], &self.segment());
                if self.sums != Sums::Missing {
                    let sum = checksum(&bytes[..20]);
                    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
                }
                bytes
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                ipv6(&[from.ip().octets(), to.ip().octets()].concat(), 6, &self.segment())
            }
            _ => panic!("addresses of two kinds"),
        }
    }

    pub(crate) fn packet(&self, link: Link) -> OwnedPacket {
        let bytes = framed(link, 4 + 2 * u16::from(self.from.is_ipv6()), &self.ip());
        OwnedPacket { link, original_len: bytes.len(), bytes, at: std::time::Duration::ZERO, outgoing: None }
    }
}

pub(crate) fn ipv4(addresses: &[u8], protocol: u8, id: u16, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let len = 20 + options.len() + payload.len();
    let mut bytes = vec![0x40 | (5 + options.len() as u8 / 4), 0];
    // Larger packets exist before the network card splits them: their length is 0.
    bytes.extend(u16::try_from(len).unwrap_or(0).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend(fragment.to_be_bytes());
    bytes.extend([64, protocol, 0, 0]);
    bytes.extend(addresses);
    bytes.extend(options);
    bytes.extend(payload);
    bytes
}

pub(crate) fn ipv6(addresses: &[u8], next: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x60, 0, 0, 0];
    bytes.extend(u16::try_from(payload.len()).unwrap_or(0).to_be_bytes());
    bytes.extend([next, 64]);
    bytes.extend(addresses);
    bytes.extend(payload);
    bytes
}

/// A packet of this IP version with a link layer header.
pub(crate) fn framed(link: Link, version: u16, ip: &[u8]) -> Vec<u8> {
    let ether_type: [u8; 2] = if version == 4 { [8, 0] } else { [0x86, 0xdd] };
    let mut bytes = match link {
        Link::Ethernet => [&[2; 12][..], &ether_type].concat(),
        Link::Cooked => [&[0, 0, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0][..], &ether_type].concat(),
        Link::Cooked2 => [&ether_type[..], &[0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0]].concat(),
        Link::RawIp => Vec::new(),
        Link::Null => vec![2, 0, 0, 0],
    };
    bytes.extend(ip);
    bytes
}
