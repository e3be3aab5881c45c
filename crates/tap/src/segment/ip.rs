//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use std::net::Ipv4Addr;

use crate::segment::{Layer, NoSegment};

/// Protocol number of TCP.
pub(crate) const TCP: u8 = 6;

/// IPv6 extension headers.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// IPv6 extension headers that TCP may follow.
pub(crate) const EXTENSIONS: [u8; 5] = [HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION];

/// Maximum extension headers: each kind occurs at most once, destination options twice (RFC 8200, section 4.1).
const MAX_EXTENSIONS: usize = 8;

/// An IP packet with TCP.
pub(super) struct Ip<'a> {
    pub(super) source: [u8; 16],
    pub(super) destination: [u8; 16],
    /// Identification of an IPv4 packet; 0 for IPv6.
    pub(super) id: u16,
    /// The IPv4 header, which has a checksum.
    pub(super) header: Option<&'a [u8]>,
    pub(super) rest: Layer<'a>,
}

/// Parses the IP headers.
pub(super) fn parse(layer: Layer<'_>) -> Result<Ip<'_>, NoSegment> {
    match layer.byte(0)? >> 4 {
        4 => v4(layer),
        6 => v6(layer),
        _ => Err(NoSegment::Malformed),
    }
}

fn v4(layer: Layer<'_>) -> Result<Ip<'_>, NoSegment> {
    let header: [u8; 20] = layer.array(0)?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header_len < header.len() {
        return Err(NoSegment::Malformed);
    }
    if header[9] != TCP {
        return Err(NoSegment::Other);
    }
    // All bits except "don't fragment" and the reserved bit.
    if layer.u16(6)? & 0x3fff != 0 {
        return Err(NoSegment::Fragment);
    }
    let address = |at: usize| layer.array(at).map(|bytes: [u8; 4]| Ipv4Addr::from(bytes).to_ipv6_mapped().octets());
    let layer = match usize::from(layer.u16(2)?) {
        // The packet exceeds 64 KiB and will be split by the network card.
        0 => layer,
        len => layer.limited(len)?,
    };
    Ok(Ip {
        source: address(12)?,
        destination: address(16)?,
        id: layer.u16(4)?,
        header: layer.bytes.get(..header_len),
        rest: layer.after(header_len)?,
    })
}

fn v6(layer: Layer<'_>) -> Result<Ip<'_>, NoSegment> {
    let header: [u8; 40] = layer.array(0)?;
    let payload = layer.after(header.len())?;
    let mut rest = match usize::from(layer.u16(4)?) {
        // The packet is larger than 64 KiB (a jumbogram, RFC 2675, whose length is in an option).
        0 => payload,
        len => payload.limited(len)?,
    };
    let mut next = header[6];
    for _ in 0..MAX_EXTENSIONS {
        let len = match next {
            TCP => {
                let (source, destination) = (layer.array(8)?, layer.array(24)?);
                return Ok(Ip { source, destination, id: 0, header: None, rest });
            }
            HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(rest.byte(1)?) + 1) * 8,
            AUTHENTICATION => (usize::from(rest.byte(1)?) + 2) * 4,
            // A whole packet: its offset is 0 and no fragments follow. The mask excludes the two reserved bits.
            FRAGMENT if rest.u16(2)? & 0xfff9 == 0 => 8,
            FRAGMENT if rest.byte(0)? == TCP => return Err(NoSegment::Fragment),
            _ => break,
        };
        next = rest.byte(0)?;
        rest = rest.after(len)?;
    }
    Err(NoSegment::Other)
}
