//! The requests in flight, and the engine activity of each listener.
//!
//! Requests are kept in shards, each behind a lock. The data path only tries to lock: if a reader holds a shard, a new
//! request goes to another one, and an ended request is left for the next read to remove.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::TryLockError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::live::request::Progress;
use crate::live::request::Request;
use crate::live::request::nanos;

/// Far more than threads that hold a lock at the same time.
const SHARDS: usize = 64;

/// Requests by address.
type Entries = BTreeMap<usize, Arc<Request>>;

/// On its own cache lines: each thread has its own shard first.
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
    shards: Box<[Shard]>,
    /// Requests in flight, at most `max`.
    count: AtomicUsize,
    max: usize,
    /// Requests that were not added.
    untracked: AtomicU64,
    /// A shard holds ended requests.
    stale: AtomicBool,
}

impl Requests {
    pub(super) fn new(max: usize, listeners: &[String], epoch: Instant) -> Requests {
        Requests {
            epoch,
            listeners: listeners.iter().map(|name| Listener::new(name)).collect(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            count: AtomicUsize::new(0),
            max: max.max(1),
            untracked: AtomicU64::new(0),
            stale: AtomicBool::new(false),
        }
    }

    /// Nanoseconds since the epoch.
    pub(super) fn nanos(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.epoch))
    }

    /// Adds a request; returns it and the index of its shard. `None` when there are too many, which is counted.
    pub(super) fn add(&self, request: Request) -> Option<(Arc<Request>, usize)> {
        if self.count.fetch_add(1, Relaxed) < self.max {
            let (request, first) = (Arc::new(request), first_shard());
            for at in (0..SHARDS).map(|n| first.wrapping_add(n) % SHARDS) {
                if let Some(mut entries) = self.shards.get(at).and_then(Shard::try_lock) {
                    entries.insert(key(&request), Arc::clone(&request));
                    return Some((request, at));
                }
            }
        }
        self.count.fetch_sub(1, Relaxed);
        self.untracked.fetch_add(1, Relaxed);
        None
    }

    /// Removes a request that has ended.
    pub(super) fn remove(&self, shard: usize, request: &Arc<Request>) {
        self.count.fetch_sub(1, Relaxed);
        match self.shards.get(shard).and_then(Shard::try_lock) {
            Some(mut entries) => drop(entries.remove(&key(request))),
            None => self.stale.store(true, Relaxed),
        }
    }

    /// Every request in flight.
    pub(super) fn read(&self) -> Vec<(Arc<Request>, Progress)> {
        let mut all = Vec::with_capacity(self.count.load(Relaxed));
        for shard in &self.shards {
            shard.lock().retain(|_, request| {
                let in_flight = !request.has_ended();
                if in_flight {
                    all.push((Arc::clone(request), request.progress()));
                }
                in_flight
            });
        }
        all
    }

    /// Removes ended requests that the data path could not remove.
    pub(super) fn sweep(&self) {
        if self.stale.swap(false, Relaxed) {
            self.shards.iter().for_each(|shard| shard.lock().retain(|_, request| !request.has_ended()));
        }
    }

    /// Requests that were not added because there were too many.
    pub(super) fn untracked(&self) -> u64 {
        self.untracked.load(Relaxed)
    }
}

fn key(request: &Arc<Request>) -> usize {
    Arc::as_ptr(request).addr()
}

/// Engine activity of a listener that is not derived from the requests in flight. Times are as in [`Requests`].
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) name: Box<str>,
    pending: AtomicI64,
    /// Start of the current period with at least one pending request.
    pending_since: AtomicU64,
    /// Last progress of requests that have ended.
    progressed: AtomicU64,
}

impl Listener {
    fn new(name: &str) -> Listener {
        let (pending, pending_since, progressed) = (AtomicI64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Listener { name: name.into(), pending, pending_since, progressed }
    }

    /// A request became pending.
    pub(super) fn add_pending(&self, at: u64) {
        // If the last other pending request is removed in between, the period without pending requests was negligible.
        if self.pending.load(Relaxed) <= 0 {
            self.pending_since.fetch_max(at, Relaxed);
        }
        self.pending.fetch_add(1, Relaxed);
    }

    /// A request is no longer pending.
    pub(super) fn remove_pending(&self) {
        self.pending.fetch_sub(1, Relaxed);
    }

    /// The engine made progress on a request.
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
    use tokometer_decode::Route;
    use tokometer_observe::measure::Opening;

    fn requests(max: usize) -> Requests {
        Requests::new(max, &[], Instant::now())
    }

    fn add(requests: &Requests, sequence: u64) -> Option<(Arc<Request>, usize)> {
        let opening = Opening { listener: 0, route: Route::Chat, connection: 1, sequence, started: requests.epoch };
        requests.add(Request::new(&opening, sequence))
    }

    fn sequences(requests: &Requests) -> Vec<u64> {
        let mut all: Vec<u64> = requests.read().iter().map(|(request, _)| request.sequence).collect();
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
        first.end();
        requests.remove(shard, &first);
        assert_eq!(held.len(), 1, "left for a reader");
        drop(held);
        requests.sweep();
        assert!(requests.shards[shard].lock().is_empty());
        assert_eq!(sequences(&requests), [1]);
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
                        request.end();
                        requests.remove(shard, &request);
                    }
                });
            }
            for _ in 0..200 {
                assert!(requests.read().len() <= 4);
            }
        });
        let kept: Vec<_> = (0..100).map(|n| add(&requests, n)).collect();
        assert!(kept.iter().all(Option::is_some) && add(&requests, 100).is_none());
        assert!(sequences(&requests).into_iter().eq(0..100));
    }
}
