//! `deflate`: the zlib format (RFC 1950), or raw deflate, which some senders use under that name.

use crate::coding::Unreadable;
use crate::coding::inflate::INFLATE_BYTES;
use crate::coding::inflate::Inflate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the first byte.
    Start,
    /// After this first byte: with the second it is either a zlib header or raw data.
    First(u8),
    Data,
    /// After the last block: the checksum and all further bytes.
    Past,
}

/// A decoder for one zlib or raw deflate stream.
#[derive(Debug)]
pub(super) struct Zlib {
    inflate: Inflate,
    at: At,
}

impl Zlib {
    pub(super) fn new() -> Zlib {
        Zlib { inflate: Inflate::new(), at: At::Start }
    }

    pub(super) fn holds(&self) -> usize {
        INFLATE_BYTES
    }

    /// Prepares for a new stream.
    pub(super) fn restart(&mut self) {
        self.inflate.reset();
        self.at = At::Start;
    }

    /// True after the last block.
    pub(super) fn is_at_end(&self) -> bool {
        self.at == At::Past
    }

    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        match self.at {
            At::Start => {
                if let Some((first, rest)) = input.split_first() {
                    *input = rest;
                    self.at = At::First(*first);
                }
                Ok(0)
            }
            At::First(first) => {
                let Some(second) = input.first() else { return Ok(0) };
                let header = u16::from_be_bytes([first, *second]);
                self.at = At::Data;
                if is_zlib(header) {
                    if second & PRESET_DICTIONARY != 0 {
                        return Err(Unreadable::Corrupt);
                    }
                    *input = input.get(1..).unwrap_or_default();
                    return Ok(0);
                }
                // One byte produces no output.
                self.inflated(&mut [first].as_slice(), output)?;
                self.inflated(input, output)
            }
            At::Data => self.inflated(input, output),
            At::Past => {
                *input = &[];
                Ok(0)
            }
        }
    }

    fn inflated(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        let inflated = self.inflate.step(input, output)?;
        if inflated.ended {
            self.at = At::Past;
        }
        Ok(inflated.written)
    }
}

/// The flag for a preset dictionary (section 2.2, FDICT): HTTP has none.
const PRESET_DICTIONARY: u8 = 0x20;

/// True for a header of the zlib format: method 8, a window of at most 32 KiB, check bits (RFC 1950, section 2.2). Raw
/// deflate with such a first byte would begin with a stored block whose padding is not zero.
fn is_zlib(header: u16) -> bool {
    header >> 8 & 0x8f == 8 && header.is_multiple_of(31)
}
