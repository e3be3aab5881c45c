//! A key or a number of which not all bytes have come yet.

/// Longer than every known key and every number that a server writes (the shortest exact form of a double has at most
/// 24 characters).
const ROOM: usize = 36;

/// The bytes so far. What does not fit is not cut but lost as a whole: a cut number would be a wrong one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial {
    bytes: [u8; ROOM],
    len: u8,
    lost: bool,
}

impl Partial {
    /// Nothing so far.
    pub(super) fn new() -> Self {
        Self { bytes: [0; ROOM], len: 0, lost: false }
    }

    /// Forgets what it holds.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.lost = false;
    }

    /// True if nothing came since it was cleared.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0 && !self.lost
    }

    /// Gives up on this token.
    pub(super) fn lose(&mut self) {
        self.lost = true;
    }

    /// Adds bytes.
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

    /// The whole token, of which `last` are the last bytes, unless it is lost. The same wherever the token was cut.
    #[inline]
    pub(super) fn complete<'a>(&'a mut self, last: &'a [u8]) -> Option<&'a [u8]> {
        if self.is_empty() {
            return (last.len() <= ROOM).then_some(last);
        }
        self.push(last);
        if self.lost { None } else { self.bytes.get(..usize::from(self.len)) }
    }
}
