//! Consecutive bodies with one coding: the messages of gRPC.

use crate::budget::Account;
use crate::coding::Coding;
use crate::coding::Limits;
use crate::coding::Unreadable;
use crate::coding::layer::Layer;

/// Decodes consecutive bodies, each a separate stream, split at any byte.
///
/// Allocates nothing before the first byte. Do not use after an error.
#[derive(Debug)]
pub struct Series {
    coding: Coding,
    limits: Limits,
    account: Account,
    layer: Option<Layer>,
    /// A byte of the current body was received.
    begun: bool,
}

impl Series {
    /// A decoder for bodies with this coding; its costs are charged to `account`.
    pub fn new(coding: Coding, limits: Limits, account: Account) -> Series {
        Series { coding, limits, account, layer: None, begun: false }
    }

    /// Decodes the next bytes of the current body and passes the decoded slices, never empty, to `each`.
    ///
    /// # Errors
    /// Why it cannot be decoded further. Bytes decoded before the error were passed on.
    pub fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.begun = true;
        let layer = match &mut self.layer {
            Some(layer) => layer,
            none => none.insert(Layer::new(self.coding, &self.limits, &self.account)?),
        };
        layer.feed(bytes, &mut |slice| {
            each(slice);
            Ok(())
        })
    }

    /// Ends the current body; bytes fed from now on belong to the next.
    ///
    /// # Errors
    /// [`Unreadable::Corrupt`] if its coded stream was incomplete.
    pub fn end(&mut self) -> Result<(), Unreadable> {
        match &mut self.layer {
            Some(layer) if std::mem::take(&mut self.begun) => {
                if !layer.is_at_end() {
                    return Err(Unreadable::Corrupt);
                }
                layer.restart()
            }
            _ => Ok(()),
        }
    }
}
