//! Writes the state of one request in flight, on the thread of its connection.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use tokometer_observe::measure::{Opening, Outcome, Record, Requested, TimeLine, Watch};

use crate::live::recent::{Finished, Recent};
use crate::live::requests::{DONE, Details, LEFT, Listener, NEVER, Request, Requests, STREAM, WHOLE, nanos};
use crate::live::wedge::WHOLE_TOKENS;

/// Receives the events of one request, and writes the request's state for readers.
pub(super) struct RequestWatch {
    requests: Arc<Requests>,
    request: Arc<Request>,
    /// Index of the shard that holds the request.
    shard: usize,
    /// `None` when finished requests are not kept.
    recent: Option<Arc<Recent>>,
    /// True while the request is counted as pending at its listener.
    pending: bool,
    has_headers: bool,
    /// Copies of values in `request`. On each token, the thread only writes to `request`, because reading from it would
    /// wait for a cache miss.
    started: u64,
    tokens: Option<u64>,
    /// Arrival times of the tokens, from the headers of a streamed response on. Not in `request`, to avoid the same
    /// cache miss.
    line: Option<TimeLine>,
}

impl RequestWatch {
    /// Starts tracking a request; `None` if it cannot be tracked ([`Requests::add`]).
    pub(super) fn open(
        requests: &Arc<Requests>,
        recent: Option<Arc<Recent>>,
        opening: &Opening,
    ) -> Option<RequestWatch> {
        let started = requests.nanos(opening.started);
        let (request, shard) = requests.add(Request::new(opening, started))?;
        Some(RequestWatch {
            requests: Arc::clone(requests),
            request,
            shard,
            recent,
            pending: false,
            has_headers: false,
            started,
            tokens: None,
            line: None,
        })
    }

    fn time(&self, at: Duration) -> u64 {
        self.started.saturating_add(nanos(at)).min(NEVER - 1)
    }

    fn engine(&self) -> Option<&Listener> {
        self.requests.engine(usize::from(self.request.listener))
    }

    /// Counts the request as pending at its listener. Call this before the state changes to pending, because readers
    /// rely on this order ([`Request::at`]).
    fn count_pending(&mut self, at: u64) {
        if !self.pending
            && let Some(listener) = self.engine()
        {
            listener.add_pending(at);
            self.pending = true;
        }
    }

    /// Stops counting a request that is no longer pending. Call this after each change of the state.
    fn uncount_pending(&mut self) {
        if self.pending
            && !self.request.doing().is_pending()
            && let Some(listener) = self.engine()
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
        if !self.has_headers && request.streaming == Some(true) {
            self.request.response.store(STREAM, Relaxed);
        }
        let details = Details {
            requested,
            model: request.model.map(Into::into),
            max_tokens: request.max_tokens.unwrap_or(u64::MAX),
            bytes: u32::try_from(request.bytes).unwrap_or(u32::MAX),
            allowed_tokens: u32::try_from(request.limit.tokens(WHOLE_TOKENS)).unwrap_or(u32::MAX),
            targets: request.targets.cloned().map(Arc::new),
        };
        self.request.details.set(details).ok();
        self.uncount_pending();
    }

    fn response_started(&mut self, status: u16, streaming: bool) {
        self.has_headers = true;
        let response = match status {
            400.. => DONE,
            _ if streaming && self.request.response.load(Relaxed) == LEFT => LEFT,
            _ if streaming => STREAM,
            _ => WHOLE,
        };
        self.request.response.store(response, Relaxed);
        // Created here, because `token` must not allocate.
        if matches!(response, STREAM | LEFT) && self.recent.is_some() {
            self.line.get_or_insert_default();
        }
        self.uncount_pending();
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
            self.uncount_pending();
        }
        true
    }

    fn usual_gap(&mut self, usual: Duration) {
        let millis = u32::try_from(usual.as_millis()).unwrap_or(u32::MAX).max(1);
        self.request.usual_gap.store(millis, Relaxed);
    }

    fn warm(&self) {
        black_box((self.started, self.tokens));
        if let Some(line) = &self.line {
            line.warm();
        }
    }

    fn client_blocked(&mut self, at: Duration) {
        self.request.blocked.store(self.time(at), Relaxed);
        self.uncount_pending();
    }

    fn resumed(&mut self, at: Duration) {
        let at = self.time(at);
        self.count_pending(at);
        self.request.resumed.store(at, Relaxed);
        self.request.blocked.store(NEVER, Release);
        self.uncount_pending();
    }

    fn response_complete(&mut self) {
        self.request.response.store(DONE, Relaxed);
        self.uncount_pending();
    }

    fn client_left(&mut self) {
        // The request remains pending: the engine is still expected to respond, or to detect the disconnect.
        if self.request.response.load(Relaxed) == STREAM && self.tokens.is_none() {
            self.request.response.store(LEFT, Relaxed);
        }
    }

    fn ended(mut self: Box<Self>, record: &Arc<Record>) {
        if !record.labels.route.is_read() {
            return;
        }
        // A non-streamed response shows engine progress only when it ends.
        if record.outcome.is_ok()
            && let Some(listener) = self.engine()
        {
            listener.progress(self.time(record.times.ended));
        }
        if let Some(recent) = self.recent.take().filter(|_| !has_no_watch(record)) {
            let line = self.line.take().filter(|line| line.points().next().is_some());
            recent.add(|| Finished { record: Arc::clone(record), line: line.map(Box::new) });
        }
    }
}

/// True for a request that may never have had a watch. [`InFlight`](crate::live::InFlight), not a watch, adds such
/// requests to the recent requests.
pub(super) fn has_no_watch(record: &Record) -> bool {
    record.outcome == Outcome::Unobserved && record.times.first_token.is_none()
}

/// Stops tracking the request, even if there is no record of it.
impl Drop for RequestWatch {
    fn drop(&mut self) {
        if let Some(listener) = self.engine() {
            let progressed = self.request.progressed.load(Relaxed);
            if progressed != NEVER {
                listener.progress(progressed);
            }
            if self.pending {
                listener.remove_pending();
            }
        }
        self.requests.remove(self.shard, &self.request);
    }
}
