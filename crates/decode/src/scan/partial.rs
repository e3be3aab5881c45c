//! A key or a number that is split across calls.

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
