//! The requests in flight, and the engine activity of each listener.
//!
//! The state of a request is in atomics, written by the thread of its connection. Requests are kept in shards, each
//! behind a lock. The data path never waits for a lock. If a reader holds a shard's lock, new requests go to another
//! shard, and the next read removes ended requests.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use tokometer_decode::Route;
use tokometer_metrics::closed_enum;
use tokometer_observe::measure::{Opening, Phase, Targets};

/// Value of a time that has not been reached yet.
pub(super) const NEVER: u64 = u64::MAX;

/// State of a response: non-streamed.
pub(super) const WHOLE: u8 = 0;
/// State of a response: streamed.
pub(super) const STREAM: u8 = 1;
/// State of a response: rejected or complete.
pub(super) const DONE: u8 = 2;
/// State of a response: streamed, but the client disconnected before the first token.
pub(super) const LEFT: u8 = 3;

closed_enum! {
    /// State of a request in flight.
    pub enum Doing {
        /// The request is incomplete.
        Requesting = "requesting",
        /// A stream without a token yet.
        Prefill = "prefill",
        /// A stream with tokens.
        Decode = "decode",
        /// The request is complete, and a non-streamed response is pending.
        Whole = "whole",
        /// Blocked on the client (backpressure).
        Blocked = "blocked",
        /// The server rejected the request, or the end marker has arrived.
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

/// A request in flight, written by its connection's thread and read by any thread. Times are nanoseconds since the
/// epoch of [`Requests`].
///
/// Each token updates `progressed` and `tokens`. They must share a cache line, so that a token causes only one cache
/// miss: with many slow streams, the line is no longer in the cache when the next token arrives. An alignment of 16 is
/// enough for these 16 bytes; glibc is slow at larger alignments.
#[derive(Debug)]
#[repr(C, align(16))]
pub(super) struct Request {
    /// [`WHOLE`], [`STREAM`], [`DONE`] or [`LEFT`].
    pub(super) response: AtomicU8,
    pub(super) route: Route,
    pub(super) listener: u16,
    /// Usual gap between token-bearing events, milliseconds; 0 while it is unknown.
    pub(super) usual_gap: AtomicU32,
    pub(super) first_token: AtomicU64,
    /// Time of the last token, or of the last prompt progress report.
    pub(super) progressed: AtomicU64,
    pub(super) tokens: AtomicU64,
    /// Start of the current client backpressure; [`NEVER`] without backpressure.
    pub(super) blocked: AtomicU64,
    /// When backpressure last ended.
    pub(super) resumed: AtomicU64,
    sequence: u64,
    connection: u64,
    started: u64,
    pub(super) details: OnceLock<Details>,
}

/// Values known once the request is complete.
#[derive(Debug)]
pub(super) struct Details {
    pub(super) requested: u64,
    pub(super) model: Option<Arc<str>>,
    /// [`u64::MAX`] if not set. An `Option` would make [`Request`] larger than two cache lines.
    pub(super) max_tokens: u64,
    /// Size of the request body, at most 4 GiB.
    pub(super) bytes: u32,
    /// Output tokens that the request allows.
    pub(super) allowed_tokens: u32,
    pub(super) targets: Option<Arc<Targets>>,
}

/// Snapshot of a request in flight.
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
    /// Phase in which the request is counted.
    pub phase: Phase,
    /// Time since the first byte of the request.
    pub age: Duration,
    /// Current wait for the next token; `None` if no token is expected.
    pub waited: Option<Duration>,
    /// For a stream without a token whose client is still connected: time since the last byte of the request, or since
    /// backpressure ended.
    pub without_token: Option<Duration>,
    /// From the last byte of the request to the first token.
    pub first_token: Option<Duration>,
    /// Time since the first token.
    pub decoding: Option<Duration>,
    /// Time since the last token, or the last prompt progress report.
    pub progressed: Option<Duration>,
    /// Usual gap between the token-bearing events, once it is known.
    pub usual_gap: Option<Duration>,
    /// Tokens so far, a lower bound.
    pub tokens: u64,
    /// `max_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// Maximum output tokens per choice, if the engine makes progress: the limit of the request, or the usual maximum if
    /// the engine may ignore the limit.
    pub allowed_tokens: u32,
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
            usual_gap: AtomicU32::new(0),
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
            // In a session, the engine may be silent for a long time while it waits for client input. Sessions are
            // WebSocket conversations (vLLM Realtime) and calls with a stream of requests (Triton).
            _ if matches!(self.route, Route::Realtime | Route::TritonInferStream) => Doing::Session,
            _ if self.details.get().is_none() && !has_token => Doing::Requesting,
            DONE => Doing::Ending,
            _ if has_token => Doing::Decode,
            STREAM | LEFT => Doing::Prefill,
            _ => Doing::Whole,
        }
    }

    /// A snapshot at `now`. The values may be read at slightly different moments. If the snapshot is pending, the
    /// request is already counted as pending at its listener.
    pub(super) fn at(&self, now: u64) -> Open {
        let time = |time: &AtomicU64| Some(time.load(Relaxed)).filter(|time| *time != NEVER);
        let since = |then: u64| Duration::from_nanos(now.saturating_sub(then));
        let (doing, details) = (self.doing(), self.details.get());
        let (first_token, progressed) = (time(&self.first_token), time(&self.progressed));
        let requested = details.map(|details| details.requested);
        let usual_gap = Some(u64::from(self.usual_gap.load(Relaxed))).filter(|usual| *usual > 0);
        let response = self.response.load(Relaxed);
        let is_waiting =
            first_token.is_none() && response == STREAM && !matches!(doing, Doing::Session | Doing::Blocked);
        let phase = match (first_token, response) {
            (Some(_), _) => Phase::Streaming,
            (None, WHOLE) if requested.is_some() => Phase::Unstreamed,
            (None, _) => Phase::WaitingFirstToken,
        };
        // The wait for the next token starts at the latest of these times: end of the request, last token, end of
        // backpressure.
        let waits_since = requested.max(progressed).max(time(&self.resumed)).unwrap_or(self.started);
        Open {
            listener: usize::from(self.listener),
            route: self.route,
            model: details.and_then(|details| details.model.clone()),
            connection: self.connection,
            sequence: self.sequence,
            doing,
            phase,
            age: since(self.started),
            waited: doing.is_pending().then(|| since(waits_since)),
            without_token: requested
                .filter(|_| is_waiting)
                .map(|then| since(then.max(time(&self.resumed).unwrap_or_default()))),
            first_token: first_token
                .zip(requested)
                .map(|(token, then)| Duration::from_nanos(token.saturating_sub(then))),
            decoding: first_token.map(since),
            progressed: progressed.map(since),
            usual_gap: usual_gap.map(Duration::from_millis),
            tokens: self.tokens.load(Relaxed),
            max_tokens: details.map(|details| details.max_tokens).filter(|max| *max != u64::MAX),
            allowed_tokens: details.map_or(0, |details| details.allowed_tokens),
            request_bytes: details.map_or(0, |details| details.bytes.into()),
            targets: details.and_then(|details| details.targets.clone()),
        }
    }
}

