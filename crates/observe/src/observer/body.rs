//! Prepares bodies for the decoders: decompresses them, splits gRPC messages, and drops bodies that cannot be parsed.

use std::time::Instant;

use crate::measure::{Message, Unread};
use crate::observer::Shared;
use tokometer_wire::budget::Account;
use tokometer_wire::coding::{Codings, Decoder, Unreadable};
use tokometer_wire::grpc::{Event, Messages};
use tokometer_wire::websocket::Sender;

/// State of a request's body and its response's body. Empty for most requests, because most bodies are plain.
#[derive(Debug, Default)]
pub(super) struct Bodies(Option<Box<Both>>);

#[derive(Debug, Default)]
struct Both {
    request: Body,
    response: Body,
    /// Since when bytes of the response wait for decoding credit.
    waits_since: Option<Instant>,
}

impl Both {
    fn of(&mut self, of: Message) -> &mut Body {
        match of {
            Message::Request => &mut self.request,
            Message::Response => &mut self.response,
        }
    }
}

/// State of one body.
#[derive(Debug, Default)]
enum Body {
    /// No coding.
    #[default]
    Plain,
    /// Decompressed.
    Coded(Decoder),
    /// Split into the messages of a gRPC call.
    Messages(Messages),
    /// Never parsed, or no longer parsed.
    Unread,
}

impl Bodies {
    /// Starts a body with these codings: the values of `Content-Encoding`, then of `Transfer-Encoding`.
    ///
    /// # Errors
    /// The reason why the body cannot be parsed.
    pub(super) fn begin<'a>(
        &mut self,
        of: Message,
        codings: impl IntoIterator<Item = &'a [u8]>,
        account: &Account,
        shared: &Shared,
    ) -> Result<(), Unread> {
        let codings = Codings::of(codings).map_err(unread)?;
        if !codings.is_empty() {
            let decoder = Decoder::new(codings, shared.coding_limits(), account.credit(sender(of)));
            self.set(of, Body::Coded(decoder));
        }
        Ok(())
    }

    /// Starts the body of a gRPC call with this `grpc-encoding`.
    pub(super) fn begin_messages(&mut self, of: Message, encoding: Option<&[u8]>, account: &Account, shared: &Shared) {
        let messages = Messages::new(encoding, shared.coding_limits(), account.credit(sender(of)));
        self.set(of, Body::Messages(messages));
    }

    fn set(&mut self, of: Message, body: Body) {
        *self.0.get_or_insert_default().of(of) = body;
    }

    /// True if the body has no coding.
    pub(super) fn is_plain(&mut self, of: Message) -> bool {
        matches!(self.of(of), None | Some(Body::Plain))
    }

    /// True if the body is decompressed or split into gRPC messages.
    pub(super) fn decodes(&mut self, of: Message) -> bool {
        matches!(self.of(of), Some(Body::Coded(_) | Body::Messages(_)))
    }

    /// True while the first bytes of the body wait for decoding credit.
    pub(super) fn is_waiting(&mut self, of: Message) -> bool {
        matches!(self.of(of), Some(Body::Coded(decoder)) if decoder.is_waiting())
    }

    /// Notes whether bytes of the response wait for decoding credit at `at`. Returns since when they have waited.
    pub(super) fn note_waiting(&mut self, at: Instant) -> Option<Instant> {
        let now = self.is_waiting(Message::Response).then_some(at);
        std::mem::replace(&mut self.0.as_deref_mut()?.waits_since, now)
    }

    /// True if the body is not parsed, or no longer parsed.
    pub(super) fn is_unread(&mut self, of: Message) -> bool {
        matches!(self.of(of), Some(Body::Unread))
    }

    fn of(&mut self, of: Message) -> Option<&mut Body> {
        self.0.as_deref_mut().map(|both| both.of(of))
    }

    /// Calls `each` with every decoded slice of these bytes, and at the end of every gRPC message.
    ///
    /// # Errors
    /// The reason why the rest of the body cannot be parsed; returned once.
    pub(super) fn feed(&mut self, of: Message, bytes: &[u8], each: &mut dyn FnMut(Event<'_>)) -> Result<(), Unread> {
        let Some(body) = self.of(of) else {
            each(Event::Data(bytes));
            return Ok(());
        };
        let result = match body {
            Body::Plain => {
                each(Event::Data(bytes));
                Ok(())
            }
            Body::Coded(decoder) => decoder.feed(bytes, &mut |slice| each(Event::Data(slice))),
            Body::Messages(messages) => messages.feed(bytes, each),
            Body::Unread => Ok(()),
        };
        result.map_err(|why| {
            *body = Body::Unread;
            unread(why)
        })
    }
}

fn sender(of: Message) -> Sender {
    match of {
        Message::Request => Sender::Client,
        Message::Response => Sender::Server,
    }
}

/// Converts the reason to the one reported in metrics.
pub(super) fn unread(why: Unreadable) -> Unread {
    match why {
        Unreadable::UnknownCoding => Unread::UnknownCoding,
        Unreadable::TooManyCodings => Unread::TooManyCodings,
        Unreadable::Corrupt => Unread::Corrupt,
        Unreadable::Window => Unread::Window,
        Unreadable::Ratio => Unread::Ratio,
        Unreadable::Memory => Unread::Memory,
    }
}
