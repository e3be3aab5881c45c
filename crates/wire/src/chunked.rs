//! The chunked transfer coding (RFC 9112, section 7.1), split at any byte.

use memchr::memchr2;

/// The part of a chunked body that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first digit of a chunk size.
    SizeStart,
    /// A further digit, or the first byte after the digits.
    Size,
    /// White space after the digits, before an extension or the end of the line.
    SizeSpace,
    /// Inside a chunk extension, up to its CR.
    Extension,
    /// The LF of a size line.
    SizeLf,
    /// `left` bytes of data.
    Data,
    /// The CR after the data.
    DataCr,
    /// The LF after the data.
    DataLf,
    /// The start of a line of the trailer section.
    TrailerStart,
    /// Inside a trailer field line, up to its CR.
    Trailer,
    /// The LF of a trailer field line.
    TrailerLf,
    /// The LF of the empty line that ends the body.
    EndLf,
}

/// Chunk framing that violates RFC 9112, or a chunk size that does not fit in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadChunk;

/// The state of one chunked body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunked {
    /// The size read so far, then the remaining data bytes.
    left: u64,
    phase: Phase,
}

const NOT_HEX: u8 = 0xff;

/// The value of each byte as a hexadecimal digit.
const HEX: [u8; 256] = {
    let mut table = [NOT_HEX; 256];
    let mut digit = 0;
    while digit < 16 {
        table[b"0123456789abcdef"[digit] as usize] = digit as u8;
        table[b"0123456789ABCDEF"[digit] as usize] = digit as u8;
        digit += 1;
    }
    table
};

/// A size line without extension at the start of `bytes`: the size, and the bytes after the line. `None` when the line
/// is incomplete, has an extension, or is malformed: the bytewise state machine distinguishes these cases.
#[inline]
fn plain_size_line(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut size = 0u64;
    // Sixteen digits fit in 64 bits: no overflow is possible.
    for (index, byte) in bytes.iter().take(16).enumerate() {
        let digit = HEX[usize::from(*byte)];
        if digit == NOT_HEX {
            let line_end = bytes.get(index..)?;
            let rest = line_end.strip_prefix(b"\r\n")?;
            return (index > 0).then_some((size, rest));
        }
        size = size << 4 | u64::from(digit);
    }
    None
}

impl Chunked {
    pub(super) fn new() -> Chunked {
        Chunked { left: 0, phase: Phase::SizeStart }
    }

    /// Reads `bytes` and passes each slice of data to `data`. `Some(rest)` when the body ended; `rest` follows it.
    #[inline]
    pub(super) fn read<'a>(
        &mut self,
        mut bytes: &'a [u8],
        mut data: impl FnMut(&'a [u8]),
    ) -> Result<Option<&'a [u8]>, BadChunk> {
        loop {
            match self.phase {
                Phase::SizeStart => {
                    let Some((size, rest)) = plain_size_line(bytes) else {
                        match bytes.split_first() {
                            None => return Ok(None),
                            Some((byte, rest)) => {
                                (self.left, self.phase) = (0, Phase::Size);
                                self.digit(*byte)?;
                                bytes = rest;
                            }
                        }
                        continue;
                    };
                    bytes = rest;
                    if let Some((chunk, rest)) = whole_chunk(bytes, size) {
                        data(chunk);
                        bytes = rest;
                    } else {
                        self.left = size;
                        self.size_known();
                    }
                }
                Phase::Data => {
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    let here = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                    let (chunk, rest) = bytes.split_at_checked(here).ok_or(BadChunk)?;
                    data(chunk);
                    self.left -= here as u64;
                    bytes = rest;
                    if self.left == 0 {
                        self.phase = Phase::DataCr;
                    }
                }
                Phase::Extension | Phase::Trailer => match memchr2(b'\r', b'\n', bytes) {
                    None => return Ok(None),
                    Some(end) => {
                        // Readers disagree on whether a bare LF ends the line.
                        let (line_end, rest) = bytes.get(end..).and_then(<[u8]>::split_first).ok_or(BadChunk)?;
                        self.phase = match (line_end, self.phase) {
                            (b'\n', _) => return Err(BadChunk),
                            (_, Phase::Extension) => Phase::SizeLf,
                            _ => Phase::TrailerLf,
                        };
                        bytes = rest;
                    }
                },
                _ => {
                    let Some((byte, rest)) = bytes.split_first() else { return Ok(None) };
                    bytes = rest;
                    if self.step(*byte)? {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }

    /// Processes one byte of the framing. True when it was the last byte of the body.
    fn step(&mut self, byte: u8) -> Result<bool, BadChunk> {
        match (self.phase, byte) {
            (Phase::Size | Phase::SizeSpace, b'\r') => self.phase = Phase::SizeLf,
            (Phase::Size | Phase::SizeSpace, b';') => self.phase = Phase::Extension,
            (Phase::Size | Phase::SizeSpace, b' ' | b'\t') => self.phase = Phase::SizeSpace,
            (Phase::Size, _) => self.digit(byte)?,
            (Phase::SizeLf, b'\n') => self.size_known(),
            (Phase::DataCr, b'\r') => self.phase = Phase::DataLf,
            (Phase::DataLf, b'\n') => self.phase = Phase::SizeStart,
            (Phase::TrailerStart, b'\r') => self.phase = Phase::EndLf,
            (Phase::TrailerStart, byte) if byte != b'\n' => self.phase = Phase::Trailer,
            (Phase::TrailerLf, b'\n') => self.phase = Phase::TrailerStart,
            (Phase::EndLf, b'\n') => return Ok(true),
            _ => return Err(BadChunk),
        }
        Ok(false)
    }

    fn digit(&mut self, byte: u8) -> Result<(), BadChunk> {
        let digit = HEX[usize::from(byte)];
        if digit == NOT_HEX || self.left >> 60 != 0 {
            return Err(BadChunk);
        }
        self.left = self.left << 4 | u64::from(digit);
        Ok(())
    }

    /// The size line is complete: data follows, or after the last chunk the trailer section.
    fn size_known(&mut self) {
        self.phase = if self.left == 0 { Phase::TrailerStart } else { Phase::Data };
    }
}

/// The data of a chunk of `size` bytes, if `bytes` contain it and its line end, and the bytes after that.
#[inline]
fn whole_chunk(bytes: &[u8], size: u64) -> Option<(&[u8], &[u8])> {
    let size = usize::try_from(size).ok().filter(|size| *size > 0)?;
    let (chunk, rest) = bytes.split_at_checked(size)?;
    Some((chunk, rest.strip_prefix(b"\r\n")?))
}
