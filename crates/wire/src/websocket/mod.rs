//! Observes WebSocket (RFC 6455) with permessage-deflate (RFC 7692): takes frames; returns message data and close
//! frames.
//!
//! Passive and unbuffered: data is reported as it arrives, decompressed if compression was negotiated. Frames that an
//! endpoint would reject (reserved bits and opcodes, a mask on the wrong side, a fragmented control frame) are skipped,
//! because their length is known. Only a length above 63 bits makes the start of the next frame unknown.

pub(crate) mod extensions;
mod receiver;

use std::time::Instant;

use crate::budget::Account;
use crate::message::{Fault, Visitor};

pub use crate::message::{Event, Sender};
pub use extensions::{Deflate, Extensions};

use receiver::Receiver;

/// Both directions of one WebSocket.
#[derive(Debug)]
pub struct WebSocket {
    number: u64,
    client: Receiver,
    server: Receiver,
}

impl WebSocket {
    /// A connection that the response to request `number` switched to WebSocket, with these extensions.
    pub fn new(number: u64, extensions: Extensions, account: &Account) -> WebSocket {
        let receiver = |sender, takeover| Receiver::new(extensions, takeover, account.credit(sender));
        let deflate = match extensions {
            Extensions::Deflate(deflate) => deflate,
            Extensions::None | Extensions::Unknown => Deflate::default(),
        };
        WebSocket {
            number,
            client: receiver(Sender::Client, !deflate.client_no_context_takeover),
            server: receiver(Sender::Server, !deflate.server_no_context_takeover),
        }
    }

    /// True if both sides are ignored.
    pub(crate) fn is_blind(&self) -> bool {
        self.client.is_lost() && self.server.is_lost()
    }

    /// Ignores the client, because its first bytes are missing.
    pub(crate) fn lose_client(&mut self) {
        self.client.lose();
    }

    /// Parses `bytes`, sent by the client and read at `at`.
    ///
    /// # Errors
    /// When the start of the sender's next frame is unknown. The sender is then ignored.
    pub fn request(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let number = self.number;
        self.client.read(bytes, &mut |event| visitor.websocket(number, Sender::Client, &event, at))
    }

    /// Parses `bytes`, sent by the server and read at `at`.
    ///
    /// # Errors
    /// See [`WebSocket::request`].
    pub fn response(&mut self, bytes: &[u8], at: Instant, visitor: &mut impl Visitor) -> Result<(), Fault> {
        let number = self.number;
        self.server.read(bytes, &mut |event| visitor.websocket(number, Sender::Server, &event, at))
    }
}
