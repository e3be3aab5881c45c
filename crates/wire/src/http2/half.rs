//! One direction of a connection.

use std::time::Instant;

use crate::http2::frame::BadFrame;
use crate::http2::frame::Frame;
use crate::http2::frame::Frames;
use crate::http2::frame::Kind;
use crate::http2::frame::Part;
use crate::http2::hpack::BadBlock;
use crate::http2::hpack::Decoder;
use crate::http2::hpack::Fields;

/// Bytes of RST_STREAM and GOAWAY that mean something: two words of 32 bits at most.
const WORDS_BYTES: usize = 8;

/// A coded header block may be this many times as large as the cap of its decoded fields, so that an oversized one does
/// not end the reading of its connection.
const BLOCK_OVER_CAP: usize = 4;

/// What a direction says.
#[derive(Debug)]
pub(super) enum Said<'a> {
    /// A header block of a stream is whole; the first byte of its frame was read at `first`.
    Fields { stream: u32, fields: Fields, ends: bool, first: Instant },
    /// Data of a stream; what is empty only ends it.
    Data { stream: u32, bytes: &'a [u8], ends: bool },
    /// RST_STREAM.
    Reset { stream: u32, code: u32 },
    /// GOAWAY: streams above this one are not looked at.
    GoAway { last: u32 },
}

/// Why a direction cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    Frame,
    Block(BadBlock),
    BlockTooLarge,
    Expansion,
}

/// Limits what header blocks decode to by what their direction carried: one coded byte may stand for a field of
/// kilobytes.
#[derive(Debug)]
struct Expansion {
    credit: usize,
}

impl Expansion {
    const INITIAL: usize = 1024 * 1024;
    const MAXIMUM: usize = 4 * 1024 * 1024;

    /// Decoded bytes for each byte that was read: a request of 20 bytes whose fields of 5 KB are all in the table is usual.
    const RATIO: usize = 256;

    fn new() -> Expansion {
        Expansion { credit: Expansion::INITIAL }
    }

    fn earn(&mut self, bytes: usize) {
        self.credit = self.credit.saturating_add(bytes.saturating_mul(Expansion::RATIO)).min(Expansion::MAXIMUM);
    }

    /// True when the credit covers this much.
    fn spend(&mut self, bytes: usize) -> bool {
        let left = self.credit.checked_sub(bytes);
        self.credit = left.unwrap_or(0);
        left.is_some()
    }
}

impl From<BadFrame> for Bad {
    fn from(_: BadFrame) -> Bad {
        Bad::Frame
    }
}

/// A header block whose end has not come.
#[derive(Debug)]
struct Open {
    /// The frame it began with.
    frame: Frame,
    /// When the first byte of that was read.
    first: Instant,
    /// The frame at hand is whole: CONTINUATION follows.
    between: bool,
    /// What of it lay in earlier reads and frames.
    bytes: Vec<u8>,
}

/// Reads one direction. Holds memory for its table, and for the pieces of a split header block.
#[derive(Debug)]
pub(super) struct Half {
    frames: Frames,
    block: Option<Box<Open>>,
    hpack: Decoder,
    expansion: Expansion,
    /// The start of a RST_STREAM or GOAWAY.
    words: [u8; WORDS_BYTES],
    words_have: u8,
    /// No frame came yet.
    fresh: bool,
}

impl Half {
    pub(super) fn new() -> Half {
        Half {
            frames: Frames::new(),
            block: None,
            hpack: Decoder::new(),
            expansion: Expansion::new(),
            words: [0; WORDS_BYTES],
            words_have: 0,
            fresh: true,
        }
    }

    /// Bytes it holds on the heap.
    pub(super) fn holds(&self) -> usize {
        let block = self.block.as_ref().map_or(0, |open| size_of::<Open>() + open.bytes.capacity());
        block + self.hpack.holds()
    }

