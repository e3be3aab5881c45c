//! Parses frames (RFC 9113, section 4.1) that may be split at any byte; returns their content without padding and
//! priority fields.

use std::time::Instant;

use crate::slices::{Prefix, take};

/// Length (24 bits), type (8), flags (8), stream (32, of which 31 are used).
const HEADER_BYTES: usize = 9;

/// The frame types that matter to an observer (RFC 9113, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Headers,
    ResetStream,
    Settings,
    PushPromise,
    GoAway,
    Continuation,
    /// PRIORITY, PING, WINDOW_UPDATE, and extension frames.
    Other,
}

impl Kind {
    fn of(code: u8) -> Kind {
        match code {
            0 => Kind::Data,
            1 => Kind::Headers,
            3 => Kind::ResetStream,
            4 => Kind::Settings,
            5 => Kind::PushPromise,
            7 => Kind::GoAway,
            9 => Kind::Continuation,
            _ => Kind::Other,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    flags: u8,
    /// 0 for the connection.
    pub(super) stream: u32,
}

impl Frame {
    pub(super) fn ends_stream(self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Headers) && self.flags & 0x1 != 0
    }

    pub(super) fn ends_headers(self) -> bool {
        self.flags & 0x4 != 0
    }

    fn is_padded(self) -> bool {
        matches!(self.kind, Kind::Data | Kind::Headers | Kind::PushPromise) && self.flags & 0x8 != 0
    }

    /// Bytes between the pad length and the content: dependency and weight of HEADERS, or the promised stream of
    /// PUSH_PROMISE.
    fn fields(self) -> u8 {
        match self.kind {
            Kind::Headers if self.flags & 0x20 != 0 => 5,
            Kind::PushPromise => 4,
            _ => 0,
        }
    }
}

/// A part of a frame's content.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) frame: Frame,
    pub(super) content: &'a [u8],
    /// The content ends here. Every frame, even an empty one, has exactly one such part.
    pub(super) last: bool,
}

/// Padding or fields exceed their frame. The frame's remaining bytes follow as its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadFrame;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In a frame's header.
    Header,
    PadLength,
    /// In the fields, of which this many bytes remain.
    Fields(u8),
    Content,
    Padding,
}

/// The frames of one direction.
#[derive(Debug)]
pub(super) struct Frames {
    header: Prefix<HEADER_BYTES>,
    at: At,
    frame: Frame,
    /// Remaining bytes of the payload, excluding the padding once its length is known.
    left: u32,
    padding: u8,
    /// When the frame's first byte was read.
    first: Option<Instant>,
}

impl Frames {
    pub(super) fn new() -> Frames {
        let frame = Frame { kind: Kind::Other, flags: 0, stream: 0 };
        Frames { header: Prefix::new(), at: At::Header, frame, left: 0, padding: 0, first: None }
    }

    /// True if no bytes were received.
    pub(super) fn is_unused(&self) -> bool {
        self.first.is_none()
    }

    /// When the first byte of the current frame was read; `at` if no frame has begun.
    pub(super) fn first(&self, at: Instant) -> Instant {
        self.first.unwrap_or(at)
    }

    /// The next part in `bytes`, read at `at`; advances `bytes` past the part. `None` when all bytes are consumed.
    #[inline]
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8], at: Instant) -> Result<Option<Part<'a>>, BadFrame> {
        loop {
            match self.at {
                At::Header => {
                    if self.header.len() == 0 && !bytes.is_empty() {
                        self.first = Some(at);
                    }
                    if !self.header.fill(HEADER_BYTES, bytes) {
                        return Ok(None);
                    }
                    self.begin()?;
                }
                At::PadLength => {
                    let Some((length, rest)) = bytes.split_first() else { return Ok(None) };
                    *bytes = rest;
                    self.padding = *length;
                    let least = u32::from(*length) + u32::from(self.frame.fields());
                    self.left -= 1;
                    if self.left < least {
                        return Err(self.bad());
                    }
                    self.left -= u32::from(*length);
                    self.at = At::Fields(self.frame.fields());
                }
                At::Fields(0) => self.at = At::Content,
                At::Fields(fields) => {
                    let skipped = take(bytes, fields.into()).len();
                    if skipped == 0 {
                        return Ok(None);
                    }
                    self.left -= skipped as u32;
                    self.at = At::Fields(fields - skipped as u8);
                }
                At::Content => {
                    if bytes.is_empty() && self.left > 0 {
                        return Ok(None);
                    }
                    let content = take(bytes, self.left.into());
                    self.left -= content.len() as u32;
                    let last = self.left == 0;
                    if last {
                        self.left = u32::from(self.padding);
                        self.at = if self.padding == 0 { At::Header } else { At::Padding };
                    }
                    return Ok(Some(Part { frame: self.frame, content, last }));
                }
                At::Padding => {
                    self.left -= take(bytes, self.left.into()).len() as u32;
                    if self.left > 0 {
                        return Ok(None);
                    }
                    self.at = At::Header;
                }
            }
        }
    }

    /// Begins the frame whose header is complete.
    fn begin(&mut self) -> Result<(), BadFrame> {
        let [l1, l2, l3, kind, flags, stream @ ..] = *self.header.bytes();
        self.header.clear();
        self.frame = Frame { kind: Kind::of(kind), flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff };
        self.left = u32::from_be_bytes([0, l1, l2, l3]);
        self.padding = 0;
        self.at = if self.frame.is_padded() { At::PadLength } else { At::Fields(self.frame.fields()) };
        let least = u32::from(self.frame.is_padded()) + u32::from(self.frame.fields());
        if self.left < least { Err(self.bad()) } else { Ok(()) }
    }

    fn bad(&mut self) -> BadFrame {
        (self.at, self.padding) = (At::Content, 0);
        BadFrame
    }

    /// The current frame.
    pub(super) fn current(&self) -> Frame {
        self.frame
    }
}
