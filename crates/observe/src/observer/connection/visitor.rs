//! Passes the messages that the parser finds on a connection to its open requests.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{NONE_SKIPPED, Requests};
use crate::input::Direction;
use crate::measure::{Ending, Message};
use crate::observer::request::OpenRequest;
use tokometer_wire::websocket::{Event, Sender};
use tokometer_wire::{RequestHead, Reset, ResponseHead, Trailers, Visitor};

impl Visitor for Requests {
    fn request_begin(&mut self, number: u64, at: Instant) -> bool {
        if !self.has_room() {
            self.skipped = skipped(number);
            return false;
        }
        self.shared.lasting.open.fetch_add(1, Ordering::Relaxed);
        self.push(OpenRequest::begin(self.connection, number, self.listener as usize, at));
        true
    }

    fn request_head(&mut self, number: u64, head: &RequestHead<'_>, at: Instant) {
        if self.skipped == skipped(number) {
            self.skipped = NONE_SKIPPED;
            return self.record_skipped(number, Some(head), at);
        }
        let client_blocked = self.client_blocked;
        let Some((request, account, shared)) = self.find(number) else { return };
        request.request_head(head, account, shared);
        if client_blocked {
            request.measured.client_blocked(at);
        }
        if request.decodes(Message::Request) {
            self.begin_decoding(Direction::Request);
        }
    }

    fn unobserved(&mut self, number: u64, at: Instant) {
        if self.skipped == skipped(number) {
            self.skipped = NONE_SKIPPED;
            return self.record_skipped(number, None, at);
        }
        self.end(number, Ending::Unobserved, at);
    }

    fn unread(&mut self, number: u64, at: Instant) {
        self.record_skipped(number, None, at);
    }

    fn needs(&self, name: &str) -> bool {
        self.shared.settings.targets.reads(name)
    }

    fn request_body(&mut self, number: u64, bytes: &[u8], _at: Instant) {
        if let Some((request, _, shared)) = self.find(number) {
            request.request_body(bytes, shared);
        }
    }

    fn request_end(&mut self, number: u64, at: Instant) {
        if let Some((request, _, shared)) = self.find(number) {
            request.request_end(at, shared);
        }
    }

    fn response_head(&mut self, number: u64, head: &ResponseHead<'_>, at: Instant) {
        if let Some((found, account, shared)) = self.find(number) {
            found.response_head(head, at, account, shared);
            if found.decodes(Message::Response) {
                self.begin_decoding(Direction::Response);
            }
        }
        if head.status == 101 {
            let session = self.find(number).and_then(|(request, ..)| request.handshake());
            self.session = session.filter(|_| head.is_websocket()).map(Box::new);
            self.response_end(number, at);
        }
    }

    fn response_body(&mut self, number: u64, bytes: &[u8], at: Instant) {
        if let Some((request, _, shared)) = self.find(number) {
            request.response_body(bytes, at, shared);
        }
    }

    fn response_trailers(&mut self, number: u64, trailers: &Trailers<'_>, _at: Instant) {
        if let Some((request, ..)) = self.find(number) {
            request.response_trailers(trailers);
        }
    }

    fn response_end(&mut self, number: u64, at: Instant) {
        self.end(number, Ending::Complete, at);
    }

    fn websocket(&mut self, _request: u64, sender: Sender, event: &Event<'_>, at: Instant) {
        self.session_frame(sender, event, at);
    }

    fn reset(&mut self, number: u64, reset: Reset, at: Instant) {
        self.end(number, ending(reset), at);
    }
}

/// See [`Requests::skipped`].
fn skipped(number: u64) -> u16 {
    (number & 0x7fff) as u16
}

/// HTTP/2 error codes (RFC 9113, section 7).
const REFUSED_STREAM: u32 = 0x7;
const ENHANCE_YOUR_CALM: u32 = 0xb;

fn ending(reset: Reset) -> Ending {
    match reset {
        Reset::ByClient(_) => Ending::ClientGone,
        Reset::ByServer(REFUSED_STREAM | ENHANCE_YOUR_CALM) => Ending::Busy,
        Reset::ByServer(_) => Ending::ServerReset,
        Reset::NotTaken => Ending::Refused,
    }
}
