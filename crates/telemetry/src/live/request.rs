//! A request in flight: its state in atomics, and the watch that writes it.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::Ordering::Release;
use std::sync::atomic::fence;
use std::time::Duration;

use crate::live::recent::Finished;
use crate::live::recent::Queue;
use crate::live::requests::Listener;
use crate::live::requests::Requests;
use tokometer_decode::Route;
use tokometer_observe::measure::Opening;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Requested;
use tokometer_observe::measure::TimeLine;
use tokometer_observe::measure::Watch;

/// A time not reached yet.
const NEVER: u64 = u64::MAX;

/// A request in flight, written by its connection's thread and read by any. Times are nanoseconds since the epoch of
/// [`Requests`].
///
/// The fields written per token share a cache line: there are many slow streams, so every token finds it evicted from
/// the cache.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Request {
    /// The response headers have arrived.
    has_headers: AtomicBool,
    /// The response is streamed, or the request asks for a stream.
    streamed: AtomicBool,
    /// The response status is an error.
    failed: AtomicBool,
    /// The response's end marker has arrived.
    complete: AtomicBool,
    /// The request is no longer in flight.
    ended: AtomicBool,
    pub(super) route: Route,
    pub(super) listener: u16,
    first_token: AtomicU64,
    /// Time of the last token, or of the last prompt progress report.
    progressed: AtomicU64,
    tokens: AtomicU64,
    /// Start of the backpressure from the client; [`NEVER`] without backpressure.
    blocked: AtomicU64,
    /// When backpressure last ended.
    resumed: AtomicU64,
    pub(super) sequence: u64,
    pub(super) connection: u64,
    pub(super) started: u64,
    details: OnceLock<Details>,
}

/// What is known when the request is complete.
#[derive(Debug)]
pub(super) struct Details {
    requested: u64,
    pub(super) model: Option<Box<str>>,
    pub(super) max_tokens: Option<u64>,
    pub(super) bytes: u64,
}

impl Request {
    pub(super) fn new(opening: &Opening, started: u64) -> Request {
        let (no, never) = (|| AtomicBool::new(false), || AtomicU64::new(NEVER));
        Request {
            has_headers: no(),
            streamed: no(),
            failed: no(),
            complete: no(),
            ended: no(),
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

    /// Marks the request as no longer in flight.
    pub(super) fn end(&self) {
        self.ended.store(true, Release);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Acquire)
    }

    pub(super) fn details(&self) -> Option<&Details> {
        self.details.get()
    }

    /// True for a session in which the engine may be silent for long while it waits for client input.
    pub(super) fn is_session(&self) -> bool {
        // WebSocket responses (vLLM continues one while the client speaks), and a stream of requests in one call.
        matches!(self.route, Route::Realtime | Route::TritonInferStream)
    }

    /// The current state. Values may be from different moments within the call.
    pub(super) fn progress(&self) -> Progress {
        let time = |time: &AtomicU64| Some(time.load(Relaxed)).filter(|time| *time != NEVER);
        let progress = Progress {
            first_token: time(&self.first_token),
            progressed: time(&self.progressed),
            tokens: self.tokens.load(Relaxed),
            blocked: time(&self.blocked),
            resumed: time(&self.resumed),
            requested: self.details.get().map(|details| details.requested),
            streamed: self.streamed.load(Relaxed),
            not_pending: self.failed.load(Relaxed) || self.complete.load(Relaxed) || self.is_session(),
            started: self.started,
        };
        // A reader that sees a pending request also sees it counted at its listener.
        fence(Acquire);
        progress
    }
}

/// State of a request at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) requested: Option<u64>,
    pub(super) first_token: Option<u64>,
    pub(super) progressed: Option<u64>,
    pub(super) tokens: u64,
    started: u64,
    blocked: Option<u64>,
    resumed: Option<u64>,
    streamed: bool,
    /// Refused, complete or a session.
    not_pending: bool,
}

/// What the engine is doing for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// Nothing: the request is incomplete or refused, or the response is complete.
    NotPending,
    /// Blocked on the client (backpressure).
    Blocked,
    /// A stream without a token yet.
    Prefilling,
    /// A stream with tokens.
    Decoding,
    /// A non-streamed response.
    Whole,
}

impl Progress {
    pub(super) fn activity(&self) -> Activity {
        match self {
            _ if self.blocked.is_some() => Activity::Blocked,
            _ if self.not_pending || self.requested.or(self.first_token).is_none() => Activity::NotPending,
            _ if self.first_token.is_some() => Activity::Decoding,
            _ if self.streamed => Activity::Prefilling,
            _ => Activity::Whole,
        }
    }

    /// Start of the wait for the next token: the latest of request complete, last token and end of backpressure.
    pub(super) fn waits_since(&self) -> u64 {
        self.requested.max(self.progressed).max(self.resumed).unwrap_or(self.started)
    }
}

