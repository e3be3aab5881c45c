//! All codings of one body.

use crate::budget::Account;
use crate::coding::Codings;
use crate::coding::Limits;
use crate::coding::Unreadable;
use crate::coding::layer::Layer;

/// Decodes all codings of one body, split at any byte.
///
/// Allocates nothing before the body's first byte. Do not use after an error.
#[derive(Debug)]
pub struct Decoder {
    codings: Codings,
    limits: Limits,
    account: Account,
    layers: Vec<Layer>,
}

impl Decoder {
    /// A decoder for a body with these codings; its costs are charged to `account`.
    pub fn new(codings: Codings, limits: Limits, account: Account) -> Decoder {
        Decoder { codings, limits, account, layers: Vec::new() }
    }

    /// Decodes the next bytes of the body and passes the decoded slices, never empty, to `each`. Bytes after the end of
    /// the coded stream are ignored, as receivers do.
    ///
    /// # Errors
    /// Why the body cannot be decoded further. Bytes decoded before the error were passed on.
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

/// Passes bytes through these layers in order.
fn through(layers: &mut [Layer], bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
    match layers.split_first_mut() {
        None => {
            each(bytes);
            Ok(())
        }
        Some((layer, rest)) => layer.feed(bytes, &mut |slice| through(rest, slice, each)),
    }
}
