//! `br` (RFC 7932).
//!
//! The library returns no output until its ring buffer is full, and allocates a ring buffer as large as the stream's
//! window. 14 input bytes could therefore cost as much time as decoding 8 MiB. The first ring buffer is small instead.
//! When a stream fills it, decoding restarts with a larger buffer from the compressed bytes so far. The cost of a
//! stream, in time and memory, is thus proportional to its decoded size.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use brotli_decompressor::{
    Allocator, BrotliDecompressStream, BrotliResult, BrotliState, HuffmanCode, SliceWrapper, SliceWrapperMut,
};

use crate::coding::{Stage, Unreadable};

/// Cost of creating a decoder, in decoded bytes of 1 to 2 ns each (measured: 5 us).
pub(super) const SETUP_COST: usize = 6 * 1024;

/// Size of the first ring buffer, as a power of two.
const FIRST_RING_BITS: u32 = 14;

/// Each new ring buffer is 4 times as large, so all restarts together add a third to the cost of decoding a stream.
const GROWTH_BITS: u32 = 2;

/// Bytes of large groups of code tables that cost as much time as a decoded byte. A metablock of 700 bytes may declare 512 code
/// tables of 4 KiB and decode to one byte (measured: 0.4 ms).
const ALLOCATED_PER_COST: usize = 16;

/// Minimum size of a large group. The tables of a metablock with one token of a stream are smaller.
const LARGE_GROUP: usize = 16 * 1024;

/// A decoder for one brotli stream.
pub(super) struct Brotli {
    /// `None` after the end of the stream: further bytes are ignored.
    state: Option<Box<State>>,
    allocated: Arc<Allocated>,
    max_window: usize,
    /// The stream's window as a power of two, known after its first byte.
    window_bits: Option<u32>,
    /// The compressed bytes so far, while the ring buffer is smaller than the window.
    coded: Vec<u8>,
    /// Decoded bytes already returned by [`Stage::cost`].
    counted: usize,
    /// The part of `Allocated::tables` already returned by [`Stage::cost`].
    counted_tables: usize,
    /// Length of the decoded stream, set at its end.
    ended: usize,
}

type State = BrotliState<Metered, Metered, Metered>;

impl std::fmt::Debug for Brotli {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brotli").field("holds", &self.holds()).finish_non_exhaustive()
    }
}

impl Brotli {
    pub(super) fn new(max_window: usize) -> Brotli {
        let allocated = Arc::default();
        let state = Some(new_state(&allocated));
        Brotli {
            state,
            allocated,
            max_window,
            window_bits: None,
            coded: Vec::new(),
            counted: 0,
            counted_tables: 0,
            ended: 0,
        }
    }

    /// Handles the first byte; returns the window size as a power of two.
    fn begin(&mut self, state: &mut State, first: u8) -> Result<u32, Unreadable> {
        let bits = window_bits(first).ok_or(Unreadable::Corrupt)?;
        if 1usize << bits > self.max_window {
            return Err(Unreadable::Window);
        }
        self.window_bits = Some(bits);
        self.coded.push(first);
        start(state, first, FIRST_RING_BITS.min(bits))?;
        Ok(bits)
    }

    /// Restarts with a larger ring buffer.
    fn grow(&mut self, state: &mut Box<State>, window_bits: u32) -> Result<(), Unreadable> {
        let ring_bits = (state.window_bits + GROWTH_BITS).min(window_bits);
        let given = state.partial_pos_out;
        *state = new_state(&self.allocated);
        let (first, mut rest) = self.coded.split_first().ok_or(Unreadable::Corrupt)?;
        start(state, *first, ring_bits)?;
        decode(state, &mut rest)?;
        state.partial_pos_out = given;
        if ring_bits == window_bits {
            self.coded = Vec::new();
        }
        Ok(())
    }
}

impl Stage for Brotli {
    fn holds(&self) -> usize {
        let state = self.state.as_ref().map_or(0, |_| size_of::<State>());
        self.allocated.held.load(Ordering::Relaxed) + state + self.coded.capacity()
    }

    fn restart(&mut self) -> Result<(), Unreadable> {
        *self = Brotli::new(self.max_window);
        Ok(())
    }

    fn restart_cost(&self) -> usize {
        SETUP_COST
    }

    fn is_at_end(&self) -> bool {
        self.state.is_none()
    }

    /// Bytes decoded since the last call, including those not returned yet, and the cost of code tables.
    fn cost(&mut self, _written: usize) -> usize {
        let all = self.state.as_ref().map_or(self.ended, |state| position(state));
        let decoded = all.saturating_sub(self.counted);
        self.counted += decoded;
        let tables = self.allocated.tables.load(Ordering::Relaxed).wrapping_sub(self.counted_tables);
        self.counted_tables = self.counted_tables.wrapping_add(tables);
        decoded + tables / ALLOCATED_PER_COST
    }

    fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        let Some(mut state) = self.state.take() else {
            *input = &[];
            return Ok(0);
        };
        let window_bits = match (self.window_bits, input.split_first()) {
            (Some(bits), _) => bits,
            (None, None) => {
                self.state = Some(state);
                return Ok(0);
            }
            (None, Some((first, rest))) => {
                *input = rest;
                self.begin(&mut state, *first)?
            }
        };
        let (mut written, mut needs_input) = (0, false);
        loop {
            written += copy_decoded(&mut state, output.get_mut(written..).unwrap_or_default())?;
            if written == output.len() || needs_input {
                break;
            }
            let outgrown = state.window_bits < window_bits && is_full(&state);
            if outgrown {
                self.grow(&mut state, window_bits)?;
                continue;
            }
            let before = *input;
            let progress = decode(&mut state, input)?;
            if state.window_bits < window_bits {
                let taken = before.len() - input.len();
                self.coded.extend_from_slice(before.get(..taken).unwrap_or_default());
            }
            needs_input = matches!(progress, BrotliResult::NeedsMoreInput);
            // The stream ended and all bytes were returned.
            if let BrotliResult::ResultSuccess = progress {
                self.ended = position(&state);
                self.coded = Vec::new();
                return Ok(written);
            }
        }
        self.state = Some(state);
        Ok(written)
    }
}

fn new_state(allocated: &Arc<Allocated>) -> Box<State> {
    let allocator = || Metered(Arc::clone(allocated));
    Box::new(State::new_strict(allocator(), allocator(), allocator()))
}

/// Passes the first byte to the library, then limits the ring buffer. The maximum distance of copies, which the library
/// has computed from the first byte, does not change.
fn start(state: &mut State, first: u8, ring_bits: u32) -> Result<(), Unreadable> {
    decode(state, &mut [first].as_slice())?;
    state.window_bits = ring_bits;
    Ok(())
}

/// Decodes into the ring buffer without returning bytes.
fn decode(state: &mut State, input: &mut &[u8]) -> Result<BrotliResult, Unreadable> {
    let (mut left, mut taken) = (input.len(), 0);
    let (mut room, mut written, mut total) = (0, 0, 0);
    let result =
        BrotliDecompressStream(&mut left, &mut taken, input, &mut room, &mut written, &mut [], &mut total, state);
    *input = input.get(taken..).unwrap_or_default();
    if let BrotliResult::ResultFailure = result { Err(Unreadable::Corrupt) } else { Ok(result) }
}

fn size_of_ring(state: &State) -> usize {
    usize::try_from(state.ringbuffer_size).unwrap_or(0)
}

/// True when the next byte would wrap the ring buffer.
fn is_full(state: &State) -> bool {
    let size = size_of_ring(state);
    size == 1 << state.window_bits && usize::try_from(state.pos).is_ok_and(|at| at >= size)
}

/// Bytes decoded so far.
fn position(state: &State) -> usize {
    state.rb_roundtrips * size_of_ring(state) + usize::try_from(state.pos).unwrap_or(0)
}

/// Bytes in the ring buffer that were not returned yet. Bytes of a dictionary word beyond the buffer's end are returned
/// after the buffer wraps.
fn unwritten(state: &State) -> Result<usize, Unreadable> {
    let size = size_of_ring(state);
    let at = usize::try_from(state.pos).unwrap_or(0).min(size);
    (state.rb_roundtrips * size + at).checked_sub(state.partial_pos_out).ok_or(Unreadable::Corrupt)
}

/// Copies as many decoded bytes as fit to `output`.
fn copy_decoded(state: &mut State, output: &mut [u8]) -> Result<usize, Unreadable> {
    let length = unwritten(state)?.min(output.len());
    if length == 0 {
        return Ok(0);
    }
    // The metablock has more bytes than its declared length: the stream is corrupt.
    if state.meta_block_remaining_len < 0 {
        return Err(Unreadable::Corrupt);
    }
    let start = state.partial_pos_out & (size_of_ring(state) - 1);
    // The library wraps only after all bytes before the wrap were returned, so the range never spans the end.
    let bytes = state.ringbuffer.slice().get(start..start + length).ok_or(Unreadable::Corrupt)?;
    output.get_mut(..length).ok_or(Unreadable::Corrupt)?.copy_from_slice(bytes);
    state.partial_pos_out += length;
    Ok(length)
}

/// The window size as a power of two, from the stream's first byte (section 9.1); `None` for the one reserved value
/// (large windows, which no content coding allows).
fn window_bits(first: u8) -> Option<u32> {
    match (first & 1, first >> 1 & 7, first >> 4 & 7) {
        (0, _, _) => Some(16),
        (_, bits @ 1.., _) => Some(17 + u32::from(bits)),
        (_, _, 0) => Some(17),
        (_, _, 1) => None,
        (_, _, bits) => Some(8 + u32::from(bits)),
    }
}

/// Bytes allocated by a state.
#[derive(Default)]
struct Allocated {
    held: AtomicUsize,
    /// Bytes of large groups of code tables, including freed ones; wraps.
    tables: AtomicUsize,
}

