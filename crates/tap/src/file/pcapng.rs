//! The pcapng format: blocks in sections.

use std::io::Read;
use std::time::Duration;

use crate::file::input::{Error, Input, Order, duration, link};
use crate::packet::OwnedPacket;

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Magic number at the start of a section, written in the section's byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Options of an interface: resolution of timestamps, and seconds to add to them.
const TIME_RESOLUTION: u16 = 9;
const TIME_OFFSET: u16 = 14;

/// Packet option with the direction in its lowest two bits, and the values of these bits.
const FLAGS: u16 = 2;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Maximum number of interfaces per section.
const MAX_INTERFACES: usize = 4096;

/// The year 10000: later times cannot be printed.
const LATEST: Duration = Duration::from_secs(253_402_300_800);

/// The section being read.
#[derive(Debug)]
pub(super) struct Pcapng {
    order: Order,
    interfaces: Vec<Interface>,
}

/// The interface on which packets were captured.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: u32,
    /// Time units per second.
    per_second: u64,
    offset_seconds: i64,
}

/// The contents of a block.
struct Body<'a> {
    order: Order,
    bytes: &'a [u8],
    /// Position of the block in the file.
    offset: u64,
}

impl Pcapng {
    /// True if the format begins with these bytes, which are the same in both byte orders.
    pub(super) fn is_magic(magic: [u8; 4]) -> bool {
        Order::Little.u32(magic) == SECTION
    }

    /// Reads the header of the first section, which begins with `magic`.
    pub(super) fn open<R: Read>(magic: [u8; 4], input: &mut Input<R>) -> Result<Pcapng, Error> {
        if !Pcapng::is_magic(magic) {
            return Err(Error::UnknownFormat);
        }
        let mut pcapng = Pcapng { order: Order::Little, interfaces: Vec::new() };
        pcapng.section(input)?;
        Ok(pcapng)
    }

    /// Reads the header of a section after its type.
    fn section<R: Read>(&mut self, input: &mut Input<R>) -> Result<(), Error> {
        let len: [u8; 4] = input.array()?;
        let byte_order: [u8; 4] = input.array()?;
        let order = [Order::Little, Order::Big].into_iter().find(|order| order.u32(byte_order) == BYTE_ORDER);
        self.order = order.ok_or_else(|| input.invalid("a section has no valid byte order"))?;
        self.interfaces.clear();
        let len = self.order.u32(len).checked_sub(12).ok_or_else(|| input.invalid("a block is too short"))?;
        input.bytes(len)?;
        Ok(())
    }

    /// The next packet; `None` at the end of the file.
    pub(super) fn packet<R: Read>(&mut self, input: &mut Input<R>) -> Result<Option<OwnedPacket>, Error> {
        loop {
            let offset = input.offset();
            let Some(kind) = input.array_or_end()? else { return Ok(None) };
            let kind = self.order.u32(kind);
            if kind == SECTION {
                self.section(input)?;
                continue;
            }
            let len = self.order.u32(input.array()?);
            let len = len.checked_sub(12).ok_or_else(|| input.invalid("a block is too short"))?;
            let bytes = input.bytes(len)?;
            if self.order.u32(input.array()?) != len + 12 {
                return Err(Error::Invalid { offset, what: "the two lengths of a block differ" });
            }
            let body = Body { order: self.order, bytes: &bytes, offset };
            match kind {
                INTERFACE => self.interface(&body)?,
                ENHANCED_PACKET | OBSOLETE_PACKET => return self.captured(kind, &body).map(Some),
                SIMPLE_PACKET => return Err(Error::Invalid { offset, what: "packets without a time" }),
                _ => {}
            }
        }
    }

    fn interface(&mut self, body: &Body<'_>) -> Result<(), Error> {
        let mut interface = Interface { link: body.u16(0)?.into(), per_second: 1_000_000, offset_seconds: 0 };
        body.options(8, |code, value| match (code, value) {
            (TIME_RESOLUTION, [exponent, ..]) => {
                let base: u64 = if exponent & 0x80 == 0 { 10 } else { 2 };
                // On overflow, all possible times are below one second, so the exact resolution does not matter.
                interface.per_second = base.checked_pow((exponent & 0x7f).into()).unwrap_or(u64::MAX);
            }
            (TIME_OFFSET, value) => {
                let bytes = value.first_chunk().copied().unwrap_or_default();
                interface.offset_seconds = match body.order {
                    Order::Little => i64::from_le_bytes(bytes),
                    Order::Big => i64::from_be_bytes(bytes),
                };
            }
            _ => {}
        })?;
        if self.interfaces.len() >= MAX_INTERFACES {
            return Err(body.invalid("too many interfaces"));
        }
        self.interfaces.push(interface);
        Ok(())
    }

    fn captured(&self, kind: u32, body: &Body<'_>) -> Result<OwnedPacket, Error> {
        let number = if kind == ENHANCED_PACKET { body.u32(0)? } else { body.u16(0)?.into() };
        let interface = self.interfaces.get(number as usize);
        let interface = interface.ok_or_else(|| body.invalid("a packet of an unknown interface"))?;
        let ticks = u64::from(body.u32(4)?) << 32 | u64::from(body.u32(8)?);
        let (len, original_len) = (body.u32(12)? as usize, body.u32(16)? as usize);
        let bytes = body.bytes.get(20..).and_then(|rest| rest.get(..len));
        let bytes = bytes.ok_or_else(|| body.invalid("a packet is longer than its block"))?.to_vec();
        let mut outgoing = None;
        body.options(20 + len.next_multiple_of(4), |code, value| {
            if code == FLAGS {
                outgoing = match body.order.u32(value.first_chunk().copied().unwrap_or_default()) & 3 {
                    INBOUND => Some(false),
                    OUTBOUND => Some(true),
                    _ => None,
                };
            }
        })?;
        let at = duration(ticks, interface.per_second);
        let offset = Duration::from_secs(interface.offset_seconds.unsigned_abs());
        let at = if interface.offset_seconds < 0 { at.checked_sub(offset) } else { at.checked_add(offset) };
        Ok(OwnedPacket {
            link: link(interface.link).ok_or(Error::UnsupportedLink { offset: body.offset, number: interface.link })?,
            bytes,
            original_len,
            at: at.filter(|at| *at < LATEST).ok_or_else(|| body.invalid("the time of a packet is not valid"))?,
            outgoing,
        })
    }
}

impl Body<'_> {
    fn invalid(&self, what: &'static str) -> Error {
        Error::Invalid { offset: self.offset, what }
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Error> {
        let bytes = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.copied().ok_or_else(|| self.invalid("a block is too short"))
    }

    fn u16(&self, at: usize) -> Result<u16, Error> {
        self.array(at).map(|bytes| self.order.u16(bytes))
    }

    fn u32(&self, at: usize) -> Result<u32, Error> {
        self.array(at).map(|bytes| self.order.u32(bytes))
    }

    /// Passes each option from this position on to `each`, with its code.
    fn options(&self, mut at: usize, mut each: impl FnMut(u16, &[u8])) -> Result<(), Error> {
        while at < self.bytes.len() {
            let (code, len) = (self.u16(at)?, usize::from(self.u16(at + 2)?));
            if code == 0 {
                break;
            }
            let value = self.bytes.get(at + 4..).and_then(|rest| rest.get(..len));
            each(code, value.ok_or_else(|| self.invalid("an option is longer than its block"))?);
            at += 4 + len.next_multiple_of(4);
        }
        Ok(())
    }
}
