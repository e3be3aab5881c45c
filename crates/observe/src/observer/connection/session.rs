//! Passes the events of a WebSocket session to the response that is open.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Requests;
use crate::measure::{Ending, Message};
use crate::observer::request::OpenRequest;
use crate::observer::session::{Effect, Session};
use tokometer_decode::{Route, StreamEvent};
use tokometer_wire::websocket::{Event, Sender};

/// Maximum number of requests that wait for the open response of a session; more are not recorded.
const MAX_WAITING: usize = 16;

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
