//! Decoders of whole bodies, and of the messages of gRPC bodies and WebSockets.

use crate::budget::{Credit, Exhausted, Share};
use crate::coding::layer::{Format, Layer};
use crate::coding::{Coding, Codings, Limits, Unreadable};

/// Maximum compressed bytes that wait until the body has the credit to begin.
const WAITING: usize = 4 * 1024;

/// Decodes all codings of one body, split at any byte.
///
/// Allocates nothing before the body's first byte. Do not use after an error.
#[derive(Debug)]
pub struct Decoder {
    codings: Codings,
    limits: Limits,
    credit: Credit,
    layers: Vec<Layer>,
    /// The first bytes, while other bodies have used up the credit to begin.
    waiting: Option<Box<(Vec<u8>, Share)>>,
}

impl Decoder {
    /// A decoder for a body with these codings; its costs are charged to `credit`.
    pub fn new(codings: Codings, limits: Limits, credit: Credit) -> Decoder {
        Decoder { codings, limits, credit, layers: Vec::new(), waiting: None }
    }

    /// True while the first bytes wait for credit, which the next bytes may earn.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
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
        if !self.layers.is_empty() {
            self.credit.received(bytes.len());
            return through(&mut self.layers, bytes, each);
        }
        if self.waiting.is_none() {
            self.credit.separate();
        }
        self.credit.received(bytes.len());
        match self.begin() {
            Ok(layers) => self.layers = layers,
            Err(Unreadable::Ratio) => return self.wait(bytes),
            Err(why) => return Err(why),
        }
        if let Some(waiting) = self.waiting.take() {
            through(&mut self.layers, &waiting.0, each)?;
        }
        through(&mut self.layers, bytes, each)
    }

    fn begin(&self) -> Result<Vec<Layer>, Unreadable> {
        let mut layers = Vec::new();
        layers.reserve_exact(self.codings.iter().count());
        for coding in self.codings.iter() {
            layers.push(Layer::new(Format::Body(coding), &self.limits, &self.credit)?);
        }
        Ok(layers)
    }

    /// Keeps the bytes until there is credit to begin.
    fn wait(&mut self, bytes: &[u8]) -> Result<(), Unreadable> {
        let share = || Box::new((Vec::new(), self.credit.account().share()));
        let (waiting, share) = &mut **self.waiting.get_or_insert_with(share);
        let length = waiting.len() + bytes.len();
        if length > WAITING {
            return Err(Unreadable::Ratio);
        }
        share.hold(2 * length).map_err(|Exhausted| Unreadable::Memory)?;
        waiting.extend_from_slice(bytes);
        Ok(())
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
    credit: Credit,
    /// The window is kept between messages.
    takeover: bool,
    layer: Option<Layer>,
    /// A byte of the current message was received.
    begun: bool,
}

impl Series {
    /// A decoder for messages with this coding; its costs are charged to `credit`.
    pub fn new(coding: Coding, limits: Limits, credit: Credit) -> Series {
        Series { format: Format::Body(coding), limits, credit, takeover: false, layer: None, begun: false }
    }

    /// A decoder for one side's WebSocket messages. `takeover`: the side keeps its window between messages (no
    /// `*_no_context_takeover` was negotiated).
    pub(crate) fn of_websocket(takeover: bool, credit: Credit) -> Series {
        let limits = Limits::default();
        Series { format: Format::WebSocket, limits, credit, takeover, layer: None, begun: false }
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
        if self.layer.is_none() && matches!(self.format, Format::Body(_)) {
            self.credit.separate();
        }
        self.credit.received(bytes.len());
        let layer = match &mut self.layer {
            Some(layer) => layer,
            none => none.insert(Layer::new(self.format, &self.limits, &self.credit)?),
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
