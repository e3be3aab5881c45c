//! permessage-deflate (RFC 7692): messages that share one deflate stream.

use crate::budget::Account;
use crate::coding::Unreadable;
use crate::coding::inflate::INFLATE_BYTES;
use crate::coding::inflate::Inflate;
use crate::coding::layer::Layer;

/// The bytes that a sender omits at the end of each message (section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Decompresses the messages of one direction, split at any byte.
///
/// Allocates nothing before the first compressed byte. Do not use after an error: later messages refer back to the lost
/// data.
#[derive(Debug)]
pub struct MessageInflater {
    account: Account,
    /// The window is kept between messages.
    takeover: bool,
    layer: Option<Layer>,
}

impl MessageInflater {
    /// An inflater for one direction; its costs are charged to `account`. `takeover`: the sender keeps its window
    /// between messages (no `*_no_context_takeover` was negotiated).
    pub fn new(takeover: bool, account: Account) -> MessageInflater {
        MessageInflater { account, takeover, layer: None }
    }

    /// Decompresses the next bytes of a message and passes the slices to `each`.
    ///
    /// # Errors
    /// Why this direction cannot be decoded further.
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

    /// Ends the message and passes its remaining data to `each`.
    ///
    /// # Errors
    /// Why this direction cannot be decoded further.
    pub fn end(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
        self.feed(&TAIL, each)?;
        if let (false, Some(layer)) = (self.takeover, &mut self.layer) {
            layer.restart()?;
        }
        Ok(())
    }
}

/// One step of a message's stream. A sender may end its deflate stream with a message (section 7.2.3.4); a new stream
/// then begins in the following bytes, without the old window.
pub(super) fn step(inflate: &mut Inflate, input: &mut &[u8], output: &mut [u8]) -> Result<usize, Unreadable> {
    let inflated = inflate.step(input, output)?;
    if inflated.ended {
        inflate.reset();
    }
    Ok(inflated.written)
}

/// Bytes held by the inflater of a message.
pub(super) fn holds() -> usize {
    INFLATE_BYTES
}
