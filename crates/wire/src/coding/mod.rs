//! Content and transfer codings of bodies (RFC 9110, section 8.4; RFC 9112, section 7), undone as the bytes pass.
//!
//! Push-style: coded bytes in, slices of what they stand for out, as soon as the coding gives them. No body is kept. A
//! decoder holds the window of its coding and nothing else, within [`Limits`] and its connection's account.
//! Check sums are not verified: that is the receiver's task, and a wrong one changes no length.

mod brotli;
mod codings;
mod decoder;
mod gzip;
mod inflate;
mod layer;
mod message;
mod series;
mod stage;
mod zlib;
mod zstandard;

pub use codings::{Coding, Codings};
pub use decoder::Decoder;
pub use message::MessageInflater;
pub use series::Series;

/// What the stream of a body may ask for. What it costs is charged to its connection's [`Account`](crate::budget::Account).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of a window that a stream may ask for; rounded down to a power of two. gzip and deflate always have
    /// theirs of 32 KiB.
    pub window_bytes: usize,
}

impl Default for Limits {
    /// RFC 9659 has encoders of zstd stay within 8 MB; brotli's usual window is 4 MiB at most (`lgwin` 22).
    fn default() -> Limits {
        Limits { window_bytes: 8 << 20 }
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
    /// The connection has decoded all that its received bytes have earned: a decompression bomb.
    Ratio,
    /// The memory budget has no room for its decoder.
    Memory,
}
