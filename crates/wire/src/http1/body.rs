//! Finds the end of message bodies (RFC 9112, section 6) and removes the chunked transfer coding, however the bytes are
//! split.

use httparse::Header;
use memchr::memchr2;

use crate::slices::take;

/// Servers may disagree on where the body ends: length fields or chunk framing that RFC 9112 does not allow, or a chunk
/// size above 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadBody;

/// The length fields of the headers.
#[derive(Default)]
struct Lengths {
    content_length: Option<u64>,
    /// `Transfer-Encoding` is present.
    coded: bool,
    /// `chunked` is the last transfer coding.
    chunked: bool,
    /// See [`Framing::unclear`].
    unclear: bool,
}

/// The items of a comma-separated field value, without surrounding white space.
pub(super) fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Parses a decimal number. Signs, white space and numbers above 64 bits are malformed.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

impl Lengths {
    fn of(headers: &[Header<'_>]) -> Result<Lengths, BadBody> {
        let mut lengths = Lengths::default();
        for header in headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                // Repeated equal values are one value (RFC 9110, section 8.6).
                for item in items(header.value) {
                    let length = decimal(item).ok_or(BadBody)?;
                    if lengths.content_length.is_some_and(|other| other != length) {
                        return Err(BadBody);
                    }
                    lengths.content_length = Some(length);
                }
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                lengths.coded = true;
                for item in items(header.value).filter(|item| !item.is_empty()) {
                    // No coding may follow `chunked`. Servers that accept a second `chunked` ignore it.
                    let is_chunked = item.eq_ignore_ascii_case(b"chunked");
                    if lengths.chunked && !is_chunked {
                        return Err(BadBody);
                    }
                    lengths.unclear |= lengths.chunked;
                    lengths.chunked = is_chunked;
                }
            }
        }
        // `chunked` overrides a length (RFC 9112, section 6.3). Request smuggling exploits servers that disagree.
        if lengths.coded && lengths.content_length.is_some() {
            if !lengths.chunked {
                return Err(BadBody);
            }
            lengths.unclear = true;
        }
        Ok(lengths)
    }
}

/// Where a message ends.
#[derive(Debug)]
pub(super) struct Framing {
    /// `None` without a body.
    pub(super) body: Option<Body>,
    /// A server may disagree, although the usual servers do not. The bytes after the message may then belong to it.
    pub(super) unclear: bool,
}

/// Where a request with these headers ends.
pub(super) fn request_body(minor: u8, headers: &[Header<'_>]) -> Result<Framing, BadBody> {
    let lengths = Lengths::of(headers)?;
    let body = match lengths {
        // A request body cannot end with the connection, and some HTTP/1.0 servers ignore transfer codings.
        Lengths { coded: true, chunked, .. } if !chunked || minor == 0 => return Err(BadBody),
        Lengths { coded: true, .. } => Some(Body::Chunked(Chunked::START)),
        Lengths { content_length: None | Some(0), .. } => None,
        Lengths { content_length: Some(length), .. } => Some(Body::Length(length)),
    };
    Ok(Framing { body, unclear: lengths.unclear })
}

/// The body after the headers of a final response to a request other than HEAD and accepted CONNECT; `None` without a
/// body. The version does not matter: llama.cpp and vLLM respond to HTTP/1.0 requests in chunks.
pub(super) fn response_body(status: u16, headers: &[Header<'_>]) -> Result<Option<Body>, BadBody> {
    if matches!(status, 204 | 304) {
        return Ok(None);
    }
    match Lengths::of(headers)? {
        Lengths { chunked: true, .. } => Ok(Some(Body::Chunked(Chunked::START))),
        Lengths { content_length: Some(0), .. } => Ok(None),
        Lengths { content_length: Some(length), .. } => Ok(Some(Body::Length(length))),
        Lengths { content_length: None, .. } => Ok(Some(Body::UntilClose)),
    }
}

/// Where the body being read ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// After this many more bytes; never 0.
    Length(u64),
    /// Like `Length`, but a server may disagree.
    UnclearLength(u64),
    /// At its last chunk.
    Chunked(Chunked),
    /// At the end of the connection.
    UntilClose,
}

impl Body {
    /// See [`Framing::unclear`]; known at the end of the body.
    pub(super) fn is_unclear(&self) -> bool {
        matches!(self, Body::Chunked(Chunked { unclear: true, .. }) | Body::UnclearLength(_))
    }

    /// The same body with an unclear end.
    pub(super) fn into_unclear(self) -> Body {
        match self {
            Body::Length(left) => Body::UnclearLength(left),
            Body::Chunked(chunked) => Body::Chunked(Chunked { unclear: true, ..chunked }),
            other => other,
        }
    }

    /// Parses `bytes` and passes each slice of data to `data`. `Some(rest)` if the body ended; `rest` are the bytes
    /// after it.
    #[inline]
    pub(super) fn read<'a>(
        &mut self,
        bytes: &'a [u8],
        mut data: impl FnMut(&'a [u8]),
    ) -> Result<Option<&'a [u8]>, BadBody> {
        match self {
            Body::Chunked(chunked) => chunked.read(bytes, data),
            Body::UntilClose => {
                data(bytes);
                Ok(None)
            }
            Body::Length(left) | Body::UnclearLength(left) => {
                let mut rest = bytes;
                let body = take(&mut rest, *left);
                data(body);
                *left -= body.len() as u64;
                Ok((*left == 0).then_some(rest))
            }
        }
    }
}

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

