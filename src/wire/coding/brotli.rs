//! `br` (RFC 7932).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use brotli_decompressor::Allocator;
use brotli_decompressor::BrotliDecompressStream;
use brotli_decompressor::BrotliResult;
use brotli_decompressor::BrotliState;
use brotli_decompressor::HuffmanCode;
use brotli_decompressor::SliceWrapper;
use brotli_decompressor::SliceWrapperMut;

use crate::wire::coding::Unreadable;

/// A brotli stream being undone.
pub(super) struct Brotli {
    /// `None` after the stream's end: what follows is ignored.
    state: Option<Box<State>>,
    /// Bytes that the state allocated.
    holds: Arc<AtomicUsize>,
    most_window: usize,
    begun: bool,
}

type State = BrotliState<Metered, Metered, Metered>;

impl std::fmt::Debug for Brotli {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brotli").field("holds", &self.holds()).finish_non_exhaustive()
    }
}

impl Brotli {
    pub(super) fn new(most_window: usize) -> Brotli {
        let holds = Arc::new(AtomicUsize::new(0));
        let allocator = || Metered(Arc::clone(&holds));
        let state = Box::new(State::new_strict(allocator(), allocator(), allocator()));
        Brotli { state: Some(state), holds, most_window, begun: false }
    }

    pub(super) fn holds(&self) -> usize {
        self.holds.load(Ordering::Relaxed) + self.state.as_ref().map_or(0, |_| size_of::<State>())
    }

    /// Before the first byte of another stream.
    pub(super) fn restart(&mut self) {
        *self = Brotli::new(self.most_window);
    }

    /// The stream has ended.
    pub(super) fn is_at_end(&self) -> bool {
        self.state.is_none()
    }

    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
        let Some(state) = &mut self.state else {
            *input = &[];
            return Ok(0);
        };
        if !self.begun {
            let Some(first) = input.first() else { return Ok(0) };
            let window = 1usize << window_bits(*first).ok_or(Unreadable::Corrupt)?;
            if window > self.most_window {
                return Err(Unreadable::Window);
            }
            self.begun = true;
        }
        let (mut left, mut taken) = (input.len(), 0);
        let (mut room, mut written, mut total) = (output.len(), 0, 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut taken,
            input,
            &mut room,
            &mut written,
            output,
            &mut total,
            state.as_mut(),
        );
        *input = input.get(taken..).unwrap_or_default();
        match result {
            BrotliResult::ResultFailure => return Err(Unreadable::Corrupt),
            BrotliResult::ResultSuccess => self.state = None,
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
        }
        Ok(written)
    }
}

/// The window's size as a power of two, told by the stream's first byte (section 9.1); `None` for the one value that the
/// format leaves out (large windows, which no content coding has).
fn window_bits(first: u8) -> Option<u32> {
    match (first & 1, first >> 1 & 7, first >> 4 & 7) {
        (0, _, _) => Some(16),
        (_, bits @ 1.., _) => Some(17 + u32::from(bits)),
        (_, _, 0) => Some(17),
        (_, _, 1) => None,
        (_, _, bits) => Some(8 + u32::from(bits)),
    }
}

/// Rust's own allocator, with an account of what it gave.
struct Metered(Arc<AtomicUsize>);

/// Memory of the decompressor.
struct Cells<T>(Box<[T]>);

impl<T> Default for Cells<T> {
    fn default() -> Cells<T> {
        Cells(Box::default())
    }
}

impl<T> SliceWrapper<T> for Cells<T> {
    fn slice(&self) -> &[T] {
        &self.0
    }
}

impl<T> SliceWrapperMut<T> for Cells<T> {
    fn slice_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// Implements the library's allocator for the three kinds of cells it asks for.
macro_rules! metered {
    ($($cell:ty),*) => {$(
        impl Allocator<$cell> for Metered {
            type AllocatedMemory = Cells<$cell>;

            fn alloc_cell(&mut self, len: usize) -> Cells<$cell> {
                self.0.fetch_add(len * size_of::<$cell>(), Ordering::Relaxed);
                Cells(vec![<$cell>::default(); len].into_boxed_slice())
            }

            fn free_cell(&mut self, cells: Cells<$cell>) {
                self.0.fetch_sub(size_of_val::<[$cell]>(&cells.0), Ordering::Relaxed);
            }
        }
    )*};
}

metered!(u8, u32, HuffmanCode);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_tells_the_window() {
        // RFC 7932, section 9.1: the table of WBITS, as bits from the lowest on.
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
