//! Determines how a request ended.

use crate::measure::Outcome;
use crate::measure::request::Request;
use crate::measure::request::response::Failure;
use tokometer_decode::{EngineHabits, FinishReason};

/// How the transfer of a request or its response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The response message is complete.
    Complete,
    /// The client closed or reset the connection first.
    ClientGone,
    /// The server closed the connection before or during the response.
    ServerFinished,
    /// The server reset the connection.
    ServerReset,
    /// The connection to the server failed, or the server closed it (HTTP/2 GOAWAY) before it processed the request.
    Refused,
    /// The server rejected the request because of load (HTTP/2 REFUSED_STREAM or ENHANCE_YOUR_CALM).
    Busy,
    /// The server did not accept the connection within the configured timeout.
    ConnectTimeout,
    /// The proxy closed the connection: no data arrived within the configured idle timeout.
    IdleTimeout,
    /// The proxy closed the connection at the end of a drain.
    Drained,
    /// Observation stopped: nothing after this moment is known.
    Unobserved,
}

/// The final state of a request and its response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conclusion {
    ending: Ending,
    /// Status of the response, or of a failed RPC.
    status: Option<u16>,
    /// [`Failure::AfterClientLeft`] if the engine may have reported an error only because the client had disconnected,
    /// or had aborted the request.
    failure: Failure,
    streaming: bool,
    /// An empty response is not an error: no output was requested, the output will be available later, or it is not
    /// counted as tokens.
    may_be_empty: bool,
    /// The stream's end marker arrived: `[DONE]`, or a finish reason or end event for every choice.
    marked_end: bool,
    /// The body was not parsed up to its end marker, so values may be missing.
    pub(super) unread: bool,
    /// Nothing in the body is known.
    pub(super) unknown_format: bool,
}

impl Conclusion {
    /// The final state of a request whose transfer ended with `ending`. `aborted`: a client aborted the request with a
    /// call of its own. `known`: the body has a text or a status of its API, possibly empty.
    pub(super) fn of(
        request: &Request,
        ending: Ending,
        habits: EngineHabits,
        aborted: bool,
        known: bool,
    ) -> Conclusion {
        let Request { route, parameters, times, tokens, response, .. } = request;
        let begun = times.first_token.is_known();
        let failure = match response.failure {
            Failure::Reported if aborted && response.is_aborted() => Failure::AfterClientLeft,
            Failure::AfterClientLeft if !habits.aborts_with_error && !response.is_aborted() => Failure::Reported,
            failure => failure,
        };
        let (ending, status, failure) = match response.call {
            // 499 Client Closed Request: the server noticed that the client had disconnected.
            Some(499) => (Ending::ClientGone, response.status, failure),
            Some(200) | None => (ending, response.status, failure),
            Some(_) if begun => (ending, response.status, Failure::Reported),
            Some(_) => (ending, response.call, failure),
        };
        let finished = if response.streaming { tokens.finished() } else { u64::from(response.finishes.len()) };
        let ended = route.ends_with_body() && ending == Ending::Complete && !response.unread;
        // The engine may ignore the requested number of choices, so a body that the server ended needs a finish reason
        // only for the choices in it.
        let expected = match ending {
            Ending::Complete => parameters.choices().min(tokens.seen()).max(1),
            _ => parameters.choices(),
        };
        let marked_end = ended
            || response.marked_end
            || response.call == Some(200)
            || (route.ends_with_finish() && finished >= expected);
        let is_read = !known && request.generates() && response.is_successful() && !response.unread;
        let unknown_format = is_read && response.has_unknown_format();
        Conclusion {
            ending,
            status,
            failure,
            streaming: response.streaming,
            may_be_empty: response.finishes.iter().any(FinishReason::is_idle)
                || parameters.allow_no_output(begun)
                || response.has_content
                || (!response.streaming && finished > 0),
            marked_end,
            // The RPC status ends a response even if its body was not parsed.
            unread: unknown_format || response.unread && (!marked_end || response.call.is_some()),
            unknown_format,
        }
    }

    /// True if the response was received and parsed to its end, without an error.
    pub(super) fn is_complete(&self) -> bool {
        let whole = match self.ending {
            Ending::Complete => !self.streaming || self.marked_end,
            _ => self.marked_end,
        };
        whole && !self.unread && self.failure == Failure::None
    }

    /// The outcome of this request. `has_tokens`: the response has output tokens.
    pub(super) fn outcome(&self, request: &Request, has_tokens: bool) -> Outcome {
        let has_content = self.streaming && request.response.has_content && !request.client_left.is_known();
        let begun = request.has_begun() || has_content;
        // The first row that applies determines the outcome.
        match (self.ending, self.status, self.failure) {
            (Ending::Unobserved, ..) => Outcome::Unobserved,
            // A server that has started to respond can no longer reject the request.
            (Ending::Refused, None, _) => Outcome::UpstreamRefused,
            (Ending::Busy, None, _) => Outcome::RejectedBusy,
            (Ending::ConnectTimeout, ..) => Outcome::UpstreamTimeout,
            (_, Some(429 | 503 | 529), _) => Outcome::RejectedBusy,
            (_, Some(400..=499), _) => Outcome::Http4xx,
            (_, Some(500..=599), _) => Outcome::Http5xx,
            // An error reported in the stream takes precedence: it caused the connection to end.
            (.., Failure::Reported) => Outcome::ErrorInStream,
            (.., Failure::AfterClientLeft) if begun || has_tokens && request.client_left.get().is_none() => {
                Outcome::ClientAbortMidStream
            }
            (.., Failure::AfterClientLeft) => Outcome::ClientAbortBeforeFirstToken,
            // A redirect has no output, because the client sends another request.
            (Ending::Complete, Some(300..=399), _) => Outcome::Ok,
            (Ending::Complete, ..) if !request.generates() || self.unread => Outcome::Ok,
            (Ending::Complete, ..) if !has_tokens && !self.may_be_empty => Outcome::NoOutput,
            (Ending::Complete, ..) if self.streaming && !self.marked_end => Outcome::Truncated,
            (Ending::Complete, ..) => Outcome::Ok,
            // Many clients disconnect at the end marker, before the last bytes of the message arrive.
            (Ending::ClientGone, ..) if self.streaming && self.marked_end => Outcome::Ok,
            (Ending::ClientGone, ..) if begun || (self.unread && request.response.bytes > 0) => {
                Outcome::ClientAbortMidStream
            }
            (Ending::ClientGone, ..) => Outcome::ClientAbortBeforeFirstToken,
            (Ending::ServerFinished, ..) => Outcome::Truncated,
            (Ending::ServerReset | Ending::Refused | Ending::Busy, ..) => Outcome::UpstreamReset,
            (Ending::IdleTimeout, ..) => Outcome::UpstreamTimeout,
            (Ending::Drained, ..) => Outcome::Drained,
        }
    }
}
