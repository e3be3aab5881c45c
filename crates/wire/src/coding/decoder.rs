//! All codings of one body.

use crate::budget::Account;
use crate::coding::Codings;
use crate::coding::Limits;
use crate::coding::Unreadable;
use crate::coding::layer::Layer;

/// Undoes the codings of one body, cut anywhere.
///
/// Holds nothing before the body's first byte. After an error it is of no more use.
#[derive(Debug)]
pub struct Decoder {
    codings: Codings,
    limits: Limits,
    account: Account,
    layers: Vec<Layer>,
}

impl Decoder {
    /// For a body of these codings, whose costs are charged to this account.
    pub fn new(codings: Codings, limits: Limits, account: Account) -> Decoder {
        Decoder { codings, limits, account, layers: Vec::new() }
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
                self.layers.push(Layer::new(coding, &self.limits, &self.account)?);
            }
        }
        through(&mut self.layers, bytes, each)
    }
}

/// Sends bytes through these layers, the first of them first.
fn through(layers: &mut [Layer], bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
    match layers.split_first_mut() {
        None => {
            each(bytes);
            Ok(())
        }
        Some((layer, rest)) => layer.feed(bytes, &mut |slice| through(rest, slice, each)),
    }
}
