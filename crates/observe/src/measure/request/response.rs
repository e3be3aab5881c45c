//! State of the response to one request.

use std::hint::black_box;

use crate::measure::ResponseValues;
use tokometer_decode::{Channels, FinishReason, Finishes, StreamEvent};

/// Status of a WebSocket handshake (RFC 6455, section 4.2.2).
const SWITCHING_PROTOCOLS: u16 = 101;

/// Whether the server reported an error in the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Failure {
    /// No error.
    #[default]
    None,
    /// An error after the client closed its side of the connection. The engine may be reporting the disconnect.
    AfterClientLeft,
    /// An error.
    Reported,
}

/// State of one response.
#[derive(Debug, Default)]
pub(super) struct Response {
    /// Status of the final response headers.
    pub(super) status: Option<u16>,
    /// Final status of an RPC, mapped to an HTTP status.
    pub(super) call: Option<u16>,
    /// The body is an event stream.
    pub(super) streaming: bool,
    /// The end marker arrived.
    pub(super) marked_end: bool,
    /// The body was not parsed to its end.
    pub(super) unread: bool,
    /// An event had something that the dialect knows.
    recognised: bool,
    /// An event before had nothing that the dialect knows.
    strange: bool,
    /// An event had an image, or the non-streamed body had content, or its response will be available later (background
    /// request).
    pub(super) has_content: bool,
    pub(super) failure: Failure,
    /// Channels of the first token-bearing event.
    pub(super) first_channels: Channels,
    pub(super) finishes: Finishes,
    pub(super) events: u64,
    pub(super) bytes: u64,
}

impl Response {
    /// Starts a response that is sent as events on a WebSocket; returns its status.
    pub(super) fn begin_session(&mut self) -> u16 {
        self.streaming = true;
        *self.status.insert(SWITCHING_PROTOCOLS)
    }

    /// Prefetches the memory that the next event needs.
    pub(super) fn warm(&self) {
        black_box((self.events, self.bytes, self.marked_end));
    }

    /// True if the status reports success.
    pub(super) fn is_successful(&self) -> bool {
        matches!(self.status, Some(SWITCHING_PROTOCOLS | 200..=299))
    }

    /// True if a body was received, and nothing in it is known: its type or its format is not supported.
    pub(super) fn has_unknown_format(&self) -> bool {
        !self.recognised && (self.strange || (!self.streaming && self.bytes > 0))
    }

    /// Processes an event, except for its tokens. `cancel_is_abort`: a canceled response was given up by the engine, unless
    /// a client canceled it by a call, as with every other abort. `client_left`: the client has closed its side of the
    /// connection.
    pub(super) fn event(&mut self, event: &StreamEvent, cancel_is_abort: bool, client_left: bool) {
        self.events += 1;
        self.marked_end |= event.done || event.end;
        self.unread |= event.unread;
        self.has_content |= event.image;
        if !self.recognised {
            self.recognised = event.is_recognised();
            self.strange |= !self.recognised && !event.done;
        }
        // An error in a session is not final (realtime: a rejected client event).
        let completed = event.finishes.iter().any(|reason| reason == FinishReason::Completed);
        if self.status == Some(SWITCHING_PROTOCOLS) && event.end && completed {
            self.failure = Failure::None;
        }
        let mut is_error = event.error;
        for reason in event.finishes.iter() {
            let is_abort = reason == FinishReason::Canceled && cancel_is_abort;
            let reason = if is_abort { FinishReason::Abort } else { reason };
            is_error |= matches!(reason, FinishReason::Error | FinishReason::Abort);
            self.finishes.push(reason);
        }
        if is_error {
            self.failure = self.failure.max(if client_left { Failure::AfterClientLeft } else { Failure::Reported });
        }
    }

    /// True if the errors of a session were not final.
    pub(super) fn has_recovered(&self) -> bool {
        self.status == Some(SWITCHING_PROTOCOLS) && self.failure == Failure::None
    }

    /// True if the engine gave up the request.
    pub(super) fn is_aborted(&self) -> bool {
        self.finishes.iter().any(|reason| reason == FinishReason::Abort)
    }

    /// The values for the record, except the id and the error type.
    pub(super) fn values(&self) -> ResponseValues {
        ResponseValues {
            status: self.status,
            finish_reasons: self.finishes.iter().collect(),
            events: self.events,
            bytes: self.bytes,
            ..ResponseValues::default()
        }
    }
}
