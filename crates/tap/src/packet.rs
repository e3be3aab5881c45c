//! Captured packets and their clock.

use std::time::{Duration, Instant};

/// The first header of a captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// An Ethernet header, possibly with VLAN tags.
    Ethernet,
    /// The header of a Linux "cooked" capture of all interfaces (`LINKTYPE_LINUX_SLL`, 113).
    Cooked,
    /// Version 2 of the cooked header (`LINKTYPE_LINUX_SLL2`, 276).
    Cooked2,
    /// An IP header.
    RawIp,
    /// The header of the BSD loopback interface: the address family in the byte order of the capturing host.
    Null,
}

/// What is known about the checksums of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// This host sent the packet: the checksums may be computed after the capture (offload), and are not needed.
    Sent,
    /// The kernel has verified the TCP checksum, or does not need it because the packet never left the host. Linux:
    /// `TP_STATUS_CSUM_VALID`, `TP_STATUS_CSUMNOTREADY`.
    Verified,
    /// This host received the packet, and drops it if a checksum is wrong.
    Received,
    /// A capture file: the checksums of packets that the capturing host sent, or merged on receipt, may be missing.
    Unknown,
}

/// One captured packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The first header in `bytes`.
    pub link: Link,
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Length of the packet on the wire; larger than `bytes` if the capture truncated it.
    pub original_len: usize,
    /// When the packet was captured, since the Unix epoch.
    pub at: Duration,
    /// True if this host sent the packet, false if it received it; `None` if the capture does not record the direction.
    /// `None` is replaced by the direction in the link header, if present ([`Link::Cooked`], [`Link::Cooked2`]).
    pub outgoing: Option<bool>,
    /// What is known about the checksums.
    pub checksum: Checksum,
}

/// A packet of a capture file, with its own copy of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPacket {
    /// See [`Packet::link`].
    pub link: Link,
    /// See [`Packet::bytes`].
    pub bytes: Vec<u8>,
    /// See [`Packet::original_len`].
    pub original_len: usize,
    /// See [`Packet::at`].
    pub at: Duration,
    /// See [`Packet::outgoing`].
    pub outgoing: Option<bool>,
}

impl OwnedPacket {
    /// The packet, with its bytes borrowed.
    pub fn as_packet(&self) -> Packet<'_> {
        let OwnedPacket { link, bytes, original_len, at, outgoing } = self;
        let checksum = Checksum::Unknown;
        Packet { link: *link, bytes, original_len: *original_len, at: *at, outgoing: *outgoing, checksum }
    }
}

/// Maps capture times (since the Unix epoch) to instants, based on one capture time and the instant of the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Duration,
    instant: Instant,
}

impl Clock {
    /// A clock on which `epoch` and `instant` are the same moment.
    pub fn new(epoch: Duration, instant: Instant) -> Clock {
        Clock { epoch, instant }
    }

    /// The instant of a capture time. Times too far in the past for the platform become the clock's own instant.
    pub fn instant(&self, at: Duration) -> Instant {
        match at.checked_sub(self.epoch) {
            Some(later) => self.instant.checked_add(later),
            None => self.instant.checked_sub(self.epoch.saturating_sub(at)),
        }
        .unwrap_or(self.instant)
    }
}
