//! Raw deflate (RFC 1951), which gzip, zlib and WebSocket's permessage-deflate wrap.

use flate2::Decompress;
use flate2::FlushDecompress;
use flate2::Status;

use crate::coding::Unreadable;

/// Memory of an inflater: its window of 32 KiB, and the library's tables and state, rounded up (measured by a test in
/// `tests/it/coding`).
pub(super) const INFLATE_BYTES: usize = 48 * 1024;

/// A decoder for one raw deflate stream.
pub(super) struct Inflate {
    stream: Decompress,
    /// The last step failed after it produced output.
    failed: bool,
}

impl std::fmt::Debug for Inflate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflate").field("failed", &self.failed).finish_non_exhaustive()
    }
}

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inflated {
    /// Bytes written.
    pub(super) written: usize,
    /// The last block of the stream ended; the remaining input is not part of it.
    pub(super) ended: bool,
}

impl Inflate {
    /// A new decoder. Allocates the window.
    pub(super) fn new() -> Inflate {
        Inflate { stream: Decompress::new(false), failed: false }
    }

    /// Decodes from `input` into `output` until either is exhausted. Do not call after the end.
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
            // The input is kept, so that the next step reports the error.
            Err(_) if written > 0 => {
                self.failed = true;
                Ok(Inflated { written, ended: false })
            }
            Err(_) => Err(Unreadable::Corrupt),
        }
    }

    /// Prepares for a new stream.
    pub(super) fn reset(&mut self) {
        self.stream.reset(false);
        self.failed = false;
    }
}
