//! Short texts that arrive in pieces: keys or numbers split across calls, and words of the response.

/// At most `N` bytes of a text that arrives in pieces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capture<const N: usize> {
    bytes: [u8; N],
    len: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// More pieces may follow.
    Open,
    /// Like `Open`, but bytes were dropped.
    Cut,
    /// A complete text is stored.
    Settled,
}

/// An empty text.
impl<const N: usize> Default for Capture<N> {
    fn default() -> Self {
        const { assert!(N <= 128) };
        Self { bytes: [0; N], len: 0, state: State::Open }
    }
}

impl<const N: usize> Capture<N> {
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.state = State::Open;
    }

    /// Prepares for a new text. Returns false, and changes nothing, if a complete text is stored.
    pub(crate) fn begin(&mut self) -> bool {
        let is_open = !self.is_settled();
        if is_open {
            self.clear();
        }
        is_open
    }

    /// Adds a piece. Bytes that do not fit are dropped.
    pub(crate) fn push(&mut self, part: &[u8]) {
        let room = self.bytes.get_mut(usize::from(self.len)..).unwrap_or_default();
        let fits = part.len().min(room.len());
        if let (Some(room), Some(part)) = (room.get_mut(..fits), part.get(..fits)) {
            room.copy_from_slice(part);
        }
        if fits < part.len() {
            self.state = State::Cut;
        }
        self.len += fits as u8;
    }

    /// True if nothing was added since the last `clear`.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && self.state == State::Open
    }

    /// The whole key or number, whose last piece is `last`. `None` if it is longer than `N` bytes, because a truncated
    /// number would be wrong. The result does not depend on where the key or number was split.
    #[inline]
    pub(super) fn complete<'a>(&'a mut self, last: &'a [u8]) -> Option<&'a [u8]> {
        if self.is_empty() {
            return (last.len() <= N).then_some(last);
        }
        self.push(last);
        (self.state == State::Open).then(|| self.bytes())
    }

    /// Ends the text. Keeps it, truncated to whole characters; drops it if it is empty or not UTF-8.
    pub(crate) fn settle(&mut self) {
        let valid = match std::str::from_utf8(self.bytes()) {
            Ok(text) => text.len(),
            Err(error) if self.state == State::Cut && error.error_len().is_none() => error.valid_up_to(),
            Err(_) => 0,
        };
        self.len = valid as u8;
        self.state = if valid > 0 { State::Settled } else { State::Open };
    }

    /// True once a complete text is stored.
    pub(crate) fn is_settled(&self) -> bool {
        self.state == State::Settled
    }

    /// The bytes so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The stored text.
    pub(crate) fn text(&self) -> Option<&str> {
        if self.is_settled() { std::str::from_utf8(self.bytes()).ok() } else { None }
    }
}
