//! One coding with its accounts: of bytes in and out, and of memory.

use crate::wire::coding::Limits;
use crate::wire::coding::Unreadable;
use crate::wire::coding::memory::Share;
use crate::wire::coding::stage::Stage;

/// Bytes that are handed on at a time. They lie on the stack, so that a waiting stream holds none.
const SLICE: usize = 8 * 1024;

/// A body may grow to this whatever the ratio: short bodies are the ones that shrink best.
const FREE_OUTPUT: u64 = 1 << 20;

/// One coding with its accounts.
#[derive(Debug)]
pub(super) struct Layer {
    stage: Stage,
    share: Share,
    taken: u64,
    given: u64,
}

impl Layer {
    pub(super) fn new(stage: Stage, share: Share) -> Layer {
        Layer { stage, share, taken: 0, given: 0 }
    }

    pub(super) fn feed(
        &mut self,
        limits: &Limits,
        mut input: &[u8],
        each: &mut dyn FnMut(&[u8]) -> Result<(), Unreadable>,
    ) -> Result<(), Unreadable> {
        let mut output = [0; SLICE];
        self.taken = self.taken.saturating_add(input.len() as u64);
        let most = self.taken.saturating_mul(limits.ratio).max(FREE_OUTPUT);
        loop {
            let before = input.len();
            let written = self.stage.step(&mut input, &mut output)?;
            self.share.hold(self.stage.holds(), limits.memory_bytes)?;
            self.given = self.given.saturating_add(written as u64);
            if self.given > most {
                return Err(Unreadable::Ratio);
            }
            let slice = output.get(..written).unwrap_or_default();
            if !slice.is_empty() {
                each(slice)?;
            }
            let full = written == output.len();
            if !full && input.is_empty() {
                return Ok(());
            }
            // A stage that neither takes nor gives would go on for ever.
            if written == 0 && input.len() == before {
                return Err(Unreadable::Corrupt);
            }
        }
    }

    /// The stream begins anew; the accounts go on.
    pub(super) fn restart(&mut self) -> Result<(), Unreadable> {
        self.stage.restart()
    }

    /// The coded stream has come to its end.
    pub(super) fn is_at_end(&self) -> bool {
        self.stage.is_at_end()
    }
}
