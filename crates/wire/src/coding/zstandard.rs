//! `zstd` (RFC 8878).

use zstd_safe::DCtx;
use zstd_safe::DParameter;
use zstd_safe::InBuffer;
use zstd_safe::OutBuffer;
use zstd_safe::ResetDirective;

use crate::coding::Unreadable;

/// How a frame begins (section 3.1.1), and a skippable one, whose first byte's low half is free (section 3.1.2).
const FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const SKIPPABLE: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

/// Bytes of a block's header (section 3.1.1.2).
const BLOCK_HEADER: usize = 3;

/// Maximum decoded bytes of a block (section 3.1.1.2.4).
const BLOCK: usize = 128 * 1024;

/// `ZSTD_error_frameParameter_windowTooLarge` (zstd_errors.h; values under 100 do not change).
const WINDOW_TOO_LARGE: usize = 0usize.wrapping_sub(16);

/// Where in the stream the next byte stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// This many bytes into the four that begin a frame; `true` when they begin a skippable one.
    ///
    /// They are looked at here because the library may be built with formats from before the standard, whose memory has
    /// no cap.
    Magic(usize, bool),
    Frame,
    /// After the last frame: what follows is not zstd, and ignored.
    Past,
}

/// A series of zstd frames being undone.
pub(super) struct Zstandard {
    context: DCtx<'static>,
    at: At,
    first: u8,
    /// A frame has ended.
    several: bool,
    /// How many bytes the library gets next: the rest of a block without the header of the one after it, which may be none.
    wanted: usize,
    /// The library may have more to give of the block before the next byte.
    more: bool,
    /// What the library held before the first frame.
    base: usize,
    /// Bytes given out so far: as much of its buffers the library has written to, which the system then has to provide.
    given: usize,
}

impl std::fmt::Debug for Zstandard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zstandard").field("holds", &self.holds()).finish_non_exhaustive()
    }
}

impl Zstandard {
    /// Frames that ask for a larger window than `most_window`, rounded down to a power of two, are refused.
    pub(super) fn new(most_window: usize) -> Result<Zstandard, Unreadable> {
        let mut context = DCtx::try_create().ok_or(Unreadable::Memory)?;
        let most = most_window.max(1).ilog2();
        context.set_parameter(DParameter::WindowLogMax(most)).map_err(|_| Unreadable::Window)?;
        let base = context.sizeof();
        let at = At::Magic(0, false);
        Ok(Zstandard { context, at, first: 0, several: false, wanted: FRAME.len(), more: false, base, given: 0 })
    }

    /// A frame may declare a window of megabytes and fill a few bytes of it.
    pub(super) fn holds(&self) -> usize {
        let buffers = self.context.sizeof().saturating_sub(self.base);
        self.base + buffers.min(self.given.saturating_add(BLOCK))
    }

    /// Maximum bytes that were decoded and not given out.
    pub(super) fn ahead(&self) -> usize {
        if self.more { BLOCK } else { 0 }
    }

    /// Before the first byte of another stream.
    pub(super) fn restart(&mut self) -> Result<(), Unreadable> {
        self.context.reset(ResetDirective::SessionOnly).map_err(|_| Unreadable::Corrupt)?;
        (self.at, self.several, self.wanted, self.more) = (At::Magic(0, false), false, FRAME.len(), false);
        Ok(())
    }

    /// A frame has ended, and no other begun.
    pub(super) fn is_at_end(&self) -> bool {
        self.several && matches!(self.at, At::Magic(0, _) | At::Past)
    }

    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        loop {
            match self.at {
                At::Past => {
                    *input = &[];
                    return Ok(0);
                }
                At::Frame => return self.frame(input, output),
                At::Magic(index, skippable) => {
                    let Some((byte, rest)) = input.split_first() else { return Ok(0) };
                    let skippable = if index == 0 { byte & 0xf0 == SKIPPABLE[0] } else { skippable };
                    let expected = if skippable { SKIPPABLE } else { FRAME };
                    let fits = (index == 0 && skippable) || expected.get(index) == Some(byte);
                    if !fits {
                        if !self.several {
                            return Err(Unreadable::Corrupt);
                        }
                        self.at = At::Past;
                        continue;
                    }
                    *input = rest;
                    if index == 0 {
                        self.first = *byte;
                    }
                    if index < 3 {
                        self.at = At::Magic(index + 1, skippable);
                        continue;
                    }
                    let [_, second, third, fourth] = expected;
                    self.at = At::Frame;
                    self.wanted = FRAME.len();
                    self.frame(&mut [self.first, second, third, fourth].as_slice(), output)?;
                }
            }
        }
    }

    /// By blocks and headers, and a block is given whole before the next header is shown: of what it wrote in a call that fails
    /// the library tells nothing.
    fn frame(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        if self.more {
            let written = self.call(&mut [].as_slice(), output)?;
            if written > 0 {
                return Ok(written);
            }
        }
        self.call(input, output)
    }

    fn call(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        let mut taken = InBuffer::around(input.get(..self.wanted).unwrap_or(input));
        let mut given = OutBuffer::around(output);
        let hint = self.context.decompress_stream(&mut given, &mut taken).map_err(|code| match code {
            WINDOW_TOO_LARGE => Unreadable::Window,
            _ => Unreadable::Corrupt,
        })?;
        let (written, room) = (given.pos(), given.capacity());
        *input = input.get(taken.pos()..).unwrap_or_default();
        self.wanted = if hint > BLOCK_HEADER { hint - BLOCK_HEADER } else { hint.max(1) };
        self.given = self.given.saturating_add(written);
        self.more = hint > 0 && written == room;
        if hint == 0 {
            self.at = At::Magic(0, false);
            self.several = true;
        }
        Ok(written)
    }
}
