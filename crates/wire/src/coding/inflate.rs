//! Raw deflate (RFC 1951), which gzip, zlib and WebSocket's permessage-deflate wrap.

use flate2::Decompress;
use flate2::FlushDecompress;
use flate2::Status;

use crate::coding::Unreadable;

/// What an inflater holds: its window of 32 KiB, and the tables and state of the library, rounded up (measured by a test
/// in `tests/it/coding`).
pub(super) const INFLATE_BYTES: usize = 48 * 1024;

/// A raw deflate stream being undone.
pub(super) struct Inflate {
    stream: Decompress,
    /// A fault was met in the step that showed what came before it.
    failed: bool,
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflate").field("failed", &self.failed).finish_non_exhaustive()
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
        Inflate { stream: Decompress::new(false), failed: false }
    }

    /// Takes what it can of `input` and gives what fits in `output`. Not to be called after the end.
    pub(super) fn step(&mut self, input: &mut &[u8], output: &mut [u8]) -> Result<Inflated, Unreadable> {
        if self.failed {
            return Err(Unreadable::Corrupt);
        }
        let (taken, given) = (self.stream.total_in(), self.stream.total_out());
        let status = self.stream.decompress(input, output, FlushDecompress::None);
        let taken = usize::try_from(self.stream.total_in() - taken).unwrap_or(usize::MAX);
        let written = usize::try_from(self.stream.total_out() - given).unwrap_or(usize::MAX);
        match status {
            Ok(status) => {
                *input = input.get(taken..).unwrap_or_default();
                Ok(Inflated { written, ended: status == Status::StreamEnd })
            }
            // The input stays, so that the next step tells of the fault.
            Err(_) if written > 0 => {
                self.failed = true;
                Ok(Inflated { written, ended: false })
            }
            Err(_) => Err(Unreadable::Corrupt),
        }
    }

    /// Ready for another stream.
    pub(super) fn reset(&mut self) {
        self.stream.reset(false);
        self.failed = false;
    }
}
