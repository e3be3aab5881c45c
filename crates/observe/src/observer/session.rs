//! WebSocket session on a realtime route: each of its responses is recorded as one request.
//!
//! A response is requested by the client's `response.create` or `input_audio_buffer.commit`, or started by the server
//! when it detects the end of speech; the latter has no waiting time. The handshake is recorded as a separate request
//! without tokens.

use std::time::Instant;

use crate::measure::Ending;
use crate::measure::Message;
use crate::measure::Targets;
use crate::measure::Unread;
use crate::observer::body::unread;
use crate::observer::engine::Recogniser;
use crate::observer::request::OpenRequest;
use tokometer_decode::Framing;
use tokometer_decode::ResponseDecoder;
use tokometer_decode::Route;
use tokometer_decode::StreamEvent;
use tokometer_wire::websocket::Event;
use tokometer_wire::websocket::Sender;

/// Close codes that report no error (RFC 6455, section 7.4.1): normal, and going away.
const WELL: [u16; 2] = [1000, 1001];

/// State of a session between and during its responses.
#[derive(Debug)]
pub(super) struct Session {
    connection: u64,
    listener: usize,
    /// Sequence number of the next request on the connection.
    next: u64,
    route: Route,
    recogniser: Recogniser,
    /// Tenant from the handshake request.
    targets: Option<Box<Targets>>,
    client: ResponseDecoder,
    /// `None` while a request that ends uses it.
    server: Option<Box<ResponseDecoder>>,
    /// Sender and code of the first close frame.
    closing: Option<(Sender, Option<u16>)>,
}

/// Effect of a frame on the session. The event is not boxed, which would be one allocation per token.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
pub(super) enum Effect {
    /// Bytes of a message, for the response that is open, if any.
    Bytes(Message, usize),
    /// The client requests a response.
    Requested,
    /// The server sent this event.
    Event(StreamEvent),
    /// One side's messages cannot be parsed any more.
    Unread(Message, Unread),
}

impl Session {
    pub(super) fn new(connection: u64, listener: usize, next: u64, route: Route, recogniser: Recogniser) -> Session {
        let decoder = || ResponseDecoder::new(route, Framing::Messages);
        Session {
            connection,
            listener,
            next,
            route,
            recogniser,
            targets: None,
            client: decoder(),
            server: Some(Box::new(decoder())),
            closing: None,
        }
    }

    /// Sets the tenant of the session's responses.
    pub(super) fn of_tenant(mut self, tenant: Option<&str>) -> Session {
        self.targets = Targets { tenant: tenant.map(Into::into), ..Targets::default() }.if_any();
        self
    }

    /// Targets that the record of every response starts with.
    pub(super) fn targets(&self) -> Option<Box<Targets>> {
        self.targets.clone()
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

    /// Parameters for the record of a response that starts now.
    pub(super) fn begin(&mut self) -> Begin {
        let number = self.next;
        self.next += 1;
        Begin {
            connection: self.connection,
            number,
            listener: self.listener,
            route: self.route,
            recogniser: self.recogniser,
        }
    }

    /// Decoder of the server's messages.
    pub(super) fn server(&self) -> Option<&ResponseDecoder> {
        self.server.as_deref()
    }

    /// Ends the record of a response, and prepares for the next one.
    pub(super) fn end(&mut self, request: OpenRequest, ending: Ending, at: Instant, shared: &crate::observer::Shared) {
        self.server = request.end_in_session(self.server.take(), ending, at, shared);
        if let Some(server) = &mut self.server {
            server.begin_response();
        }
    }

    /// Ending of an open response, given that of the connection: a close frame is more specific than the FIN that
    /// follows it. `None`: the server closed the session with a code that reports a failure.
    pub(super) fn ending(&self, ending: Ending) -> Option<Ending> {
        match self.closing {
            Some((Sender::Client, _)) => Some(Ending::ClientGone),
            Some((Sender::Server, Some(code))) if !WELL.contains(&code) => None,
            Some((Sender::Server, _)) => Some(Ending::ServerFinished),
            None => Some(ending),
        }
    }
}

/// Parameters for the record of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) connection: u64,
    pub(super) number: u64,
    pub(super) listener: usize,
    pub(super) route: Route,
    pub(super) recogniser: Recogniser,
}