/// Writes the state of its request.
pub(super) struct RequestWatch {
    requests: Arc<Requests>,
    request: Arc<Request>,
    /// Index of the shard that holds the request.
    shard: usize,
    /// `None` when finished requests are not kept.
    recent: Option<Queue>,
    /// The request is counted as pending at its listener.
    pending: bool,
    /// Copies of the request's values, so that a token only writes to the request: reading it would wait for a cache
    /// miss.
    started: u64,
    tokens: Option<u64>,
    /// Created with the headers of a streamed response. Kept here for the same reason.
    line: Option<TimeLine>,
}

impl RequestWatch {
    /// Adds a request; `None` when there are too many.
    pub(super) fn open(requests: &Arc<Requests>, recent: Option<Queue>, opening: &Opening) -> Option<RequestWatch> {
        let started = requests.nanos(opening.started);
        let (request, shard) = requests.add(Request::new(opening, started))?;
        let requests = Arc::clone(requests);
        Some(RequestWatch { requests, request, shard, recent, pending: false, started, tokens: None, line: None })
    }

    fn time(&self, at: Duration) -> u64 {
        self.started.saturating_add(nanos(at)).min(NEVER - 1)
    }

    fn listener(&self) -> Option<&Listener> {
        self.requests.listeners.get(usize::from(self.request.listener))
    }

    /// Counts the request as pending. Must be called before its state shows it: a reader of the state must find it
    /// counted at its listener.
    fn count_pending(&mut self, at: u64) {
        if !self.pending
            && let Some(listener) = self.listener()
        {
            listener.add_pending(at);
            self.pending = true;
        }
    }

    /// Must be called after the state has changed: stops counting a request that is no longer pending.
    fn settle(&mut self) {
        if self.pending
            && matches!(self.request.progress().activity(), Activity::NotPending | Activity::Blocked)
            && let Some(listener) = self.listener()
        {
            listener.remove_pending();
            self.pending = false;
        }
    }
}

impl Watch for RequestWatch {
    fn requested(&mut self, request: &Requested<'_>, at: Duration) {
        let requested = self.time(at);
        self.count_pending(requested);
        // The response headers may arrive before the end of the request; they take precedence.
        if !self.request.has_headers.load(Relaxed) {
            self.request.streamed.store(request.streaming == Some(true), Relaxed);
        }
        let Requested { model, max_tokens, bytes, .. } = *request;
        self.request.details.set(Details { requested, model: model.map(Into::into), max_tokens, bytes }).ok();
        self.settle();
    }

    fn response_started(&mut self, status: u16, streaming: bool) {
        self.request.has_headers.store(true, Relaxed);
        self.request.streamed.store(streaming, Relaxed);
        self.request.failed.store(status >= 400, Relaxed);
        // Created here rather than at the first token, which must not allocate.
        if streaming && status < 400 && self.recent.is_some() {
            self.line.get_or_insert_default();
        }
        self.settle();
    }

    fn prefilling(&mut self, at: Duration) {
        self.request.progressed.store(self.time(at), Relaxed);
    }

    fn token(&mut self, at: Duration, tokens: u64) -> bool {
        let time = self.time(at);
        let first = self.tokens.is_none();
        let sum = self.tokens.unwrap_or(0).saturating_add(tokens);
        self.tokens = Some(sum);
        self.request.progressed.store(time, Relaxed);
        self.request.tokens.store(sum, Relaxed);
        if let Some(line) = &mut self.line {
            line.push(at, tokens);
        }
        if first {
            self.count_pending(time);
            self.request.first_token.store(time, Release);
            self.settle();
        }
        true
    }

    fn warm(&self) {
        black_box((self.started, self.tokens));
        if let Some(line) = &self.line {
            line.warm();
        }
    }

    fn client_blocked(&mut self, at: Duration) {
        self.request.blocked.store(self.time(at), Relaxed);
        self.settle();
    }

    fn resumed(&mut self, at: Duration) {
        let at = self.time(at);
        self.count_pending(at);
        self.request.resumed.store(at, Relaxed);
        self.request.blocked.store(NEVER, Release);
        self.settle();
    }

    fn response_complete(&mut self) {
        self.request.complete.store(true, Relaxed);
        self.settle();
    }

    fn ended(mut self: Box<Self>, record: &Record) {
        if !record.labels.route.is_read() {
            return;
        }
        // A non-streamed response shows engine progress only when it ends.
        if record.outcome.is_ok()
            && let Some(listener) = self.listener()
        {
            listener.progress(self.time(record.ended));
        }
        if let Some(recent) = self.recent.take() {
            let line = self.line.take().filter(|line| line.points().next().is_some());
            recent.add(|| Finished::new(record, line.map(Box::new)));
        }
    }
}

/// Removes the request, also when it is dropped without a record.
impl Drop for RequestWatch {
    fn drop(&mut self) {
        if let Some(listener) = self.listener() {
            if let Some(progressed) = self.request.progress().progressed {
                listener.progress(progressed);
            }
            if self.pending {
                listener.remove_pending();
            }
        }
        self.request.end();
        self.requests.remove(self.shard, &self.request);
    }
}

/// Saturates just below [`NEVER`], at 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
}
