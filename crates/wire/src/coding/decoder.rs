//! Decoders of whole bodies, of the messages of gRPC bodies, and of WebSocket messages.

use crate::budget::Account;
use crate::coding::Coding;
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
