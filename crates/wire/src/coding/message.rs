//! permessage-deflate (RFC 7692): messages that share one deflate stream.

use crate::budget::Account;
use crate::coding::Unreadable;
use crate::coding::inflate::INFLATE_BYTES;
use crate::coding::inflate::Inflate;
use crate::coding::layer::Layer;

/// What a sender leaves out at the end of each message (section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Undoes the compression of one direction's messages, cut anywhere.
///
/// Holds nothing before the first compressed byte. After an error it is of no more use: later messages refer back to what
/// was lost.
#[derive(Debug)]
pub struct MessageInflater {
    account: Account,
    /// The window is kept from message to message.
    takeover: bool,
    layer: Option<Layer>,
}

impl MessageInflater {
    /// For one direction, whose costs are charged to this account. `takeover`: its sender keeps its window from message to
    /// message (no `*_no_context_takeover` was agreed on).
    pub fn new(takeover: bool, account: Account) -> MessageInflater {
        MessageInflater { account, takeover, layer: None }
    }

    /// Takes the next bytes of a message, and shows `each` slice of what they stand for.
    ///
    /// # Errors
    /// Why this direction cannot be read on.
    pub fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
        if bytes.is_empty() {
            return Ok(());
        }
        let layer = match &mut self.layer {
            Some(layer) => layer,
            none => none.insert(Layer::of_messages(&self.account)?),
        };
        layer.feed(bytes, &mut |slice| {
            each(slice);
            Ok(())
        })
    }

    /// The message has ended: shows what was held back of it.
    ///
    /// # Errors
    /// Why this direction cannot be read on.
    pub fn end(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
        self.feed(&TAIL, each)?;
        if let (false, Some(layer)) = (self.takeover, &mut self.layer) {
            layer.restart()?;
        }
        Ok(())
    }
}

/// One step of a message's stream. A sender may end its deflate stream with a message (section 7.2.3.4); a new one begins
/// in what follows, without the window of the old.
pub(super) fn step(inflate: &mut Inflate, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
    let inflated = inflate.step(input, output)?;
    if inflated.ended {
        inflate.reset();
    }
    Ok(inflated.written)
}

/// Bytes that a message's inflater holds.
pub(super) fn holds() -> usize {
    INFLATE_BYTES
}