/// Far more than the number of shards that are locked at the same time, so a thread normally finds a free shard.
const SHARDS: usize = 64;

/// Number of requests that a reader reads before it yields the core to data path threads. Reading a request takes about
/// half a microsecond, because it is not in the cache.
const READ_AT_ONCE: usize = 32;

/// Requests by memory address.
type Entries = BTreeMap<usize, Weak<Request>>;

/// Part of the requests. Each thread first tries a different shard, so shards must not share cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Entries>);

impl Shard {
    fn try_lock(&self) -> Option<MutexGuard<'_, Entries>> {
        match self.0.try_lock() {
            Ok(entries) => Some(entries),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the lock. Not for the data path.
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shard that this thread tries first.
fn first_shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static FIRST: usize = THREADS.fetch_add(1, Relaxed));
    FIRST.with(|first| *first)
}

/// The requests in flight.
#[derive(Debug)]
pub(super) struct Requests {
    epoch: Instant,
    pub(super) listeners: Vec<Listener>,
    /// For each listener, the index of the first listener with the same server.
    servers: Vec<usize>,
    shards: Box<[Shard]>,
    /// Number of requests in flight, at most `max`.
    count: AtomicUsize,
    max: usize,
    /// Number of requests that were not added.
    untracked: AtomicU64,
}

impl Requests {
    pub(super) fn new(max: usize, listeners: &[String], servers: &[usize], epoch: Instant) -> Requests {
        Requests {
            epoch,
            listeners: listeners
                .iter()
                .map(|name| Listener { name: name.as_str().into(), ..Default::default() })
                .collect(),
            servers: servers.to_vec(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            count: AtomicUsize::new(0),
            max: max.max(1),
            untracked: AtomicU64::new(0),
        }
    }

    /// The first listener with the same server as this one.
    pub(super) fn server(&self, listener: usize) -> usize {
        self.servers.get(listener).copied().unwrap_or(listener)
    }

    /// The activity of the engine behind this listener.
    pub(super) fn engine(&self, listener: usize) -> Option<&Listener> {
        self.listeners.get(self.server(listener))
    }

    /// Nanoseconds since the epoch.
    pub(super) fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.epoch))
    }

    /// Adds a request, and returns it with the index of its shard. `None` if too many requests are in flight or all
    /// shards are locked; such requests are counted as untracked.
    pub(super) fn add(&self, request: Request) -> Option<(Arc<Request>, usize)> {
        if self.count.fetch_add(1, Relaxed) < self.max {
            let (request, first) = (Arc::new(request), first_shard());
            for at in (0..SHARDS).map(|n| first.wrapping_add(n) % SHARDS) {
                if let Some(mut entries) = self.shards.get(at).and_then(Shard::try_lock) {
                    entries.insert(key(&request), Arc::downgrade(&request));
                    return Some((request, at));
                }
            }
        }
        self.count.fetch_sub(1, Relaxed);
        self.untracked.fetch_add(1, Relaxed);
        None
    }

    /// Removes a request that has ended. If its shard is locked, the next [`Requests::read`] removes it.
    pub(super) fn remove(&self, shard: usize, request: &Arc<Request>) {
        self.count.fetch_sub(1, Relaxed);
        if let Some(mut entries) = self.shards.get(shard).and_then(Shard::try_lock) {
            entries.remove(&key(request));
        }
    }

    /// Calls `each` with every request in flight, in any order. Also removes ended requests that the data path could
    /// not remove, so it must be called regularly. While a shard is being read, new requests are added to other shards.
    pub(super) fn read(&self, now: Instant, mut each: impl FnMut(Open)) {
        let now = self.nanos(now);
        let mut read = 0_usize;
        for shard in &self.shards {
            shard.lock().retain(|_, request| {
                let request = request.upgrade();
                if let Some(request) = &request {
                    each(request.at(now));
                }
                read += 1;
                if read.is_multiple_of(READ_AT_ONCE) {
                    std::thread::yield_now();
                }
                request.is_some()
            });
        }
    }

    /// Number of requests that were not added, because too many were in flight or all shards were locked.
    pub(super) fn untracked(&self) -> u64 {
        self.untracked.load(Relaxed)
    }
}

