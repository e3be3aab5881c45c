//! WebSocket session on a realtime route, or of the Responses API. Each response is recorded as one request.
//!
//! A response is requested by the client (`response.create` or `input_audio_buffer.commit`), or started by the server
//! when it detects the end of speech. A response started by the server has no request time, and so no time to first
//! token. The handshake is recorded as a separate request without tokens.

use std::collections::VecDeque;
use std::time::Instant;

use crate::measure::{Ending, Message, Request, Targets, Unread};
use crate::observer::body::unread;
use crate::observer::engine::Recogniser;
use tokometer_decode::{Framing, ResponseDecoder, Route, StreamEvent};
use tokometer_wire::websocket::{Event, Sender};

/// Close codes that are not errors (RFC 6455, section 7.4.1): normal closure and going away.
const NORMAL_CLOSE_CODES: [u16; 2] = [1000, 1001];

/// State of a session between and during its responses.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) connection: u64,
    pub(super) listener: usize,
    /// Sequence number of the next request on the connection.
    pub(super) next: u64,
    pub(super) route: Route,
    pub(super) recogniser: Recogniser,
    /// Targets of every response: only the tenant of the handshake request.
    pub(super) targets: Option<Box<Targets>>,
    client: ResponseDecoder,
    /// Decoder of the server's messages. `None` while a request that is ending uses it.
    pub(super) server: Option<Box<ResponseDecoder>>,
    /// Sender and code of the first close frame.
    closing: Option<(Sender, Option<u16>)>,
    /// When the client requested further responses during the open one. In the Responses API, the server generates them
    /// one after the other.
    pub(super) waiting: VecDeque<Instant>,
}

/// Effect of a frame on the session. The event is not boxed, to avoid an allocation per token.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum Effect {
    /// Bytes of a message, which count for the open response, if any.
    Bytes(Message, usize),
    /// The client requests a response.
    Requested,
    /// The server sent this event.
    Event(StreamEvent),
    /// The messages of one side cannot be parsed any more.
    Unread(Message, Unread),
}

impl Session {
    /// The session opened by this handshake request.
    pub(super) fn new(handshake: &Request, recogniser: Recogniser) -> Session {
        let route = handshake.route();
        let decoder = || ResponseDecoder::new(route, Framing::Messages);
        Session {
            connection: handshake.connection(),
            listener: handshake.listener(),
            next: handshake.sequence() + 1,
            route,
            recogniser,
            targets: Targets { tenant: handshake.tenant().map(Into::into), ..Targets::default() }.if_any(),
            client: decoder(),
            server: Some(Box::new(decoder())),
            closing: None,
            waiting: VecDeque::new(),
        }
    }

    /// Processes a frame.
    pub(super) fn take(&mut self, sender: Sender, event: &Event<'_>) -> Option<Effect> {
        let of = match sender {
            Sender::Client => Message::Request,
            Sender::Server => Message::Response,
        };
        let decoder = match sender {
            Sender::Client => &mut self.client,
            Sender::Server => self.server.as_deref_mut()?,
        };
        match event {
            Event::Data(bytes) => {
                decoder.feed(bytes, &mut |_| {});
                Some(Effect::Bytes(of, bytes.len()))
            }
            Event::MessageEnd { .. } => {
                let mut decoded = None;
                decoder.end_message(&mut |event| decoded = Some(*event));
                match sender {
                    Sender::Client => decoded?.asks.then_some(Effect::Requested),
                    Sender::Server => Some(Effect::Event(decoded?)),
                }
            }
            Event::Close(code) => {
                self.closing.get_or_insert((sender, *code));
                None
            }
            Event::Unreadable(why) => Some(Effect::Unread(of, unread(*why))),
        }
    }

    /// How an open response ended. A close frame takes precedence over `ending`, the end of the connection. `None` if
    /// the server closed the session with an error code.
    pub(super) fn ending(&self, ending: Ending) -> Option<Ending> {
        match self.closing {
            Some((Sender::Client, _)) => Some(Ending::ClientGone),
            Some((Sender::Server, Some(code))) if !NORMAL_CLOSE_CODES.contains(&code) => None,
            Some((Sender::Server, _)) => Some(Ending::ServerFinished),
            None => Some(ending),
        }
    }
}
