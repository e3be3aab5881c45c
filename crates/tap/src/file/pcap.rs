//! The pcap format.

use std::io::Read;
use std::time::Duration;

use crate::file::input::{Error, Input, Order, duration, link};
use crate::packet::{Link, OwnedPacket};

/// First bytes of a file with times in microseconds, and in nanoseconds.
const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

/// The header of a file.
#[derive(Debug)]
pub(super) struct Pcap {
    order: Order,
    per_second: u64,
    link: Link,
}

/// Byte order of the numbers, and time units per second; `None` if `magic` belongs to another format.
fn format(magic: [u8; 4]) -> Option<(Order, u64)> {
    [Order::Little, Order::Big].into_iter().find_map(|order| match order.u32(magic) {
        MICROSECONDS => Some((order, 1_000_000)),
        NANOSECONDS => Some((order, 1_000_000_000)),
        _ => None,
    })
}

impl Pcap {
    /// True if the format begins with these bytes.
    pub(super) fn is_magic(magic: [u8; 4]) -> bool {
        format(magic).is_some()
    }

    /// Reads the header that begins with `magic`; `None` if `magic` belongs to another format.
    pub(super) fn open<R: Read>(magic: [u8; 4], input: &mut Input<R>) -> Result<Option<Pcap>, Error> {
        let Some((order, per_second)) = format(magic) else { return Ok(None) };
        // Version, time zone, accuracy and snapshot length.
        input.array::<16>()?;
        let offset = input.offset();
        // The upper bits describe the checksum at the end of Ethernet frames.
        let number = order.u32(input.array()?) & 0xffff;
        let link = link(number).ok_or(Error::UnsupportedLink { offset, number })?;
        Ok(Some(Pcap { order, per_second, link }))
    }

    /// The next packet; `None` at the end of the file.
    pub(super) fn packet<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<OwnedPacket>, Error> {
        let Pcap { order, per_second, link } = *self;
        let offset = input.offset();
        let Some(seconds) = input.array_or_end()? else { return Ok(None) };
        let fraction = u64::from(order.u32(input.array()?));
        if fraction >= per_second {
            return Err(Error::Invalid { offset, what: "the time of a packet is not valid" });
        }
        let len = order.u32(input.array()?);
        let original_len = order.u32(input.array()?) as usize;
        let at = Duration::from_secs(order.u32(seconds).into()) + duration(fraction, per_second);
        Ok(Some(OwnedPacket { link, bytes: input.bytes(len)?, original_len, at, outgoing: None }))
    }
}
