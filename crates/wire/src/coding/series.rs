//! Bodies of one coding, one after the other: the messages of gRPC.

use crate::budget::Account;
use crate::coding::Coding;
use crate::coding::Limits;
use crate::coding::Unreadable;
use crate::coding::layer::Layer;

/// Undoes the coding of bodies that follow each other, each a stream of its own, cut anywhere.
///
/// Holds nothing before the first byte. After an error it is of no more use.
#[derive(Debug)]
pub struct Series {
    coding: Coding,
    limits: Limits,
    account: Account,
    layer: Option<Layer>,
    /// A byte of the body at hand came.
    begun: bool,
}

impl Series {
    /// For bodies of this coding, whose costs are charged to this account.
    pub fn new(coding: Coding, limits: Limits, account: Account) -> Series {
        Series { coding, limits, account, layer: None, begun: false }
    }

    /// Takes the next bytes of the body at hand, and shows `each` slice of what they stand for, none of them empty.
    ///
    /// # Errors
    /// Why it cannot be read on. What came before was shown.
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

    /// The body at hand has ended; what is fed from here on is the next.
    ///
    /// # Errors
    /// [`Unreadable::Corrupt`] if its coded stream had not.
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
