//! The `[DONE]` marker that ends a stream of the OpenAI APIs.

/// Detects event data that begins with `[DONE]`, which is not JSON. Input may be split at any byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DoneMark {
    matched: u8,
    decided: bool,
}

/// The result after some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    /// Undecided; the bytes are held back.
    Open,
    /// It is the marker.
    Done,
    /// It is not the marker: the bytes held back before, and the current bytes.
    NotDone(&'static [u8], &'a [u8]),
}

impl DoneMark {
    /// The marker. Clients test for this prefix, so the decoder does too.
    pub(super) const WORD: &'static [u8] = b"[DONE]";

    /// Takes the next bytes of the data.
    pub(super) fn take<'a>(&mut self, bytes: &'a [u8]) -> Verdict<'a> {
        if self.is_set() {
            return Verdict::Done;
        }
        if self.decided {
            return Verdict::NotDone(&[], bytes);
        }
        let held_back = self.held_back();
        for byte in bytes {
            if self.is_set() {
                break;
            }
            if Self::WORD.get(usize::from(self.matched)) != Some(byte) {
                self.rule_out();
                return Verdict::NotDone(held_back, bytes);
            }
            self.matched += 1;
        }
        if self.is_set() { Verdict::Done } else { Verdict::Open }
    }

    /// Marks the whole marker as seen.
    pub(super) fn set(&mut self) {
        self.matched = Self::WORD.len() as u8;
    }

    /// Marks the data as something else.
    pub(super) fn rule_out(&mut self) {
        *self = Self { matched: 0, decided: true };
    }

    /// True once the whole marker was seen.
    pub(super) fn is_set(&self) -> bool {
        usize::from(self.matched) == Self::WORD.len()
    }

    /// The bytes seen so far that may become the marker.
    pub(super) fn held_back(&self) -> &'static [u8] {
        Self::WORD.get(..usize::from(self.matched)).unwrap_or_default()
    }
}
