//! Link layer headers.

use crate::packet::Link;
use crate::segment::{Layer, NoSegment};

/// EtherTypes.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// A VLAN tag follows (IEEE 802.1Q, 802.1ad, and the pre-standard form).
const VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// Maximum nested VLAN tags.
const MAX_TAGS: usize = 4;

/// Packet type of both cooked headers: sent by this host (`PACKET_OUTGOING`).
const OUTGOING: u16 = 4;

/// What follows a link layer header.
pub(super) struct Parsed<'a> {
    pub(super) rest: Layer<'a>,
    /// Whether this host sent the packet, if the header shows it.
    pub(super) outgoing: Option<bool>,
}

/// Parses the link layer headers up to the IP header.
pub(super) fn parse(link: Link, layer: Layer<'_>) -> Result<Parsed<'_>, NoSegment> {
    let outgoing = |kind: u16| Some(kind == OUTGOING);
    let (ether_type, rest, outgoing) = match link {
        Link::RawIp => return Ok(Parsed { rest: layer, outgoing: None }),
        // The version in the IP header replaces the address family, whose numbers depend on the system.
        Link::Null => return Ok(Parsed { rest: layer.after(4)?, outgoing: None }),
        Link::Ethernet => (layer.u16(12)?, layer.after(14)?, None),
        Link::Cooked => (layer.u16(14)?, layer.after(16)?, outgoing(layer.u16(0)?)),
        Link::Cooked2 => (layer.u16(0)?, layer.after(20)?, outgoing(layer.byte(10)?.into())),
    };
    Ok(Parsed { rest: untagged(ether_type, rest)?, outgoing })
}

/// Skips VLAN tags.
fn untagged(mut ether_type: u16, mut rest: Layer<'_>) -> Result<Layer<'_>, NoSegment> {
    for _ in 0..=MAX_TAGS {
        match ether_type {
            IPV4 | IPV6 => return Ok(rest),
            tag if VLAN.contains(&tag) => {
                ether_type = rest.u16(2)?;
                rest = rest.after(4)?;
            }
            _ => break,
        }
    }
    Err(NoSegment::Other)
}
