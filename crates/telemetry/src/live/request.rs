//! A request in flight: its state in atomics, and what a reader sees of it.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokometer_decode::Route;
use tokometer_observe::closed_enum;
use tokometer_observe::measure::{Opening, Targets};

/// A time not reached yet.
pub(super) const NEVER: u64 = u64::MAX;

/// The response of a request: expected in one piece, a stream, or refused or complete.
pub(super) const WHOLE: u8 = 0;
pub(super) const STREAM: u8 = 1;
pub(super) const DONE: u8 = 2;

closed_enum! {
    /// State of a request in flight.
    pub enum Doing {
        /// The request is incomplete.
        Requesting = "requesting",
        /// A stream without a token yet.
        Prefill = "prefill",
        /// A stream with tokens.
        Decode = "decode",
        /// A non-streamed response is pending.
        Whole = "whole",
        /// Blocked on the client (backpressure).
        Blocked = "blocked",
        /// Refused, or the end marker has arrived.
        Ending = "ending",
        /// A conversation in which the engine may be silent.
        Session = "session",
    }
}

impl Doing {
    /// True while the engine is expected to send tokens.
    pub(super) fn is_pending(self) -> bool {
        matches!(self, Doing::Prefill | Doing::Decode | Doing::Whole)
    }
}

/// A request in flight, written by its connection's thread and read by any. Times are nanoseconds since the epoch of
/// [`Requests`](super::requests::Requests).
///
/// The fields written per token share a cache line: there are many slow streams, so every token finds it evicted from
/// the cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Request {
    /// [`WHOLE`], [`STREAM`] or [`DONE`].
    pub(super) response: AtomicU8,
    pub(super) route: Route,
    pub(super) listener: u16,
    pub(super) first_token: AtomicU64,
    /// Time of the last token, or of the last prompt progress report.
    pub(super) progressed: AtomicU64,
    pub(super) tokens: AtomicU64,
    /// Start of the backpressure from the client; [`NEVER`] without backpressure.
    pub(super) blocked: AtomicU64,
    /// When backpressure last ended.
    pub(super) resumed: AtomicU64,
    sequence: u64,
    connection: u64,
    started: u64,
    pub(super) details: OnceLock<Details>,
}

/// What is known when the request is complete.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) requested: u64,
    pub(super) model: Option<Arc<str>>,
    /// [`u64::MAX`]: not set. Without an `Option`, a [`Request`] fits into two cache lines.
    pub(super) max_tokens: u64,
    pub(super) bytes: u64,
    pub(super) targets: Option<Arc<Targets>>,
}

/// A request in flight at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// Index of the listener.
    pub listener: usize,
    /// Route of the request.
    pub route: Route,
    /// `model` of the request.
    pub model: Option<Arc<str>>,
    /// Connection number in this process.
    pub connection: u64,
    /// Request number on its connection, from 0.
    pub sequence: u64,
    /// State.
    pub doing: Doing,
    /// Time since the first byte of the request.
    pub age: Duration,
    /// Time waited for the next token; `None` when none is expected.
    pub waited: Option<Duration>,
    /// Time since the last byte of a request for a stream that has no token yet.
    pub without_token: Option<Duration>,
    /// From the last byte of the request to the first token.
    pub first_token: Option<Duration>,
    /// Time since the first token.
    pub decoding: Option<Duration>,
    /// Time since the last token, or the last prompt progress report.
    pub progressed: Option<Duration>,
    /// Tokens so far, a lower bound.
    pub tokens: u64,
    /// `max_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// Size of the request body in bytes.
    pub request_bytes: u64,
    /// The SLO targets in the request itself.
    pub targets: Option<Arc<Targets>>,
}

impl Request {
    pub(super) fn new(opening: &Opening, started: u64) -> Request {
        let never = || AtomicU64::new(NEVER);
        Request {
            response: AtomicU8::new(WHOLE),
            route: opening.route,
            listener: u16::try_from(opening.listener).unwrap_or(u16::MAX),
            first_token: never(),
            progressed: never(),
            tokens: AtomicU64::new(0),
            blocked: never(),
            resumed: never(),
            sequence: opening.sequence,
            connection: opening.connection,
            started,
            details: OnceLock::new(),
        }
    }

    /// The current state.
    pub(super) fn doing(&self) -> Doing {
        let has_token = self.first_token.load(Acquire) != NEVER;
        match self.response.load(Relaxed) {
            _ if self.blocked.load(Acquire) != NEVER => Doing::Blocked,
            // In a session the engine may be silent for long while it waits for client input: WebSocket responses (vLLM
            // continues one while the client speaks), and a stream of requests in one call.
            _ if matches!(self.route, Route::Realtime | Route::TritonInferStream) => Doing::Session,
            _ if self.details.get().is_none() && !has_token => Doing::Requesting,
            DONE => Doing::Ending,
            _ if has_token => Doing::Decode,
            STREAM => Doing::Prefill,
            _ => Doing::Whole,
        }
    }

    /// The values at `now`. They may be from different moments within the call. A reader that sees a pending request
    /// also sees it counted at its listener.
    pub(super) fn at(&self, now: u64) -> Open {
        let time = |time: &AtomicU64| Some(time.load(Relaxed)).filter(|time| *time != NEVER);
        let since = |then: u64| Duration::from_nanos(now.saturating_sub(then));
        let (doing, details) = (self.doing(), self.details.get());
        let (first_token, progressed) = (time(&self.first_token), time(&self.progressed));
        let requested = details.map(|details| details.requested);
        let is_waiting = first_token.is_none() && self.response.load(Relaxed) == STREAM && doing != Doing::Session;
        // The wait for the next token starts when the request is complete, at the last token, or when backpressure ends.
        let waits_since = requested.max(progressed).max(time(&self.resumed)).unwrap_or(self.started);
        Open {
            listener: usize::from(self.listener),
            route: self.route,
            model: details.and_then(|details| details.model.clone()),
            connection: self.connection,
            sequence: self.sequence,
            doing,
            age: since(self.started),
            waited: doing.is_pending().then(|| since(waits_since)),
            without_token: requested.filter(|_| is_waiting).map(since),
            first_token: first_token
                .zip(requested)
                .map(|(token, then)| Duration::from_nanos(token.saturating_sub(then))),
            decoding: first_token.map(since),
            progressed: progressed.map(since),
            tokens: self.tokens.load(Relaxed),
            max_tokens: details.map(|details| details.max_tokens).filter(|max| *max != u64::MAX),
            request_bytes: details.map_or(0, |details| details.bytes),
            targets: details.and_then(|details| details.targets.clone()),
        }
    }
}
