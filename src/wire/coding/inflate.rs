//! Raw deflate (RFC 1951), which gzip, zlib and WebSocket's permessage-deflate wrap.

use flate2::Decompress;
use flate2::FlushDecompress;
use flate2::Status;

use crate::wire::coding::Unreadable;

/// What an inflater holds: its window of 32 KiB, and the tables and state of the library, rounded up (measured by a test
/// in `tests/it/coding`).
pub(super) const INFLATE_BYTES: usize = 48 * 1024;

/// A raw deflate stream being undone.
pub(super) struct Inflate(Decompress);

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Inflate").field(&self.0.total_in()).finish()
    }
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inflated {
    /// Bytes written.
    pub(super) written: usize,
    /// The stream's last block has ended; what is left of the input is not part of it.
    pub(super) ended: bool,
}

impl Inflate {
    /// Before the first byte. Allocates the window.
    pub(super) fn new() -> Inflate {
        Inflate(Decompress::new(false))
    }

    /// Takes what it can of `input` and gives what fits in `output`. Not to be called after the end.
    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Inflated, Unreadable> {
        let (taken, given) = (self.0.total_in(), self.0.total_out());
        let status = self.0.decompress(input, output, FlushDecompress::None);
        let taken = usize::try_from(self.0.total_in() - taken).unwrap_or(usize::MAX);
        let written = usize::try_from(self.0.total_out() - given).unwrap_or(usize::MAX);
        *input = input.get(taken..).unwrap_or_default();
        match status {
            Ok(status) => Ok(Inflated { written, ended: status == Status::StreamEnd }),
            // What came before the fault is shown first; the next step meets it again.
            Err(_) if written > 0 => Ok(Inflated { written, ended: false }),
            Err(_) => Err(Unreadable::Corrupt),
        }
    }

    /// Ready for another stream.
    pub(super) fn reset(&mut self) {
        self.0.reset(false);
    }
}