/// Rust's default allocator, counting the allocated bytes.
struct Metered(Arc<Allocated>);

/// Memory allocated for the decompressor.
struct Cells<T>(Box<[T]>);

impl<T> Default for Cells<T> {
    fn default() -> Cells<T> {
        Cells(Box::default())
    }
}

impl<T> SliceWrapper<T> for Cells<T> {
    // The library calls this and `slice_mut` for each byte that it copies.
    #[inline(always)]
    fn slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> SliceWrapperMut<T> for Cells<T> {
    #[inline(always)]
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// Implements the library's allocator for its three cell types.
macro_rules! metered {
    ($($cell:ty),*) => {$(
        impl Allocator<$cell> for Metered {
            type AllocatedMemory = Cells<$cell>;

            fn alloc_cell(&mut self, len: usize) -> Cells<$cell> {
                let bytes = len * size_of::<$cell>();
                self.0.held.fetch_add(bytes, Ordering::Relaxed);
                // Cells of one byte are the ring buffer, whose cost is that of the decoded bytes.
                if size_of::<$cell>() > 1 && bytes >= LARGE_GROUP {
                    self.0.tables.fetch_add(bytes, Ordering::Relaxed);
                }
                Cells(vec![<$cell>::default(); len].into_boxed_slice())
            }

            fn free_cell(&mut self, cells: Cells<$cell>) {
                self.0.held.fetch_sub(size_of_val::<[$cell]>(&cells.0), Ordering::Relaxed);
            }
        }
    )*};
}

metered!(u8, u32, HuffmanCode);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Account, Budget};
    use crate::coding::{Codings, Decoder, Limits};
    use crate::message::Sender;

    /// Writes numbers of few bits, least significant bit first.
    #[derive(Default)]
    struct Bits(Vec<bool>);

    impl Bits {
        fn put(&mut self, value: u32, bits: u32) {
            self.0.extend((0..bits).map(|bit| value >> bit & 1 == 1));
        }

        fn bytes(&self) -> Vec<u8> {
            let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
            self.0.chunks(8).map(byte).collect()
        }

        /// A metablock (section 9.2) that decodes to one byte, with 256 tables for literals and for distances.
        fn metablock(&mut self) {
            // Not the last one, 1 byte, one block type of each category, no distance parameters, context mode 0.
            for (value, bits) in [(0, 1), (0, 2), (0, 16), (0, 1), (0, 3), (0, 6), (0, 2)] {
                self.put(value, bits);
            }
            for _ in 0..2 {
                // 256 tables, and a context map that uses only the first.
                for (value, bits) in [(1, 1), (7, 3), (127, 7), (0, 1), (1, 2), (0, 2), (0, 8), (0, 1)] {
                    self.put(value, bits);
                }
            }
            // Each code has one symbol: a literal, the command "insert one literal", and a distance.
            for (codes, symbol, bits) in [(256, 65, 8), (1, 8, 10), (256, 0, 6)] {
                for _ in 0..codes {
                    self.put(1, 2);
                    self.put(0, 2);
                    self.put(symbol, bits);
                }
            }
        }
    }

    /// Decodes a stream of this many metablocks; returns the result and the numbers of bytes read and decoded.
    fn decode(metablocks: usize, account: &Account) -> (Result<(), Unreadable>, usize, usize) {
        let mut bits = Bits::default();
        bits.put(0, 1);
        (0..metablocks).for_each(|_| bits.metablock());
        // The last, empty metablock.
        bits.put(3, 2);
        let codings = Codings::of([b"br".as_slice()]).unwrap();
        let mut decoder = Decoder::new(codings, Limits::default(), account.credit(Sender::Server));
        let (mut read, mut decoded) = (0, 0);
        let result = bits.bytes().chunks(500).try_for_each(|piece| {
            account.earn(Sender::Server, piece.len());
            read += piece.len();
            decoder.feed(piece, &mut |bytes| decoded += bytes.len())
        });
        (result, read, decoded)
    }

    #[test]
    fn tables_that_decode_to_nothing_are_charged() {
        let (result, _, decoded) = decode(200, &Account::unlimited());
        assert_eq!((result, decoded), (Ok(()), 200));
        let (result, read, _) = decode(200, &Budget::new(64 << 20).account(None, 24));
        assert_eq!(result, Err(Unreadable::Ratio));
        assert!(read <= 2000, "{read} bytes read");
    }

    #[test]
    fn first_byte_determines_the_window() {
        // RFC 7932, section 9.1: the table of WBITS, least significant bit first.
        for (first, bits) in [
            (0b0000_0000, Some(16)),
            (0b0010_0001, Some(10)),
            (0b0111_0001, Some(15)),
            (0b0000_0001, Some(17)),
            (0b0000_0011, Some(18)),
            (0b0000_1111, Some(24)),
            (0b0001_0001, None),
        ] {
            assert_eq!(window_bits(first), bits, "{first:08b}");
        }
    }
}
