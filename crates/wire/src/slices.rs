//! Consumes slices that arrive in arbitrary pieces.

/// Removes up to `most` bytes from the front of `bytes` and returns them.
#[inline]
pub(crate) fn take<'a>(bytes: &mut &'a [u8], most: u64) -> &'a [u8] {
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
    let (taken, rest) = bytes.split_at_checked(most).unwrap_or((*bytes, &[]));
    *bytes = rest;
    taken
}

/// The first bytes of a frame: its header, which may arrive in pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefix<const N: usize> {
    bytes: [u8; N],
    have: u8,
}

impl<const N: usize> Prefix<N> {
    pub(crate) const fn new() -> Prefix<N> {
        Prefix { bytes: [0; N], have: 0 }
    }

    /// Moves bytes from the front of `bytes` until there are `needed` (at most `N`). True once they are complete.
    #[inline]
    pub(crate) fn fill(&mut self, needed: usize, bytes: &mut &[u8]) -> bool {
        if self.len() < needed {
            let missing = self.bytes.get_mut(self.have.into()..needed).unwrap_or_default();
            let here = take(bytes, missing.len() as u64);
            missing.iter_mut().zip(here).for_each(|(place, byte)| *place = *byte);
            self.have += here.len() as u8;
        }
        self.len() >= needed
    }

    /// Number of bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.have.into()
    }

    /// The bytes so far, followed by unspecified bytes.
    pub(crate) fn bytes(&self) -> &[u8; N] {
        &self.bytes
    }

    /// Begins the next header.
    pub(crate) fn clear(&mut self) {
        self.have = 0;
    }
}
