//! Determines the outcome of a request.

use crate::measure::Outcome;

/// How a request ended on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The response message is complete.
    Complete,
    /// The client closed or reset the connection first.
    ClientGone,
    /// The server closed the connection in the middle of the response or before it.
    ServerFinished,
    /// The server reset the connection.
    ServerReset,
    /// The server could not be reached, or closed the connection (HTTP/2 GOAWAY) before it processed the request.
    Refused,
    /// The server rejected the request because of load (HTTP/2 REFUSED_STREAM or ENHANCE_YOUR_CALM).
    Busy,
    /// The server did not accept the connection within the configured timeout.
    ConnectTimeout,
    /// The proxy closed the connection: no data for the configured idle timeout.
    IdleTimeout,
    /// The proxy closed the connection at the end of a drain.
    Drained,
    /// Observation stopped: nothing after this moment is known.
    Unobserved,
}

/// Properties of a response that determine its outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: Option<u16>,
    /// The route is one that generates tokens.
    pub(super) generates: bool,
    pub(super) streaming: bool,
    /// A token was seen, usage reported one, or no output is expected (none requested, or the response comes later).
    pub(super) has_output: bool,
    /// A first token was seen.
    pub(super) begun: bool,
    /// The stream's end marker arrived: `[DONE]`, or a finish reason or end event of every choice.
    pub(super) marked_end: bool,
    /// An error event arrived.
    pub(super) error: bool,
    /// An error event arrived after the client had left, from an engine that reports the cancellation that way.
    pub(super) gave_up: bool,
    /// The body was not parsed, or not up to the end marker: values missing above may have been there.
    pub(super) unread: bool,
    /// The body was not empty.
    pub(super) has_body: bool,
}

/// Returns the outcome.
pub(super) fn outcome(ending: Ending, answer: Answer) -> Outcome {
    match ending {
        Ending::Unobserved => return Outcome::Unobserved,
        // A server that has started to respond no longer refuses the request.
        Ending::Refused if answer.status.is_none() => return Outcome::UpstreamRefused,
        Ending::Busy if answer.status.is_none() => return Outcome::RejectedBusy,
        Ending::ConnectTimeout => return Outcome::UpstreamTimeout,
        _ => {}
    }
    let failed_status = match answer.status {
        Some(429 | 503 | 529) => Some(Outcome::RejectedBusy),
        Some(400..=499) => Some(Outcome::Http4xx),
        Some(500..=599) => Some(Outcome::Http5xx),
        _ => None,
    };
    if let Some(failed) = failed_status {
        return failed;
    }
    // An error reported in the stream caused the way the connection ended.
    if answer.error {
        return Outcome::ErrorInStream;
    }
    if answer.gave_up {
        return if answer.begun { Outcome::ClientAbortMidStream } else { Outcome::ClientAbortBeforeFirstToken };
    }
    match ending {
        Ending::Complete if !answer.generates || answer.unread => Outcome::Ok,
        Ending::Complete if !answer.has_output => Outcome::NoOutput,
        Ending::Complete if answer.streaming && !answer.marked_end => Outcome::Truncated,
        Ending::Complete => Outcome::Ok,
        // Many clients disconnect at the end marker, before the last bytes of the message.
        Ending::ClientGone if answer.streaming && answer.marked_end => Outcome::Ok,
        Ending::ClientGone if answer.begun || (answer.unread && answer.has_body) => Outcome::ClientAbortMidStream,
        Ending::ClientGone => Outcome::ClientAbortBeforeFirstToken,
        Ending::ServerFinished => Outcome::Truncated,
        Ending::ServerReset | Ending::Refused | Ending::Busy => Outcome::UpstreamReset,
        Ending::Drained => Outcome::Drained,
        Ending::Unobserved => Outcome::Unobserved,
        Ending::ConnectTimeout | Ending::IdleTimeout => Outcome::UpstreamTimeout,
    }
}