fn key(request: &Arc<Request>) -> usize {
    Arc::as_ptr(request).addr()
}

/// Nanoseconds of `time`. Saturates just below [`NEVER`], at 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
}

/// A listener, and engine activity that cannot be derived from the requests in flight. The activity is counted at the
/// first listener with the same server. Times are nanoseconds since the epoch of [`Requests`].
#[derive(Debug, Default)]
pub(super) struct Listener {
    pub(super) name: Box<str>,
    pending: AtomicI64,
    /// Start of the current period with at least one pending request.
    pending_since: AtomicU64,
    /// Time of the last progress of requests that have ended.
    progressed: AtomicU64,
}

impl Listener {
    /// Counts a request that became pending at `at`.
    pub(super) fn add_pending(&self, at: u64) {
        // If another thread removes the only other pending request between these lines, `pending_since` keeps its old
        // value. This is harmless, because the engine was idle for a negligible time.
        if self.pending.load(Relaxed) <= 0 {
            self.pending_since.fetch_max(at, Relaxed);
        }
        self.pending.fetch_add(1, Relaxed);
    }

    /// Stops counting a request that is no longer pending.
    pub(super) fn remove_pending(&self) {
        self.pending.fetch_sub(1, Relaxed);
    }

    /// Records that the engine made progress on a request at `at`.
    pub(super) fn progress(&self, at: u64) {
        self.progressed.fetch_max(at, Relaxed);
    }

    /// Start of the engine's silence: the later of its last known progress and the start of the pending period.
    pub(super) fn silent_since(&self) -> u64 {
        self.pending_since.load(Relaxed).max(self.progressed.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(max: usize) -> Requests {
        Requests::new(max, &[], &[], Instant::now())
    }

    fn add(requests: &Requests, sequence: u64) -> Option<(Arc<Request>, usize)> {
        let opening = Opening { listener: 0, route: Route::Chat, connection: 1, sequence, started: requests.epoch };
        requests.add(Request::new(&opening, sequence))
    }

    fn sequences(requests: &Requests) -> Vec<u64> {
        let mut all = Vec::new();
        requests.read(Instant::now(), |open| all.push(open.sequence));
        all.sort_unstable();
        all
    }

    #[test]
    fn locked_shard_never_blocks_the_data_path() {
        let requests = requests(8);
        let (first, shard) = add(&requests, 0).unwrap();
        let held = requests.shards[shard].lock();
        let (_second, other) = add(&requests, 1).unwrap();
        assert_ne!(other, shard);
        requests.remove(shard, &first);
        drop(first);
        assert_eq!(held.len(), 1, "left for a reader");
        drop(held);
        assert_eq!(sequences(&requests), [1]);
        assert!(requests.shards[shard].lock().is_empty());
    }

    #[test]
    fn request_is_untracked_when_all_shards_are_locked() {
        let requests = requests(8);
        let held: Vec<_> = requests.shards.iter().map(Shard::lock).collect();
        assert!(add(&requests, 0).is_none());
        drop(held);
        assert_eq!((requests.untracked(), requests.count.load(Relaxed)), (1, 0));
    }

    #[test]
    fn concurrent_threads_lose_no_request_and_keep_the_limit() {
        let requests = requests(100);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let requests = &requests;
                scope.spawn(move || {
                    for n in 0..5000 {
                        let (request, shard) = add(requests, thread * 10_000 + n).unwrap();
                        requests.remove(shard, &request);
                    }
                });
            }
            for _ in 0..200 {
                assert!(sequences(&requests).len() <= 4);
            }
        });
        let kept: Vec<_> = (0..100).map(|n| add(&requests, n)).collect();
        assert!(kept.iter().all(Option::is_some) && add(&requests, 100).is_none());
        assert!(sequences(&requests).into_iter().eq(0..100));
    }
}
