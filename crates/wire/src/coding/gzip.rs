//! gzip (RFC 1952): members of a header, a deflate stream and a trailer.

use crate::coding::Unreadable;
use crate::coding::inflate::INFLATE_BYTES;
use crate::coding::inflate::Inflate;

/// Bits of the header's flags (section 2.3.1).
const HEADER_CRC: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// CRC-32 and length of the uncompressed data.
const TRAILER_BYTES: u8 = 8;

/// The part of a member that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// This many bytes into the ten fixed header bytes.
    Fixed(u8),
    /// This many bytes into the length of the extra field; its first byte.
    ExtraLength(u8, u8),
    /// This many bytes of the extra field remain.
    Extra(u16),
    Name,
    Comment,
    /// This many bytes of the header checksum remain.
    HeaderCrc(u8),
    Data,
    /// This many bytes of the trailer remain.
    Trailer(u8),
    /// After the last member: further bytes are not gzip and are ignored.
    Past,
}

/// A decoder for one gzip stream.
#[derive(Debug)]
pub(super) struct Gzip {
    inflate: Inflate,
    at: At,
    flags: u8,
    /// At least one member has ended.
    several: bool,
}

impl Gzip {
    pub(super) fn new() -> Gzip {
        Gzip { inflate: Inflate::new(), at: At::Fixed(0), flags: 0, several: false }
    }

    pub(super) fn holds(&self) -> usize {
        INFLATE_BYTES
    }

    /// Prepares for a new stream.
    pub(super) fn restart(&mut self) {
        self.inflate.reset();
        (self.at, self.flags, self.several) = (At::Fixed(0), 0, false);
    }

    /// True when a member has ended and no other has begun.
    pub(super) fn is_at_end(&self) -> bool {
        self.several && matches!(self.at, At::Fixed(0) | At::Past)
    }

    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        loop {
            if self.at == At::Data {
                let inflated = self.inflate.step(input, output)?;
                if inflated.ended {
                    self.at = At::Trailer(TRAILER_BYTES);
                }
                return Ok(inflated.written);
            }
            if self.at == At::Past {
                *input = &[];
            }
            let Some((byte, rest)) = input.split_first() else { return Ok(0) };
            *input = rest;
            self.at = self.after(*byte)?;
        }
    }

    /// The state after this byte.
    fn after(&mut self, byte: u8) -> Result<At, Unreadable> {
        Ok(match self.at {
            At::Fixed(index) => match (index, byte) {
                (0, 0x1f) | (1, 0x8b) | (2, 8) | (4..9, _) => At::Fixed(index + 1),
                (3, flags) if flags & RESERVED == 0 => {
                    self.flags = flags;
                    At::Fixed(4)
                }
                (9, _) => self.next_field(EXTRA),
                // Padding after a file is common (section 2.2 does not allow it, `gzip` ignores it).
                (0 | 1, _) if self.several => At::Past,
                _ => return Err(Unreadable::Corrupt),
            },
            At::ExtraLength(0, _) => At::ExtraLength(1, byte),
            At::ExtraLength(_, low) => match u16::from_le_bytes([low, byte]) {
                0 => self.next_field(NAME),
                length => At::Extra(length),
            },
            At::Extra(1) => self.next_field(NAME),
            At::Extra(left) => At::Extra(left.saturating_sub(1)),
            At::Name if byte == 0 => self.next_field(COMMENT),
            At::Comment if byte == 0 => self.next_field(HEADER_CRC),
            At::HeaderCrc(1) => At::Data,
            At::HeaderCrc(left) => At::HeaderCrc(left.saturating_sub(1)),
            At::Trailer(1) => {
                self.inflate.reset();
                self.several = true;
                At::Fixed(0)
            }
            At::Trailer(left) => At::Trailer(left.saturating_sub(1)),
            at => at,
        })
    }

    /// The first optional field, from `first` on in header order, whose flag is set.
    fn next_field(&self, first: u8) -> At {
        let fields =
            [(EXTRA, At::ExtraLength(0, 0)), (NAME, At::Name), (COMMENT, At::Comment), (HEADER_CRC, At::HeaderCrc(2))];
        let from = fields.into_iter().skip_while(|(flag, _)| *flag != first);
        from.into_iter().find_map(|(flag, at)| (self.flags & flag != 0).then_some(at)).unwrap_or(At::Data)
    }
}