    /// The next thing that `bytes`, read at `at`, say; they then begin behind it. Of a header list `cap` bytes are decoded.
    /// `None` when all of them are read.
    #[inline]
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8], at: Instant, cap: usize) -> Result<Option<Said<'a>>, Bad> {
        while let Some(part) = self.frames.next(bytes, at)? {
            if let Some(said) = self.take(part, at, cap)? {
                return Ok(Some(said));
            }
        }
        Ok(None)
    }

    fn take<'a>(&mut self, part: Part<'a>, at: Instant, cap: usize) -> Result<Option<Said<'a>>, Bad> {
        let Part { frame, content, last } = part;
        self.expansion.earn(content.len());
        // Each side begins with SETTINGS (RFC 9113, section 3.4): what begins otherwise is no HTTP/2.
        if std::mem::take(&mut self.fresh) && frame.kind != Kind::Settings {
            return Err(Bad::Frame);
        }
        let in_block = self.block.is_some();
        let stream = frame.stream;
        match frame.kind {
            // No other frame may come between those of a block (section 6.10).
            Kind::Continuation if !in_block => Err(Bad::Frame),
            Kind::Headers | Kind::PushPromise | Kind::Continuation => self.take_block(part, at, cap),
            _ if in_block => Err(Bad::Frame),
            Kind::Data if stream == 0 => Err(Bad::Frame),
            Kind::Data => {
                let ends = last && frame.ends_stream();
                Ok((ends || !content.is_empty()).then_some(Said::Data { stream, bytes: content, ends }))
            }
            Kind::ResetStream => Ok(self.take_words(part).map(|[code, _]| Said::Reset { stream, code })),
            Kind::GoAway => {
                let words = self.take_words(part);
                Ok(words.map(|[last, _]| Said::GoAway { last: last & 0x7fff_ffff }))
            }
            Kind::Settings | Kind::Other => Ok(None),
        }
    }

    /// Gathers a header block and decodes it when it is whole.
    fn take_block<'a>(&mut self, part: Part<'_>, at: Instant, cap: usize) -> Result<Option<Said<'a>>, Bad> {
        let Part { frame, content, last } = part;
        let mut open = self.block.take();
        let restarts = open.as_ref().is_some_and(|open| open.between) && frame.kind != Kind::Continuation;
        let begun = open.as_ref().map_or(frame, |open| open.frame);
        if restarts || frame.stream == 0 || frame.stream != begun.stream {
            return Err(Bad::Frame);
        }
        let first = open.as_ref().map_or_else(|| self.frames.first(at), |open| open.first);
        let before = open.as_ref().map_or(0, |open| open.bytes.len());
        if before + content.len() > cap.saturating_mul(BLOCK_OVER_CAP) {
            return Err(Bad::BlockTooLarge);
        }
        if let Some(open) = &mut open {
            open.bytes.extend_from_slice(content);
            open.between = last;
        }
        if !(last && frame.ends_headers()) {
            let open =
                open.unwrap_or_else(|| Box::new(Open { frame, first, between: last, bytes: content.to_owned() }));
            self.block = Some(open);
            return Ok(None);
        }
        let block = open.as_ref().map_or(content, |open| &open.bytes);
        let (fields, decoded) = self.hpack.decode(block, cap).map_err(Bad::Block)?;
        if !self.expansion.spend(decoded) {
            return Err(Bad::Expansion);
        }
        let said = Said::Fields { stream: begun.stream, fields, ends: begun.ends_stream(), first };
        // What is promised was asked for by nobody; its block had to be decoded all the same.
        Ok((begun.kind == Kind::Headers).then_some(said))
    }

    /// The first two words of a frame, when it ends.
    fn take_words(&mut self, part: Part<'_>) -> Option<[u32; 2]> {
        for byte in part.content {
            if let Some(place) = self.words.get_mut(usize::from(self.words_have)) {
                *place = *byte;
                self.words_have += 1;
            }
        }
        if !part.last {
            return None;
        }
        let [a, b, c, d, e, f, g, h] = self.words;
        // One that is too short is an error of its sender's, which the receiver will answer.
        let enough = std::mem::take(&mut self.words_have) >= 4;
        enough.then_some([u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])])
    }
}