/// The state of one chunked body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunked {
    /// The size read so far, then the remaining data bytes.
    left: u64,
    phase: Phase,
    /// A line of the framing ended with a bare LF, or the headers were unclear.
    unclear: bool,
}

const NOT_HEX: u8 = 0xff;

/// The value of each byte as a hexadecimal digit; [`NOT_HEX`] for other bytes.
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
    /// Before the first chunk.
    const START: Chunked = Chunked { left: 0, phase: Phase::SizeStart, unclear: false };

    /// Parses `bytes` and passes each slice of data to `data`. `Some(rest)` if the body ended; `rest` are the bytes
    /// after it.
    #[inline]
    pub(super) fn read<'a>(
        &mut self,
        mut bytes: &'a [u8],
        mut data: impl FnMut(&'a [u8]),
    ) -> Result<Option<&'a [u8]>, BadBody> {
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
                    let chunk = take(&mut bytes, self.left);
                    data(chunk);
                    self.left -= chunk.len() as u64;
                    if self.left == 0 {
                        self.phase = Phase::DataCr;
                    }
                }
                Phase::Extension | Phase::Trailer => match memchr2(b'\r', b'\n', bytes) {
                    None => return Ok(None),
                    Some(end) => {
                        // Parsers disagree on whether a bare LF ends an extension or a trailer field.
                        let (line_end, rest) = bytes.get(end..).and_then(<[u8]>::split_first).ok_or(BadBody)?;
                        self.phase = match (line_end, self.phase) {
                            (b'\n', _) => return Err(BadBody),
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

    /// Processes one byte of the framing. True if it was the last byte of the body.
    fn step(&mut self, byte: u8) -> Result<bool, BadBody> {
        match (self.phase, byte) {
            (Phase::Size | Phase::SizeSpace, b'\r') => self.phase = Phase::SizeLf,
            (Phase::Size | Phase::SizeSpace, b';') => self.phase = Phase::Extension,
            (Phase::Size | Phase::SizeSpace, b' ' | b'\t') => self.phase = Phase::SizeSpace,
            // Servers end the line here or reject it: no other interpretation is known.
            (Phase::Size | Phase::SizeSpace, b'\n') => {
                self.unclear = true;
                self.size_known();
            }
            (Phase::DataCr, b'\n') => (self.unclear, self.phase) = (true, Phase::SizeStart),
            (Phase::TrailerStart, b'\n') => {
                self.unclear = true;
                return Ok(true);
            }
            (Phase::Size, _) => self.digit(byte)?,
            (Phase::SizeLf, b'\n') => self.size_known(),
            (Phase::DataCr, b'\r') => self.phase = Phase::DataLf,
            (Phase::DataLf, b'\n') => self.phase = Phase::SizeStart,
            (Phase::TrailerStart, b'\r') => self.phase = Phase::EndLf,
            (Phase::TrailerStart, _) => self.phase = Phase::Trailer,
            (Phase::TrailerLf, b'\n') => self.phase = Phase::TrailerStart,
            (Phase::EndLf, b'\n') => return Ok(true),
            _ => return Err(BadBody),
        }
        Ok(false)
    }

    fn digit(&mut self, byte: u8) -> Result<(), BadBody> {
        let digit = HEX[usize::from(byte)];
        if digit == NOT_HEX || self.left >> 60 != 0 {
            return Err(BadBody);
        }
        self.left = self.left << 4 | u64::from(digit);
        Ok(())
    }

    /// Processes the end of a size line: data follows, or the trailer section if the size is 0.
    fn size_known(&mut self) {
        self.phase = if self.left == 0 { Phase::TrailerStart } else { Phase::Data };
    }
}

/// The data of a chunk of `size` bytes and the bytes after it. `None` unless `bytes` contain the data and its line end.
#[inline]
fn whole_chunk(bytes: &[u8], size: u64) -> Option<(&[u8], &[u8])> {
    let size = usize::try_from(size).ok().filter(|size| *size > 0)?;
    let (chunk, rest) = bytes.split_at_checked(size)?;
    Some((chunk, rest.strip_prefix(b"\r\n")?))
}
