//! Short texts that arrive in pieces: a key or a number that is split across calls, and a word of the response.

/// At most `N` bytes of a text that arrives in pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture<const N: usize> {
    bytes: [u8; N],
    len: u8,
    cut: bool,
    settled: bool,
}

/// An empty text.
impl<const N: usize> Default for Capture<N> {
    fn default() -> Self {
        const { assert!(N <= 128) };
        Self { bytes: [0; N], len: 0, cut: false, settled: false }
    }
}

impl<const N: usize> Capture<N> {
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.cut = false;
        self.settled = false;
    }

    /// Adds a piece; bytes that do not fit are dropped.
    pub(crate) fn push(&mut self, part: &[u8]) {
        let room = self.bytes.get_mut(usize::from(self.len)..).unwrap_or_default();
        let fits = part.len().min(room.len());
        if let (Some(room), Some(part)) = (room.get_mut(..fits), part.get(..fits)) {
            room.copy_from_slice(part);
        }
        self.cut |= fits < part.len();
        self.len += fits as u8;
    }

    /// Marks the text as truncated.
    pub(super) fn lose(&mut self) {
        self.cut = true;
    }

    /// True if nothing was added since the last `clear`.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && !self.cut
    }

    /// The whole token, which ends with `last`, or `None` if it is longer than `N` bytes: a truncated number would be
    /// wrong. The result does not depend on where the token was split.
    #[inline]
    pub(super) fn complete<'a>(&'a mut self, last: &'a [u8]) -> Option<&'a [u8]> {
        if self.is_empty() {
            return (last.len() <= N).then_some(last);
        }
        self.push(last);
        (!self.cut).then(|| self.bytes())
    }

    /// Ends the text: keeps it, truncated to whole characters, or drops it if it is empty or not UTF-8.
    pub(crate) fn settle(&mut self) {
        let valid = match std::str::from_utf8(self.bytes()) {
            Ok(text) => text.len(),
            Err(error) if self.cut && error.error_len().is_none() => error.valid_up_to(),
            Err(_) => 0,
        };
        self.len = valid as u8;
        self.settled = valid > 0;
    }

    /// True once a complete text is stored.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// The bytes so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The stored text.
    pub(crate) fn text(&self) -> Option<&str> {
        if self.settled { std::str::from_utf8(self.bytes()).ok() } else { None }
    }
}
