//! Raw deflate (RFC 1951), and its wrappers gzip (RFC 1952), zlib (RFC 1950) and WebSocket messages (RFC 7692).

use flate2::{Decompress, FlushDecompress, Status};

use crate::coding::{Stage, Unreadable};

/// Memory of an inflater: its window of 32 KiB, and the library's tables and state, rounded up (measured by a test in
/// `tests/it/coding`).
const INFLATE_BYTES: usize = 48 * 1024;

/// A decoder for one raw deflate stream.
struct Inflate {
    stream: Decompress,
    /// The last step failed after producing output.
    failed: bool,
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflate").field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inflated {
    /// Bytes written.
    written: usize,
    /// The last block of the stream ended; the remaining input is not part of it.
    ended: bool,
}

impl Inflate {
    /// A new decoder. Allocates the window.
    fn new() -> Inflate {
        Inflate { stream: Decompress::new(false), failed: false }
    }

    /// Decodes from `input` into `output` until either is exhausted. Do not call after the end.
    fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Inflated, Unreadable> {
        if self.failed {
            return Err(Unreadable::Corrupt);
        }
        let (taken, given) = (self.stream.total_in(), self.stream.total_out());
        let status = self.stream.decompress(input, output, FlushDecompress::None);
        let taken = usize::try_from(self.stream.total_in() - taken).unwrap_or(usize::MAX);
        let written = usize::try_from(self.stream.total_out() - given).unwrap_or(usize::MAX);
        match status {
            Ok(status) => {
                *input = input.get(taken..).unwrap_or_default();
                Ok(Inflated { written, ended: status == Status::StreamEnd })
            }
            // The input is kept, so that the next step reports the error.
            Err(_) if written > 0 => {
                self.failed = true;
                Ok(Inflated { written, ended: false })
            }
            Err(_) => Err(Unreadable::Corrupt),
        }
    }

    /// Prepares for a new stream.
    fn reset(&mut self) {
        self.stream.reset(false);
        self.failed = false;
    }
}

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
enum GzipAt {
    /// Number of bytes read of the ten fixed header bytes.
    Fixed(u8),
    /// Number of bytes read of the extra field's length, and the first of these bytes.
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
    at: GzipAt,
    flags: u8,
    /// At least one member has ended.
    member_ended: bool,
}

impl Gzip {
    pub(super) fn new() -> Gzip {
        Gzip { inflate: Inflate::new(), at: GzipAt::Fixed(0), flags: 0, member_ended: false }
    }

    /// The state after this byte.
    fn after(&mut self, byte: u8) -> Result<GzipAt, Unreadable> {
        Ok(match self.at {
            GzipAt::Fixed(index) => match (index, byte) {
                (0, 0x1f) | (1, 0x8b) | (2, 8) | (4..9, _) => GzipAt::Fixed(index + 1),
                (3, flags) if flags & RESERVED == 0 => {
                    self.flags = flags;
                    GzipAt::Fixed(4)
                }
                (9, _) => self.next_field(EXTRA),
                // Padding after a file is common: RFC 1952 (section 2.2) does not allow it, but `gzip` ignores it.
                (0 | 1, _) if self.member_ended => GzipAt::Past,
                _ => return Err(Unreadable::Corrupt),
            },
            GzipAt::ExtraLength(0, _) => GzipAt::ExtraLength(1, byte),
            GzipAt::ExtraLength(_, low) => match u16::from_le_bytes([low, byte]) {
                0 => self.next_field(NAME),
                length => GzipAt::Extra(length),
            },
            GzipAt::Extra(1) => self.next_field(NAME),
            GzipAt::Extra(left) => GzipAt::Extra(left.saturating_sub(1)),
            GzipAt::Name if byte == 0 => self.next_field(COMMENT),
            GzipAt::Comment if byte == 0 => self.next_field(HEADER_CRC),
            GzipAt::HeaderCrc(1) => GzipAt::Data,
            GzipAt::HeaderCrc(left) => GzipAt::HeaderCrc(left.saturating_sub(1)),
            GzipAt::Trailer(1) => {
                self.inflate.reset();
                self.member_ended = true;
                GzipAt::Fixed(0)
            }
            GzipAt::Trailer(left) => GzipAt::Trailer(left.saturating_sub(1)),
            at => at,
        })
    }

