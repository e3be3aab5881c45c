//! WebSocket (RFC 6455) with permessage-deflate (RFC 7692) as it passes: frames in, message data and closes out.
//!
//! Passive and without a buffer: data is told as it comes, uncompressed where that was agreed on. What an endpoint would
//! refuse (reserved bits and opcodes, a mask on the wrong side, a fragmented control frame) is stepped over, for its length
//! is known all the same; only a length over 63 bits leaves open where the next frame begins.

mod extensions;
mod frame;
mod receiver;

use std::time::Instant;

use crate::budget::Account;
use crate::coding::Unreadable;
use crate::message::Fault;
use crate::message::Visitor;

pub use extensions::Deflate;
pub use extensions::Extensions;

use receiver::Receiver;

/// Who sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client, whose frames are masked.
    Client,
    /// The server.
    Server,
}

/// What a frame told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
    /// The next bytes of a message's data, unmasked and uncompressed; never empty.
    Data(&'a [u8]),
    /// The message is complete. It is text (else binary).
    MessageEnd {
        /// Text, which is UTF-8 (not checked).
        text: bool,
    },
    /// A close frame, with its code if it has one (RFC 6455, section 7.4).
    Close(Option<u16>),
    /// Compressed data that cannot be read; nothing more of this sender's compressed messages is told.
    Unreadable(Unreadable),
}

/// Both directions of one WebSocket.
#[derive(Debug)]
pub struct WebSocket {
    exchange: u64,
    client: Receiver,
    server: Receiver,
}

impl WebSocket {
    /// A connection that the response to `exchange` turned to WebSocket with these extensions.
    pub fn new(exchange: u64, extensions: Extensions, account: &Account) -> WebSocket {
        let receiver = |takeover| Receiver::new(extensions, takeover, account.clone());
        let deflate = match extensions {
            Extensions::Deflate(deflate) => deflate,
            Extensions::None | Extensions::Unknown => Deflate::default(),
        };
        WebSocket {
            exchange,
            client: receiver(!deflate.client_no_context_takeover),
            server: receiver(!deflate.server_no_context_takeover),
        }
    }

    /// The client sent `bytes`, read at `at`.
    ///
    /// # Errors
    /// When it cannot be known where the next frame begins; final.
    pub fn request(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let exchange = self.exchange;
        self.client.read(bytes, &mut |seen| visitor.websocket(exchange, Sender::Client, &seen, at))
    }

    /// The server sent `bytes`, read at `at`.
    ///
    /// # Errors
    /// As [`WebSocket::request`].
    pub fn response(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let exchange = self.exchange;
        self.server.read(bytes, &mut |seen| visitor.websocket(exchange, Sender::Server, &seen, at))
    }
}
