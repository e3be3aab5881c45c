//! Headers of a packet: from its link layer to its TCP segment.
//!
//! Why no library (`etherparse`, `smoltcp`): the libraries lack both cooked headers and the BSD loopback header. This
//! module needs only a few header fields, and the number of missing bytes of a truncated packet. Checksums are not
//! verified, because sent packets are captured before the network card computes them.

pub(crate) mod ip;
mod link;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::packet::Packet;

/// TCP flags (RFC 9293, section 3.1).
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Address and port of one end of a connection; IPv4 addresses in their IPv6-mapped form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Endpoint {
    pub(crate) ip: [u8; 16],
    pub(crate) port: u16,
}

impl Endpoint {
    /// The address in its usual form.
    pub(crate) fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.ip).to_canonical()
    }

    pub(crate) fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address(), self.port)
    }
}

/// A TCP segment, possibly merged from several by segmentation offload: up to 64 KiB, or more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
    /// Sequence number of the first byte, or of SYN.
    pub(crate) sequence: u32,
    /// Sequence number of the next byte that the sender expects, if the ACK flag is set.
    pub(crate) acknowledged: Option<u32>,
    flags: u8,
    /// Receive window as sent, without the scale factor: only zero and nonzero are distinguished.
    pub(crate) window: u16,
    /// The captured part of the payload.
    pub(crate) payload: &'a [u8],
    /// Length of the payload on the wire.
    pub(crate) len: u32,
    /// Hash of header fields. Equal if the same packet is captured twice, but different for a retransmission.
    pub(crate) print: u64,
    /// See [`Packet::outgoing`].
    pub(crate) outgoing: Option<bool>,
}

impl Segment<'_> {
    pub(crate) fn fin(&self) -> bool {
        self.flags & FIN != 0
    }

    pub(crate) fn syn(&self) -> bool {
        self.flags & SYN != 0
    }

    pub(crate) fn rst(&self) -> bool {
        self.flags & RST != 0
    }

    /// True for the first segment of a connection.
    pub(crate) fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST) == SYN
    }

    /// Sequence number of the first byte of the payload: SYN uses the number before it.
    pub(crate) fn first_byte(&self) -> u32 {
        self.sequence.wrapping_add(u32::from(self.syn()))
    }
}

/// Why a packet has no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoSegment {
    /// The packet is not TCP over IP.
    Other,
    /// The packet is a fragment of an IP packet with TCP. Linux's TCP sends none (path MTU discovery).
    Fragment,
    /// A header is not valid or not captured completely.
    Malformed,
}

/// The captured bytes of a packet from one layer on, and their length on the wire.
#[derive(Clone, Copy)]
struct Layer<'a> {
    bytes: &'a [u8],
    wire_len: usize,
}

impl<'a> Layer<'a> {
    /// The layer after a header of this length.
    ///
    /// # Errors
    /// When the header is not captured completely.
    fn after(self, header: usize) -> Result<Layer<'a>, NoSegment> {
        let bytes = self.bytes.get(header..).ok_or(NoSegment::Malformed)?;
        let wire_len = self.wire_len.checked_sub(header).ok_or(NoSegment::Malformed)?;
        Ok(Layer { bytes, wire_len })
    }

    /// The first `len` bytes of the layer (Ethernet pads short packets).
    fn limited(self, len: usize) -> Result<Layer<'a>, NoSegment> {
        if len > self.wire_len {
            return Err(NoSegment::Malformed);
        }
        Ok(Layer { bytes: self.bytes.get(..len).unwrap_or(self.bytes), wire_len: len })
    }

    fn byte(self, at: usize) -> Result<u8, NoSegment> {
        self.bytes.get(at).copied().ok_or(NoSegment::Malformed)
    }

    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], NoSegment> {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or(NoSegment::Malformed)
    }

    fn u16(self, at: usize) -> Result<u16, NoSegment> {
        self.array(at).map(u16::from_be_bytes)
    }

    fn u32(self, at: usize) -> Result<u32, NoSegment> {
        self.array(at).map(u32::from_be_bytes)
    }
}

/// The segment in a packet.
///
/// # Errors
/// Why the packet has no segment.
pub(crate) fn parse<'a>(packet: &Packet<'a>) -> Result<Segment<'a>, NoSegment> {
    let layer = Layer { bytes: packet.bytes, wire_len: packet.original_len.max(packet.bytes.len()) };
    let link = link::parse(packet.link, layer)?;
    let ip = ip::parse(link.rest)?;
    tcp(&ip, packet.outgoing.or(link.outgoing))
}

fn tcp<'a>(ip: &ip::Ip<'a>, outgoing: Option<bool>) -> Result<Segment<'a>, NoSegment> {
    let layer = ip.rest;
    let header: [u8; 20] = layer.array(0)?;
    let header_len = usize::from(header[12] >> 4) * 4;
    if header_len < header.len() {
        return Err(NoSegment::Malformed);
    }
    let payload = layer.after(header_len)?;
    let flags = header[13];
    let acknowledged = layer.u32(8)?;
    let options = layer.bytes.get(header.len()..header_len).ok_or(NoSegment::Malformed)?;
    Ok(Segment {
        source: Endpoint { ip: ip.source, port: layer.u16(0)? },
        destination: Endpoint { ip: ip.destination, port: layer.u16(2)? },
        sequence: layer.u32(4)?,
        acknowledged: (flags & ACK != 0).then_some(acknowledged),
        flags,
        window: layer.u16(14)?,
        payload: payload.bytes,
        len: u32::try_from(payload.wire_len).map_err(|_| NoSegment::Malformed)?,
        print: print(&header, options, ip.id, payload.wire_len),
        outgoing,
    })
}

/// Hashes the sequence numbers, flags, window, options (timestamps), IP identification and length; see
/// [`Segment::print`]. Excludes the checksum, which may be computed between two captures.
fn print(header: &[u8; 20], options: &[u8], id: u16, len: usize) -> u64 {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let numbers = header.get(4..12).map_or(0, word);
    let rest = header.get(12..16).map_or(0, word) << 16 | u64::from(id);
    let hash = mix(mix(mix(len as u64, numbers), rest), 1);
    options.chunks(8).fold(hash, |hash, bytes| mix(hash, word(bytes)))
}
