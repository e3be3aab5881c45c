//! One direction of a connection.

use std::time::Instant;

use crate::http2::frame::{BadFrame, Frame, Frames, Kind, Part};
use crate::http2::hpack::{Decoder, Fields};
use crate::message::Fault;
use crate::slices::Prefix;

/// Maximum used bytes of RST_STREAM and GOAWAY: two 32-bit words.
const WORDS_BYTES: usize = 8;

/// Maximum size of a coded header block, as a multiple of the limit for decoded fields. A block whose size is between
/// that limit and this maximum only loses fields, and the connection can still be parsed.
const BLOCK_OVER_CAP: usize = 4;

/// A parsed event of one direction.
#[derive(Debug)]
pub(super) enum Event<'a> {
    /// A header block of a stream is complete; the first byte of its frame was read at `first`.
    Fields { stream: u32, fields: Fields, ends: bool, first: Instant },
    /// Data of a stream; empty data only ends it.
    Data { stream: u32, bytes: &'a [u8], ends: bool },
    /// RST_STREAM.
    Reset { stream: u32, code: u32 },
    /// GOAWAY: streams above `last` are not processed.
    GoAway { last: u32 },
}

/// Maximum bytes copied from the tables per received byte. One coded byte may refer to a field of several kilobytes, so
/// the decoded size of header blocks is limited relative to the received bytes. A request of 20 bytes that refers to 5
/// KB of fields in the table is common.
const EXPANSION: u32 = 256;

/// Initial and maximum value of `Half::expansion`. The maximum also limits one block.
const EXPANSION_INITIAL: u32 = 1024 * 1024;
const EXPANSION_MAXIMUM: u32 = 4 * 1024 * 1024;

/// An incomplete header block.
#[derive(Debug)]
struct Open {
    /// The block's first frame.
    frame: Frame,
    /// When the first byte of that frame was read.
    first: Instant,
    /// The current frame is complete: CONTINUATION follows.
    between: bool,
    /// The bytes of the block from earlier reads and frames.
    bytes: Vec<u8>,
}

/// Parses one direction. Holds memory for the compression table and the pieces of a split header block.
#[derive(Debug)]
pub(super) struct Half {
    frames: Frames,
    /// The fault for frames that are not allowed in this direction.
    malformed: Fault,
    block: Option<Box<Open>>,
    hpack: Decoder,
    /// Bytes that header blocks may still copy from the tables.
    expansion: u32,
    /// The first bytes of a RST_STREAM or GOAWAY.
    words: Prefix<WORDS_BYTES>,
    /// The first frame, SETTINGS, has not been received yet.
    fresh: bool,
    /// The stream of the header block being collected or decoded last.
    block_stream: u32,
}

impl Half {
    pub(super) fn new(malformed: Fault) -> Half {
        Half {
            frames: Frames::new(),
            malformed,
            block: None,
            hpack: Decoder::new(),
            expansion: EXPANSION_INITIAL,
            words: Prefix::new(),
            fresh: true,
            block_stream: 0,
        }
    }

    /// The streams of the headers that caused a fault: the last block and the current frame.
    pub(super) fn faulty_streams(&self) -> [u32; 2] {
        let frame = self.frames.current();
        let current = if frame.kind == Kind::Headers { frame.stream } else { 0 };
        [self.block_stream.min(current), self.block_stream.max(current)]
    }

    /// True if no frame that begins a connection was received.
    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// True if no bytes were received.
    pub(super) fn is_unused(&self) -> bool {
        self.fresh && self.frames.is_unused()
    }

    /// Frees what only header decompression needs; it is not continued.
    pub(super) fn stop_decoding(&mut self) {
        (self.block, self.hpack) = (None, Decoder::new());
    }

    /// The stream of the next HEADERS frame in `bytes`, and the time of its first byte. Decodes nothing.
    pub(super) fn next_headers(&mut self, bytes: &mut &[u8], at: Instant) -> Option<(u32, Instant)> {
        loop {
            match self.frames.next(bytes, at) {
                Ok(Some(Part { frame, last: true, .. })) if frame.kind == Kind::Headers => {
                    return Some((frame.stream, self.frames.first(at)));
                }
                Ok(Some(_)) | Err(BadFrame) => {}
                Ok(None) => return None,
            }
        }
    }

