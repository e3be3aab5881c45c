//! Content and transfer codings of bodies (RFC 9110, section 8.4; RFC 9112, section 7), undone as the bytes pass.
//!
//! Push-style: coded bytes in, slices of what they stand for out, as soon as the coding gives them. No body is kept. A
//! decoder holds the window of its coding and nothing else, within [`Limits`] that no stream of bytes can talk it out of.
//! Check sums are not verified: that is the receiver's task, and a wrong one changes no length.

mod brotli;
mod codings;
mod decoder;
mod gzip;
mod inflate;
mod layer;
mod memory;
mod message;
mod series;
mod stage;
mod zlib;
mod zstandard;

pub use codings::{Coding, Codings};
pub use decoder::Decoder;
pub use memory::Memory;
pub use message::MessageInflater;
pub use series::Series;

/// What undoing the coding of one body may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a window that a stream may ask for; rounded down to a power of two. gzip and deflate always have
    /// theirs of 32 KiB.
    pub window_bytes: usize,
    /// Most bytes out for each byte in, over the whole body, not counting its first MiB out.
    pub ratio: u64,
    /// Most bytes that all decoders of a [`Memory`] hold together.
    pub memory_bytes: usize,
}

impl Default for Limits {
    /// RFC 9659 has encoders of zstd stay within 8 MB; brotli's usual window is 4 MiB at most (`lgwin` 22).
    fn default() -> Limits {
        Limits { window_bytes: 8 << 20, ratio: 100, memory_bytes: 256 << 20 }
    }
}

/// Why a body cannot be read. Final for that body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A coding that we do not know.
    UnknownCoding,
    /// More codings in a row than are undone.
    TooManyCodings,
    /// The bytes are not what the coding says.
    Corrupt,
    /// The stream asks for a window over the cap.
    Window,
    /// It grows by more than the cap: a decompression bomb.
    Ratio,
    /// All decoders together hold as much memory as they may.
    Memory,
}
