//! Decodes content and transfer codings of bodies (RFC 9110, section 8.4; RFC 9112, section 7) as the bytes pass.
//!
//! Push-style: coded bytes in, decoded slices out as soon as they are available. Bodies are not stored. A decoder holds
//! only the window of its coding, within [`Limits`] and its connection's account. Checksums are not verified: that is
//! the receiver's task, and a wrong checksum changes no length.

mod brotli;
mod codings;
mod decoder;
mod deflate;
mod layer;
mod stage;
mod zstandard;

pub use codings::{Coding, Codings};
pub use decoder::{Decoder, MessageInflater, Series};

/// Limits on the stream of a body. Its cost is charged to its connection's [`Account`](crate::budget::Account).
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
    /// The connection has used all decoding credit earned by its received bytes: a decompression bomb.
    Ratio,
    /// The memory budget has no room for its decoder.
    Memory,
}
