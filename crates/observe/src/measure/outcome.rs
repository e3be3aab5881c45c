//! Which of the closed set of outcomes an exchange ended in.

use crate::measure::Outcome;

/// How an exchange came to its end on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The response message is complete.
    Complete,
    /// The client finished or reset the connection first.
    ClientGone,
    /// The server finished the connection in the middle of the answer, or without one.
    ServerFinished,
    /// The server reset the connection.
    ServerReset,
    /// The server could not be reached, or went away (GOAWAY of HTTP/2) before it looked at the request.
    Refused,
    /// The server said that it has no room for the request (REFUSED_STREAM, ENHANCE_YOUR_CALM of HTTP/2).
    Busy,
    /// The server did not accept the connection in the configured time.
    ConnectTimeout,
    /// We closed it: nothing moved for the configured idle timeout.
    IdleTimeout,
    /// We closed it at the end of a drain.
    Drained,
    /// It is no longer observed: nothing after this moment is known.
    Unobserved,
}

/// What of an answer decides its outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: Option<u16>,
    /// The route is one that generates tokens.
    pub(super) generates: bool,
    pub(super) streaming: bool,
    /// A token was seen, or usage told of one, or none was asked for, or none yet.
    pub(super) has_output: bool,
    /// A first token was seen.
    pub(super) begun: bool,
    /// The stream's own end mark came: `[DONE]`, or of every choice a finish reason or the word that it has ended.
    pub(super) marked_end: bool,
    /// An error event came.
    pub(super) error: bool,
    /// An error event came after the client had left, from an engine that says one because of that.
    pub(super) gave_up: bool,
    /// The body was not read, or not to the end mark: what is missing above may have been there.
    pub(super) unread: bool,
    /// Bytes of a body came.
    pub(super) has_body: bool,
}

/// The outcome.
pub(super) fn outcome(ending: Ending, answer: Answer) -> Outcome {
    match ending {
        Ending::Unobserved => return Outcome::Unobserved,
        // Who has begun to answer does not refuse any more.
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
    // An error said in the stream is the cause of whatever came after it.
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
        // Many clients hang up at the end mark, before the last bytes of the message.
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