    /// The first optional field, from `first` on in header order, whose flag is set; the data if there is none.
    fn next_field(&self, first: u8) -> GzipAt {
        let fields = [
            (EXTRA, GzipAt::ExtraLength(0, 0)),
            (NAME, GzipAt::Name),
            (COMMENT, GzipAt::Comment),
            (HEADER_CRC, GzipAt::HeaderCrc(2)),
        ];
        let from = fields.into_iter().skip_while(|(flag, _)| *flag != first);
        from.into_iter().find_map(|(flag, at)| (self.flags & flag != 0).then_some(at)).unwrap_or(GzipAt::Data)
    }
}

impl Stage for Gzip {
    fn holds(&self) -> usize {
        INFLATE_BYTES
    }

    fn restart(&mut self) -> Result<(), Unreadable> {
        self.inflate.reset();
        (self.at, self.flags, self.member_ended) = (GzipAt::Fixed(0), 0, false);
        Ok(())
    }

    /// True if a member has ended and no other has begun.
    fn is_at_end(&self) -> bool {
        self.member_ended && matches!(self.at, GzipAt::Fixed(0) | GzipAt::Past)
    }

    fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        loop {
            if self.at == GzipAt::Data {
                let inflated = self.inflate.step(input, output)?;
                if inflated.ended {
                    self.at = GzipAt::Trailer(TRAILER_BYTES);
                }
                return Ok(inflated.written);
            }
            if self.at == GzipAt::Past {
                *input = &[];
            }
            let Some((byte, rest)) = input.split_first() else { return Ok(0) };
            *input = rest;
            self.at = self.after(*byte)?;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeflateAt {
    /// Before the first byte.
    Start,
    /// After this first byte. The second byte decides whether both are a zlib header or raw data.
    First(u8),
    Data,
    /// In the data of WebSocket messages. The data continues after the end of a deflate stream.
    Messages,
    /// After the last block: only the checksum and bytes to ignore follow.
    Past,
}

/// A decoder for one zlib or raw deflate stream, or for WebSocket messages.
#[derive(Debug)]
pub(super) struct Deflate {
    inflate: Inflate,
    at: DeflateAt,
}

impl Deflate {
    pub(super) fn new() -> Deflate {
        Deflate { inflate: Inflate::new(), at: DeflateAt::Start }
    }

    /// A decoder for WebSocket messages.
    pub(super) fn of_messages() -> Deflate {
        Deflate { inflate: Inflate::new(), at: DeflateAt::Messages }
    }

    fn inflate(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        let inflated = self.inflate.step(input, output)?;
        match self.at {
            // A sender may end its deflate stream with a message (RFC 7692, section 7.2.3.4); a new stream then begins
            // in the following bytes, without the old window.
            DeflateAt::Messages if inflated.ended => self.inflate.reset(),
            _ if inflated.ended => self.at = DeflateAt::Past,
            _ => {}
        }
        Ok(inflated.written)
    }
}

impl Stage for Deflate {
    fn holds(&self) -> usize {
        INFLATE_BYTES
    }

    fn restart(&mut self) -> Result<(), Unreadable> {
        self.inflate.reset();
        if self.at != DeflateAt::Messages {
            self.at = DeflateAt::Start;
        }
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        self.at == DeflateAt::Past
    }

    fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        match self.at {
            DeflateAt::Start => {
                if let Some((first, rest)) = input.split_first() {
                    *input = rest;
                    self.at = DeflateAt::First(*first);
                }
                Ok(0)
            }
            DeflateAt::First(first) => {
                let Some(second) = input.first() else { return Ok(0) };
                let header = u16::from_be_bytes([first, *second]);
                self.at = DeflateAt::Data;
                if is_zlib(header) {
                    if second & PRESET_DICTIONARY != 0 {
                        return Err(Unreadable::Corrupt);
                    }
                    *input = input.get(1..).unwrap_or_default();
                    return Ok(0);
                }
                // The first byte alone produces no output, so nothing in `output` is overwritten.
                self.inflate(&mut [first].as_slice(), output)?;
                self.inflate(input, output)
            }
            DeflateAt::Data | DeflateAt::Messages => self.inflate(input, output),
            DeflateAt::Past => {
                *input = &[];
                Ok(0)
            }
        }
    }
}

/// The flag for a preset dictionary (section 2.2, FDICT). HTTP defines no dictionary.
const PRESET_DICTIONARY: u8 = 0x20;

/// True for a zlib header: method 8, a window of at most 32 KiB, check bits (RFC 1950, section 2.2). Raw deflate with
/// such a first byte would begin with a stored block whose padding is not zero, which encoders do not write.
fn is_zlib(header: u16) -> bool {
    header >> 8 & 0x8f == 8 && header.is_multiple_of(31)
}
