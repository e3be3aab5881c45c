//! `zstd` (RFC 8878).

use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

use crate::coding::{Stage, Unreadable};

/// The magic number of a frame (section 3.1.1), and of a skippable frame, where the low half of the first byte is free
/// (section 3.1.2).
const FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const SKIPPABLE: [u8; 4] = [0x50, 0x2a, 0x4d, 0x18];

/// Size of a block header (section 3.1.1.2).
const BLOCK_HEADER: usize = 3;

/// Maximum decoded size of a block (section 3.1.1.2.4).
const BLOCK: usize = 128 * 1024;

/// Minimum cost of a block, in decoded bytes: its code tables take longer to build than a few bytes to decode. The blocks
/// of a stream with one token each earn more.
const BLOCK_COST: usize = 256;

/// `ZSTD_error_frameParameter_windowTooLarge` (zstd_errors.h; values under 100 do not change).
const WINDOW_TOO_LARGE: usize = 0usize.wrapping_sub(16);

/// The part of the stream that the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// This many bytes into the four-byte magic number; `true` for a skippable frame.
    ///
    /// The magic number is checked here, because the library may be built with support for pre-standard formats, whose
    /// memory use has no limit.
    Magic(usize, bool),
    Frame,
    /// After the last frame: further bytes are not zstd and are ignored.
    Past,
}

/// A decoder for a series of zstd frames.
pub(super) struct Zstandard {
    context: DCtx<'static>,
    at: At,
    first: u8,
    /// At least one frame has ended.
    frame_ended: bool,
    /// Bytes to pass to the library next: the rest of a block, without the header of a next block, which may not exist.
    wanted: usize,
    /// The library may have more output for the current block before it needs input.
    more: bool,
    /// Number of blocks whose minimum cost was not returned yet.
    blocks: usize,
    /// Bytes of the current block that its minimum cost covers.
    covered: usize,
    /// Memory held by the library before the first frame.
    base: usize,
    /// Bytes returned so far: the part of the library's buffers that was written and therefore occupies memory.
    given: usize,
}

impl std::fmt::Debug for Zstandard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zstandard").field("holds", &self.holds()).finish_non_exhaustive()
    }
}

impl Zstandard {
    /// A decoder that rejects frames with a window above `most_window`, rounded down to a power of two.
    pub(super) fn new(most_window: usize) -> Result<Zstandard, Unreadable> {
        let mut context = DCtx::try_create().ok_or(Unreadable::Memory)?;
        let most = most_window.max(1).ilog2();
        context.set_parameter(DParameter::WindowLogMax(most)).map_err(|_| Unreadable::Window)?;
        let base = context.sizeof();
        let at = At::Magic(0, false);
        Ok(Zstandard {
            context,
            at,
            first: 0,
            frame_ended: false,
            wanted: FRAME.len(),
            more: false,
            blocks: 0,
            covered: 0,
            base,
            given: 0,
        })
    }

    /// Passes blocks and headers separately, and passes a header only after the whole previous block was returned. If a
    /// call fails, the library does not report the bytes that it wrote, and they would be lost.
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
        // A header is passed without the block after it.
        self.blocks += usize::from(hint > BLOCK_HEADER && self.wanted <= BLOCK_HEADER);
        self.wanted = if hint > BLOCK_HEADER { hint - BLOCK_HEADER } else { hint.max(1) };
        self.given = self.given.saturating_add(written);
        self.more = hint > 0 && written == room;
        if hint == 0 {
            self.at = At::Magic(0, false);
            self.frame_ended = true;
        }
        Ok(written)
    }
}

impl Stage for Zstandard {
    /// Counts the filled part of the library's buffers: a frame may declare a window of megabytes and fill only a few
    /// bytes of it.
    fn holds(&self) -> usize {
        let buffers = self.context.sizeof().saturating_sub(self.base);
        self.base + buffers.min(self.given.saturating_add(BLOCK))
    }

    fn cost(&mut self, written: usize) -> usize {
        let begun = std::mem::take(&mut self.blocks) * BLOCK_COST;
        self.covered = if begun > 0 { begun } else { self.covered };
        let covered = written.min(self.covered);
        self.covered -= covered;
        begun + written - covered
    }

