//! WebSocket session on a realtime route, or of the Responses API. Each response is recorded as one request.
//!
//! A response is requested by the client (`response.create` or `input_audio_buffer.commit`), or started by the server
//! when it detects the end of speech. A response started by the server has no request time, and so no time to first
//! token. The handshake is recorded as a separate request without tokens.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::measure::{Ending, Message, Request, Targets, Unread};
use crate::observer::body::unread;
use crate::observer::connection::Requests;
use crate::observer::engine::Recogniser;
use crate::observer::request::OpenRequest;
use tokometer_decode::{Framing, ResponseDecoder, Route, StreamEvent};
use tokometer_wire::websocket::{Event, Sender};

/// Close codes that are not errors (RFC 6455, section 7.4.1): normal closure and going away.
const NORMAL_CLOSE_CODES: [u16; 2] = [1000, 1001];

/// Maximum number of requests that wait for the open response of a session; more are not recorded.
const MAX_WAITING: usize = 16;

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
    waiting: VecDeque<Instant>,
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

impl Requests {
    /// Processes a frame.
    pub(super) fn session_frame(&mut self, sender: Sender, event: &Event<'_>, at: Instant) {
        let Some(effect) = self.session.as_mut().and_then(|session| session.take(sender, event)) else { return };
        match effect {
            Effect::Bytes(of, bytes) => {
                if let Some(request) = self.open.first_mut() {
                    match of {
                        Message::Request => request.measured.request_body(bytes),
                        Message::Response => request.measured.response_body(bytes),
                    }
                }
            }
            Effect::Requested if self.open.is_empty() => self.begin_response(Some(at), at),
            Effect::Requested => {
                // vLLM's realtime clients send `input_audio_buffer.commit` repeatedly during a response.
                if let Some(session) = &mut self.session
                    && session.route == Route::Responses
                    && session.waiting.len() < MAX_WAITING
                {
                    session.waiting.push_back(at);
                }
            }
            Effect::Event(event) => self.session_event(&event, at),
            Effect::Unread(of, why) => {
                if let Some(request) = self.open.first_mut().filter(|_| of == Message::Response) {
                    request.measured.response_unread();
                }
                self.shared.sink.unread(self.listener as usize, of, why);
            }
        }
    }

    /// Starts a response of the session. `asked`: when the client requested it.
    fn begin_response(&mut self, asked: Option<Instant>, at: Instant) {
        let Some(session) = &mut self.session else { return };
        self.shared.lasting.open.fetch_add(1, Ordering::Relaxed);
        let mut request = OpenRequest::begin_in_session(session, asked, at, &self.shared);
        if self.client_blocked {
            request.measured.client_blocked(at);
        }
        self.push(request);
    }

    /// Processes an event that the server sent in the session; starts a response if none is open.
    fn session_event(&mut self, event: &StreamEvent, at: Instant) {
        if self.open.is_empty() {
            // An event without output between two responses belongs to neither.
            if event.channels.is_empty() {
                return;
            }
            self.begin_response(None, at);
        }
        let Some(session) = &mut self.session else { return };
        if let (Some(request), Some(decoder)) = (self.open.first_mut(), session.server.as_deref()) {
            request.message(event, decoder, at, &self.shared);
        }
        // In the Responses API, an error is the last event of its response.
        if (event.end || event.error && session.route == Route::Responses)
            && let Some(request) = self.take_oldest(at)
            && let Some(session) = &mut self.session
        {
            request.end_in_session(session, Ending::Complete, at, &self.shared);
            if let Some(asked) = session.waiting.pop_front() {
                self.begin_response(Some(asked), asked);
            }
        }
    }

    /// Ends the open response of a session whose connection ended.
    pub(super) fn end_session(&mut self, mut session: Session, ending: Ending, at: Instant) {
        let Some(mut request) = self.take_oldest(at) else { return };
        let ending = session.ending(ending).unwrap_or_else(|| {
            request.measured.fail();
            ending
        });
        request.end_in_session(&mut session, ending, at, &self.shared);
    }
}
