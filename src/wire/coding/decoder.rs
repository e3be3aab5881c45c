//! All codings of one body.

use crate::wire::coding::Codings;
use crate::wire::coding::Limits;
use crate::wire::coding::Memory;
use crate::wire::coding::Unreadable;
use crate::wire::coding::memory::Share;
use crate::wire::coding::stage::Stage;

/// Bytes that are handed on at a time. They lie on the stack, so that a waiting stream holds none.
const SLICE: usize = 8 * 1024;

/// A body may grow to this whatever the ratio: short bodies are the ones that shrink best.
const FREE_OUTPUT: u64 = 1 << 20;

/// Undoes the codings of one body, cut anywhere.
///
/// Holds nothing before the body's first byte. After an error it is of no more use.
#[derive(Debug)]
pub struct Decoder {
    codings: Codings,
    limits: Limits,
    memory: Memory,
    layers: Vec<Layer>,
}

impl Decoder {
    /// For a body of these codings, whose memory goes on this account.
    pub fn new(codings: Codings, limits: Limits, memory: Memory) -> Decoder {
        Decoder { codings, limits, memory, layers: Vec::new() }
    }

    /// Takes the next bytes of the body, and shows `each` slice of what they stand for, none of them empty. What follows
    /// the end of the coded stream is ignored, as receivers do.
    ///
    /// # Errors
    /// Why the body cannot be read on. What came before it was shown.
    pub fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
        if bytes.is_empty() {
            return Ok(());
        }
        if self.layers.is_empty() {
            self.layers.reserve_exact(self.codings.iter().count());
            for coding in self.codings.iter() {
                self.layers.push(Layer::new(Stage::new(coding, &self.limits)?, self.memory.share()));
            }
        }
        through(&mut self.layers, &self.limits, bytes, each)
    }
}

/// Sends bytes through these layers, the first of them first.
fn through(layers: &mut [Layer], limits: &Limits, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
    match layers.split_first_mut() {
        None => {
            each(bytes);
            Ok(())
        }
        Some((layer, rest)) => layer.feed(limits, bytes, &mut |slice| through(rest, limits, slice, each)),
    }
}

/// One coding with its accounts.
#[derive(Debug)]
struct Layer {
    stage: Stage,
    share: Share,
    taken: u64,
    given: u64,
}

impl Layer {
    fn new(stage: Stage, share: Share) -> Layer {
        Layer { stage, share, taken: 0, given: 0 }
    }

    fn feed(
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
}
