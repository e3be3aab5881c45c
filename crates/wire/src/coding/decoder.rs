//! Decoders of whole bodies, and of the messages of gRPC bodies and WebSockets.

use crate::budget::Account;
use crate::coding::layer::{Format, Layer};
use crate::coding::{Coding, Codings, Limits, Unreadable};

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

    /// Decodes the next bytes of the body and passes the decoded slices, never empty, to `each`. Ignores bytes after
    /// the end of the coded stream, as receivers do.
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
                self.layers.push(Layer::new(Format::Body(coding), &self.limits, &self.account)?);
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

/// The bytes that a sender omits at the end of each WebSocket message (RFC 7692, section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Decodes the compressed messages of one direction of a WebSocket or of a gRPC body, split at any byte. In gRPC, each
/// message is a separate compressed stream.
///
/// Allocates nothing before the first byte. Do not use after an error.
#[derive(Debug)]
pub struct Series {
    format: Format,
    limits: Limits,
    account: Account,
    /// The window is kept between messages.
    takeover: bool,
    layer: Option<Layer>,
    /// A byte of the current message was received.
    begun: bool,
}

impl Series {
    /// A decoder for messages with this coding; its costs are charged to `account`.
    pub fn new(coding: Coding, limits: Limits, account: Account) -> Series {
        Series { format: Format::Body(coding), limits, account, takeover: false, layer: None, begun: false }
    }

    /// A decoder for one side's WebSocket messages. `takeover`: the side keeps its window between messages (no
    /// `*_no_context_takeover` was negotiated).
    pub(crate) fn of_websocket(takeover: bool, account: Account) -> Series {
        let limits = Limits::default();
        Series { format: Format::WebSocket, limits, account, takeover, layer: None, begun: false }
    }

    /// Decodes the next bytes of the current message and passes the decoded slices, never empty, to `each`.
    ///
    /// # Errors
    /// Why the message cannot be decoded further. Bytes decoded before the error were passed on.
    pub fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.begun = true;
        let layer = match &mut self.layer {
            Some(layer) => layer,
            none => none.insert(Layer::new(self.format, &self.limits, &self.account)?),
        };
        layer.feed(bytes, &mut |slice| {
            each(slice);
            Ok(())
        })
    }

    /// Ends the current message and passes its remaining data to `each`; later bytes belong to the next message.
    ///
    /// # Errors
    /// [`Unreadable::Corrupt`] if the compressed message is incomplete; otherwise why the next message cannot be
    /// decoded.
    pub fn end(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<(), Unreadable> {
        if matches!(self.format, Format::WebSocket) {
            self.feed(&TAIL, each)?;
        }
        match &mut self.layer {
            Some(layer) if std::mem::take(&mut self.begun) && !self.takeover => match self.format {
                Format::Body(_) if !layer.is_at_end() => Err(Unreadable::Corrupt),
                Format::Body(_) | Format::WebSocket => layer.restart(),
            },
            _ => Ok(()),
        }
    }
}
