//! Short texts that are kept: a key or a number that is split across calls, and a word of the response.

/// Longer than every known key and every number that a server writes (the shortest exact form of a double has at most
/// 24 characters).
const ROOM: usize = 36;

/// The bytes so far. A token that does not fit is dropped, not truncated, because a truncated number would be wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial {
    bytes: [u8; ROOM],
    len: u8,
    lost: bool,
}

impl Partial {
    /// An empty token.
    pub(super) fn new() -> Self {
        Self { bytes: [0; ROOM], len: 0, lost: false }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.lost = false;
    }

    /// True if no bytes were added since the last `clear`.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && !self.lost
    }

    /// Drops this token.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    pub(super) fn push(&mut self, part: &[u8]) {
        let start = usize::from(self.len);
        match self.bytes.get_mut(start..start + part.len()) {
            Some(room) => {
                room.copy_from_slice(part);
                self.len = (start + part.len()) as u8;
            }
            None => self.lost = true,
        }
    }

    /// The whole token, which ends with `last`, or `None` if it was dropped. The result does not depend on where the
    /// token was split.
    #[inline]
    pub(super) fn complete<'a>(&'a mut self, last: &'a [u8]) -> Option<&'a [u8]> {
        if self.is_empty() {
            return (last.len() <= ROOM).then_some(last);
        }
        self.push(last);
        if self.lost { None } else { self.bytes.get(..usize::from(self.len)) }
    }
}

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
