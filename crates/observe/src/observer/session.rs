//! A WebSocket on a realtime route: each of its answers is an exchange.
//!
//! An answer is asked for by the client's `response.create` or `input_audio_buffer.commit`, or begins by itself when the
//! server hears the end of speech; then nothing is told of how long it was waited for. The handshake is an exchange of its
//! own, without tokens.

use std::time::Instant;

use crate::measure::Ending;
use crate::measure::Message;
use crate::measure::Targets;
use crate::measure::Unread;
use crate::observer::body::unread;
use crate::observer::engine::Recogniser;
use crate::observer::exchange::Exchange;
use tokometer_decode::Framing;
use tokometer_decode::ResponseDecoder;
use tokometer_decode::Route;
use tokometer_decode::StreamEvent;
use tokometer_wire::websocket::Seen;
use tokometer_wire::websocket::Sender;

/// Close codes that say that all went well (RFC 6455, section 7.4.1): normal, and going away.
const WELL: [u16; 2] = [1000, 1001];

/// What is known of a session between and during its answers.
#[derive(Debug)]
pub(super) struct Session {
    connection: u64,
    pair: usize,
    /// Number of the next exchange on the connection.
    next: u64,
    route: Route,
    recogniser: Recogniser,
    /// What the handshake said of whose the session is.
    targets: Option<Box<Targets>>,
    client: ResponseDecoder,
    /// Away while an exchange that ends tells its last from it.
    server: Option<Box<ResponseDecoder>>,
    /// Who sent the first close frame, and its code.
    closing: Option<(Sender, Option<u16>)>,
}

/// What a frame means for the session. The event lies in it as it is: a box would be one allocation per token.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum Turn {
    /// Bytes of the server's, of whichever answer is open.
    Bytes(Message, usize),
    /// The client asks for an answer.
    Asked,
    /// The server said this.
    Said(StreamEvent),
    /// One side's messages cannot be read any more.
    Unread(Message, Unread),
}

impl Session {
    pub(super) fn new(connection: u64, pair: usize, next: u64, route: Route, recogniser: Recogniser) -> Session {
        let decoder = || ResponseDecoder::new(route, Framing::Messages);
        Session {
            connection,
            pair,
            next,
            route,
            recogniser,
            targets: None,
            client: decoder(),
            server: Some(Box::new(decoder())),
            closing: None,
        }
    }

    /// Its answers are this tenant's.
    pub(super) fn of_tenant(mut self, tenant: Option<&str>) -> Session {
        self.targets = Targets { tenant: tenant.map(Into::into), ..Targets::default() }.said();
        self
    }

    /// What every answer's exchange begins with.
    pub(super) fn targets(&self) -> Option<Box<Targets>> {
        self.targets.clone()
    }

    /// Takes what a frame told.
    pub(super) fn take(&mut self, sender: Sender, seen: &Seen<'_>) -> Option<Turn> {
        let of = match sender {
            Sender::Client => Message::Request,
            Sender::Server => Message::Response,
        };
        let decoder = match sender {
            Sender::Client => &mut self.client,
            Sender::Server => self.server.as_deref_mut()?,
        };
        match seen {
            Seen::Data(bytes) => {
                decoder.feed(bytes, &mut |_| {});
                Some(Turn::Bytes(of, bytes.len()))
            }
            Seen::MessageEnd { .. } => {
                let mut event = None;
                decoder.end_message(&mut |told| event = Some(*told));
                match sender {
                    Sender::Client => event?.asks.then_some(Turn::Asked),
                    Sender::Server => Some(Turn::Said(event?)),
                }
            }
            Seen::Close(code) => {
                self.closing.get_or_insert((sender, *code));
                None
            }
            Seen::Unreadable(why) => Some(Turn::Unread(of, unread(*why))),
        }
    }

    /// The exchange of an answer that begins at `at`.
    pub(super) fn begin(&mut self) -> Begin {
        let number = self.next;
        self.next += 1;
        Begin { connection: self.connection, number, pair: self.pair, route: self.route, recogniser: self.recogniser }
    }

    /// What reads the server's messages.
    pub(super) fn server(&self) -> Option<&ResponseDecoder> {
        self.server.as_deref()
    }

    /// Ends an answer's exchange, and is ready for the next.
    pub(super) fn end(&mut self, exchange: Exchange, ending: Ending, at: Instant, shared: &crate::observer::Shared) {
        self.server = exchange.end_in_session(self.server.take(), ending, at, shared);
        if let Some(server) = &mut self.server {
            server.begin_answer();
        }
    }

    /// How an open answer ended when the connection ended so: a close frame says more than the FIN behind it. `None`: the
    /// server gave it up with a code that names a failure.
    pub(super) fn ending(&self, ending: Ending) -> Option<Ending> {
        match self.closing {
            Some((Sender::Client, _)) => Some(Ending::ClientGone),
            Some((Sender::Server, Some(code))) if !WELL.contains(&code) => None,
            Some((Sender::Server, _)) => Some(Ending::ServerFinished),
            None => Some(ending),
        }
    }
}

/// What an answer's exchange begins with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) connection: u64,
    pub(super) number: u64,
    pub(super) pair: usize,
    pub(super) route: Route,
    pub(super) recogniser: Recogniser,
}