    /// Maximum number of bytes decoded but not returned yet.
    fn unpaid(&self) -> usize {
        if self.more { BLOCK } else { 0 }
    }

    fn restart(&mut self) -> Result<(), Unreadable> {
        self.context.reset(ResetDirective::SessionOnly).map_err(|_| Unreadable::Corrupt)?;
        (self.at, self.frame_ended, self.wanted, self.more) = (At::Magic(0, false), false, FRAME.len(), false);
        Ok(())
    }

    /// True if a frame has ended and no other has begun.
    fn is_at_end(&self) -> bool {
        self.frame_ended && matches!(self.at, At::Magic(0, _) | At::Past)
    }

    fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
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
                        if !self.frame_ended {
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
}

#[cfg(test)]
mod tests {
    use crate::budget::{Account, Budget};
    use crate::coding::{Codings, Decoder, Limits, Unreadable};
    use crate::message::Sender;

    /// A frame of this many blocks, which decode to three bytes each with three code tables of the largest size.
    fn tables(blocks: usize) -> Vec<u8> {
        // No content size, no checksum, a window of 1 MiB; a raw block of 16 bytes.
        let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3, 16 << 3, 0, 0];
        frame.extend([b' '; 16]);
        for _ in 0..blocks {
            // No literals; one sequence, and its tables with one symbol each (RFC 8878, sections 3.1.1.3 and 4.1.1).
            let content = [0, 1, 0xa8, 0xf4, 0x3f, 0xf3, 0x1f, 0xf4, 0x3f, 0, 0, 0, 4];
            frame.extend([(content.len() << 3 | 2 << 1) as u8, 0, 0]);
            frame.extend(content);
        }
        frame
    }

    /// The result, and the numbers of bytes read and decoded.
    fn decode(frame: &[u8], piece: usize, account: &Account) -> (Result<(), Unreadable>, usize, usize) {
        let codings = Codings::of([b"zstd".as_slice()]).unwrap();
        let mut decoder = Decoder::new(codings, Limits::default(), account.credit(Sender::Client));
        let (mut read, mut decoded) = (0, 0);
        let result = frame.chunks(piece).try_for_each(|piece| {
            account.earn(Sender::Client, piece.len());
            read += piece.len();
            decoder.feed(piece, &mut |bytes| decoded += bytes.len())
        });
        (result, read, decoded)
    }

    #[test]
    fn tables_of_blocks_are_charged() {
        let frame = tables(20_000);
        for piece in [1, 500, frame.len()] {
            let (result, _, decoded) = decode(&frame, piece, &Account::unlimited());
            assert_eq!((result, decoded), (Ok(()), 16 + 3 * 20_000), "pieces of {piece}");
        }
        for piece in [1, 500] {
            let (result, read, _) = decode(&frame, piece, &Budget::new(64 << 20).account(None, 24));
            assert_eq!(result, Err(Unreadable::Ratio), "pieces of {piece}");
            assert!(read <= 4000, "{read} bytes read in pieces of {piece}");
        }
    }

    #[test]
    fn blocks_of_one_token_earn_their_cost() {
        let mut encoder = zstd_safe::CCtx::create();
        let account = Budget::new(64 << 20).account(None, 24);
        let codings = Codings::of([b"zstd".as_slice()]).unwrap();
        let mut decoder = Decoder::new(codings, Limits::default(), account.credit(Sender::Server));
        for token in 0..5000 {
            let event = format!(
                "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\
                 \"delta\":{{\"content\":\" {token}\"}},\"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
            );
            let mut block = [0; 1024];
            let mut output = zstd_safe::OutBuffer::around(&mut block[..]);
            let mut input = zstd_safe::InBuffer::around(event.as_bytes());
            while encoder
                .compress_stream2(&mut output, &mut input, zstd_safe::zstd_sys::ZSTD_EndDirective::ZSTD_e_flush)
                .unwrap()
                > 0
            {}
            let length = output.pos();
            account.earn(Sender::Server, length);
            let mut decoded = 0;
            decoder.feed(&block[..length], &mut |bytes| decoded += bytes.len()).unwrap();
            assert_eq!(decoded, event.len(), "token {token}");
        }
    }
}
