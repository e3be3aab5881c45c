//! A message body of either direction, split at any byte.

use crate::chunked::BadChunk;
use crate::chunked::Chunked;

/// Where the body being read ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Body {
    /// After this many more bytes; never 0.
    Length(u64),
    /// At its last chunk.
    Chunked(Chunked),
    /// At the end of the connection.
    UntilClose,
}

impl Body {
    /// Reads `bytes` and passes each slice of data to `data`. `Some(rest)` when the body ended; `rest` follows it.
    #[inline]
    pub(super) fn read<'a>(
        &mut self,
        bytes: &'a [u8],
        mut data: impl FnMut(&'a [u8]),
    ) -> Result<Option<&'a [u8]>, BadChunk> {
        match self {
            Body::Chunked(chunked) => chunked.read(bytes, data),
            Body::UntilClose => {
                data(bytes);
                Ok(None)
            }
            Body::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                let (body, rest) = bytes.split_at_checked(here).unwrap_or((bytes, &[]));
                data(body);
                *left -= here as u64;
                Ok((*left == 0).then_some(rest))
            }
        }
    }
}
