//! Decodes content and transfer codings of bodies (RFC 9110, section 8.4; RFC 9112, section 7) as the bytes pass.
//!
//! Push-style: takes coded bytes, returns decoded slices as soon as they are available. Bodies are not stored. A
//! decoder holds only the window of its coding, within [`Limits`] and its connection's account. Checksums are not
//! verified: the receiver does that, and a wrong checksum changes no length.

mod brotli;
mod codings;
mod decoder;
mod deflate;
mod layer;
mod zstandard;

pub use codings::{Coding, Codings};
pub use decoder::{Decoder, Series};

/// Limits on one body's stream. Its cost is charged to the body's [`Credit`](crate::budget::Credit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum window that a stream may request, in bytes; rounded down to a power of two. gzip and deflate always use
    /// 32 KiB.
    pub window_bytes: usize,
}

impl Default for Limits {
    /// RFC 9659 limits zstd encoders to 8 MB; brotli's usual window is at most 4 MiB (`lgwin` 22).
    fn default() -> Limits {
        Limits { window_bytes: 8 << 20 }
    }
}

/// Why a body cannot be decoded. Final for that body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// An unknown coding.
    UnknownCoding,
    /// More chained codings than supported.
    TooManyCodings,
    /// The bytes are not valid for the coding.
    Corrupt,
    /// The stream requests a window above the limit.
    Window,
    /// The body has used all decoding credit that it and its connection earned: a decompression bomb.
    Ratio,
    /// The memory budget has no room for the decoder.
    Memory,
}

/// The decoder of one coding.
trait Stage: std::fmt::Debug + Send {
    /// Decodes from `input` and returns the number of bytes written. If `output` is full, more output may be available.
    /// Otherwise, the caller must call again unless `input` is now empty.
    fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable>;

    /// Bytes held on the heap.
    fn holds(&self) -> usize;

    /// Prepares for a new stream from any state; reuses memory where possible.
    fn restart(&mut self) -> Result<(), Unreadable>;

    /// True at the end of the stream.
    fn is_at_end(&self) -> bool;

    /// Cost of the last step, which produced `written` bytes, in decoded bytes.
    fn cost(&mut self, written: usize) -> usize {
        written
    }

    /// Cost of earlier steps that [`Stage::cost`] has not returned; charged if decoding stops here.
    fn unpaid(&self) -> usize {
        0
    }

    /// Cost of [`Stage::restart`].
    fn restart_cost(&self) -> usize {
        256
    }
}
