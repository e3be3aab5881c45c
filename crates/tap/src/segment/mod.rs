//! Headers of a packet: from its link layer to its TCP segment.
//!
//! Why no library (`etherparse`, `smoltcp`): the libraries lack both cooked headers and the BSD loopback header. This
//! module needs only a few header fields, and the number of missing bytes of a truncated packet.

mod checksum;
pub(crate) mod ip;
mod link;

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tokometer_observe::input::Direction;

use crate::packet::{Checksum, Packet};

/// TCP flags (RFC 9293, section 3.1).
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const URG: u8 = 0x20;

/// TCP options (RFC 9293, section 3.2; RFC 7323).
const END: u8 = 0;
const NOTHING: u8 = 1;
const WINDOW_SCALE: u8 = 3;
const TIMESTAMPS: u8 = 8;

/// The beginning of the options of nearly all segments: two bytes of padding, then timestamps (RFC 7323, appendix A).
const USUAL: [u8; 4] = [NOTHING, NOTHING, TIMESTAMPS, 10];

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

/// Client and server of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) client: Endpoint,
    pub(crate) server: Endpoint,
}

impl Hash for Key {
    /// Calls the hasher once; the derived implementation would call it for each part.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = [0; 36];
        let parts =
            [&self.client.ip[..], &self.client.port.to_ne_bytes(), &self.server.ip, &self.server.port.to_ne_bytes()];
        let mut rest = &mut bytes[..];
        for part in parts {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        state.write(&bytes);
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
    /// Receive window as sent, without the scale factor.
    pub(crate) window: u16,
    /// The scale factor of later windows, in a SYN.
    pub(crate) scale: Option<u8>,
    /// The sender's timestamp.
    pub(crate) timestamp: Option<u32>,
    /// Distance of the last byte of urgent data from `sequence`, plus one; 0 without urgent data.
    pub(crate) urgent: u16,
    /// Whether the checksums are correct, in a capture file; `None` if not verified.
    pub(crate) is_intact: Option<bool>,
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
    /// The connection of the segment, if it has this direction.
    pub(crate) fn key(&self, direction: Direction) -> Key {
        match direction {
            Direction::Request => Key { client: self.source, server: self.destination },
            Direction::Response => Key { client: self.destination, server: self.source },
        }
    }

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

    /// Sequence number after the segment.
    pub(crate) fn end(&self) -> u32 {
        self.first_byte().wrapping_add(self.len).wrapping_add(u32::from(self.fin()))
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
    /// A checksum is wrong, so the receiver drops the packet.
    Corrupt,
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
    let is_header_intact = || ip.header.is_none_or(checksum::is_header_correct);
    let is_intact = match packet.checksum {
        Checksum::Sent => None,
        Checksum::Verified => Some(is_header_intact()),
        _ if ip.rest.bytes.len() < ip.rest.wire_len => None,
        Checksum::Unknown if checksum::is_segment_unfinished(&ip.source, &ip.destination, ip.rest.bytes) => None,
        _ => Some(is_header_intact() && checksum::is_segment_correct(&ip.source, &ip.destination, ip.rest.bytes)),
    };
    match (packet.checksum, is_intact) {
        (Checksum::Unknown, is_intact) => tcp(&ip, packet.outgoing.or(link.outgoing), is_intact),
        (_, Some(false)) => Err(NoSegment::Corrupt),
        _ => tcp(&ip, packet.outgoing.or(link.outgoing), None),
    }
}

fn tcp<'a>(ip: &ip::Ip<'a>, outgoing: Option<bool>, is_intact: Option<bool>) -> Result<Segment<'a>, NoSegment> {
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
    let Options { scale, timestamp } = Options::parse(options);
    Ok(Segment {
        source: Endpoint { ip: ip.source, port: layer.u16(0)? },
        destination: Endpoint { ip: ip.destination, port: layer.u16(2)? },
        sequence: layer.u32(4)?,
        acknowledged: (flags & ACK != 0).then_some(acknowledged),
        flags,
        window: layer.u16(14)?,
        scale: scale.filter(|_| flags & SYN != 0),
        timestamp,
        urgent: if flags & URG != 0 { layer.u16(18)? } else { 0 },
        is_intact,
        payload: payload.bytes,
        len: u32::try_from(payload.wire_len).map_err(|_| NoSegment::Malformed)?,
        print: print(&header, options, ip.id, payload.wire_len),
        outgoing,
    })
}

/// The options that decide whether a receiver accepts a segment.
#[derive(Default)]
struct Options {
    scale: Option<u8>,
    timestamp: Option<u32>,
}

impl Options {
    fn parse(bytes: &[u8]) -> Options {
        let mut options = Options::default();
        if bytes.len() == 12 && bytes.starts_with(&USUAL) {
            options.timestamp =
                bytes.get(4..).and_then(|rest| rest.first_chunk()).map(|value| u32::from_be_bytes(*value));
            return options;
        }
        let mut rest = bytes;
        // Ends at an invalid option, as Linux does (`tcp_parse_options`).
        while let [kind, after @ ..] = rest {
            rest = match (*kind, after) {
                (END, _) => break,
                (NOTHING, _) => after,
                (kind, [len, ..]) if *len >= 2 => {
                    let Some((option, after)) = rest.split_at_checked(usize::from(*len)) else { break };
                    match (kind, option) {
                        // Larger factors count as 14 (RFC 7323, section 2.3).
                        (WINDOW_SCALE, [_, _, scale]) => options.scale = Some((*scale).min(14)),
                        (TIMESTAMPS, [_, _, a, b, c, d, _, _, _, _]) => {
                            options.timestamp = Some(u32::from_be_bytes([*a, *b, *c, *d]));
                        }
                        _ => {}
                    }
                    after
                }
                _ => break,
            };
        }
        options
    }
}

/// A segment with its own copy of the payload.
#[derive(Debug)]
pub(crate) struct OwnedSegment {
    segment: Segment<'static>,
    payload: Box<[u8]>,
}

impl OwnedSegment {
    pub(crate) fn new(segment: &Segment<'_>) -> OwnedSegment {
        OwnedSegment { segment: Segment { payload: &[], ..*segment }, payload: segment.payload.into() }
    }

    /// Number of captured bytes in the payload.
    pub(crate) fn len(&self) -> usize {
        self.payload.len()
    }

    /// Drops all bytes but the first `len` ones.
    pub(crate) fn truncate(&mut self, len: u32) {
        self.segment.len = self.segment.len.min(len);
        self.payload = self.payload.get(..len as usize).unwrap_or(&self.payload).into();
    }

    pub(crate) fn as_segment(&self) -> Segment<'_> {
        Segment { payload: &self.payload, ..self.segment }
    }
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