    /// Bytes held on the heap.
    pub(super) fn holds(&self) -> usize {
        let block = self.block.as_ref().map_or(0, |open| size_of::<Open>() + open.bytes.capacity());
        block + self.hpack.holds()
    }

    /// The next event in `bytes`, read at `at`; advances `bytes` past it. Decodes at most `cap` bytes of a header list.
    /// `None` when all bytes are consumed.
    #[inline]
    pub(super) fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
        at: Instant,
        cap: usize,
    ) -> Result<Option<Event<'a>>, Fault> {
        while let Some(part) = self.frames.next(bytes, at).map_err(|BadFrame| self.malformed)? {
            if let Some(event) = self.take(part, at, cap)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn take<'a>(&mut self, part: Part<'a>, at: Instant, cap: usize) -> Result<Option<Event<'a>>, Fault> {
        let Part { frame, content, last } = part;
        let earned = u32::try_from(content.len()).unwrap_or(u32::MAX).saturating_mul(EXPANSION);
        self.expansion = self.expansion.saturating_add(earned).min(EXPANSION_MAXIMUM);
        // Each side begins with SETTINGS (RFC 9113, section 3.4); anything else is not HTTP/2.
        if self.fresh && frame.kind != Kind::Settings {
            return Err(self.malformed);
        }
        self.fresh = false;
        let in_block = self.block.is_some();
        let stream = frame.stream;
        match frame.kind {
            // No other frame may occur within a header block (section 6.10).
            Kind::Continuation if !in_block => Err(self.malformed),
            Kind::Headers | Kind::PushPromise | Kind::Continuation => self.take_block(part, at, cap),
            _ if in_block => Err(self.malformed),
            Kind::Data if stream == 0 => Err(self.malformed),
            Kind::Data => {
                let ends = last && frame.ends_stream();
                Ok((ends || !content.is_empty()).then_some(Event::Data { stream, bytes: content, ends }))
            }
            Kind::ResetStream => Ok(self.take_words(part).map(|[code, _]| Event::Reset { stream, code })),
            Kind::GoAway => {
                let words = self.take_words(part);
                Ok(words.map(|[last, _]| Event::GoAway { last: last & 0x7fff_ffff }))
            }
            Kind::Settings | Kind::Other => Ok(None),
        }
    }

    /// Collects a header block and decodes it when it is complete.
    fn take_block<'a>(&mut self, part: Part<'_>, at: Instant, cap: usize) -> Result<Option<Event<'a>>, Fault> {
        let Part { frame, content, last } = part;
        let mut open = self.block.take();
        let restarts = open.as_ref().is_some_and(|open| open.between) && frame.kind != Kind::Continuation;
        let begun = open.as_ref().map_or(frame, |open| open.frame);
        if begun.kind == Kind::Headers {
            self.block_stream = begun.stream;
        }
        if restarts || frame.stream == 0 || frame.stream != begun.stream {
            return Err(self.malformed);
        }
        let first = open.as_ref().map_or_else(|| self.frames.first(at), |open| open.first);
        let before = open.as_ref().map_or(0, |open| open.bytes.len());
        if before + content.len() > cap.saturating_mul(BLOCK_OVER_CAP) {
            return Err(Fault::HeadTooLarge);
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
        let mut expansion = self.expansion as usize;
        let fields = self.hpack.decode(block, cap, &mut expansion);
        self.expansion = u32::try_from(expansion).unwrap_or(u32::MAX);
        let fields = fields?;
        let event = Event::Fields { stream: begun.stream, fields, ends: begun.ends_stream(), first };
        // PUSH_PROMISE announces a request that the client did not send; its block had to be decoded to update the
        // table.
        Ok((begun.kind == Kind::Headers).then_some(event))
    }

    /// Collects the first two words of a frame; returns them at the end of the frame.
    fn take_words(&mut self, part: Part<'_>) -> Option<[u32; 2]> {
        self.words.fill(WORDS_BYTES, &mut { part.content });
        if !part.last {
            return None;
        }
        // A frame that is too short is the sender's error, which the receiver handles.
        let enough = self.words.len() >= 4;
        self.words.clear();
        let [a, b, c, d, e, f, g, h] = *self.words.bytes();
        enough.then_some([u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])])
    }
}
