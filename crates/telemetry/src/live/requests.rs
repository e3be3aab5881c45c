//! The requests in flight, and the engine activity of each listener.
//!
//! Requests are kept in shards, each behind a lock. The data path only tries to lock: if a reader holds a shard, a new
//! request goes to another one, and an ended request is left for the next read to remove.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use crate::live::request::{NEVER, Open, Request};

/// Far more than threads that hold a lock at the same time.
const SHARDS: usize = 64;

/// Requests by address.
type Entries = BTreeMap<usize, Weak<Request>>;

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
}

impl Requests {
    pub(super) fn new(max: usize, listeners: &[String], epoch: Instant) -> Requests {
        Requests {
            epoch,
            listeners: listeners
                .iter()
                .map(|name| Listener { name: name.as_str().into(), ..Default::default() })
                .collect(),
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            count: AtomicUsize::new(0),
            max: max.max(1),
            untracked: AtomicU64::new(0),
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
                    entries.insert(key(&request), Arc::downgrade(&request));
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
        if let Some(mut entries) = self.shards.get(shard).and_then(Shard::try_lock) {
            entries.remove(&key(request));
        }
    }

    /// Every request in flight. Also removes ended requests that the data path could not remove: call it regularly.
    pub(super) fn read(&self, now: Instant) -> Vec<Open> {
        let now = self.nanos(now);
        let mut all = Vec::with_capacity(self.count.load(Relaxed));
        for shard in &self.shards {
            shard.lock().retain(|_, request| {
                let request = request.upgrade();
                all.extend(request.as_deref().map(|request| request.at(now)));
                request.is_some()
            });
        }
        all
    }

    /// Requests that were not added because there were too many.
    pub(super) fn untracked(&self) -> u64 {
        self.untracked.load(Relaxed)
    }
}

fn key(request: &Arc<Request>) -> usize {
    Arc::as_ptr(request).addr()
}

/// Saturates just below [`NEVER`], at 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
}

/// Engine activity of a listener that is not derived from the requests in flight. Times are as in [`Requests`].
#[derive(Debug, Default)]
pub(super) struct Listener {
    pub(super) name: Box<str>,
    pending: AtomicI64,
    /// Start of the current period with at least one pending request.
    pending_since: AtomicU64,
    /// Last progress of requests that have ended.
    progressed: AtomicU64,
}

impl Listener {
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
        let mut all: Vec<u64> = requests.read(Instant::now()).iter().map(|open| open.sequence).collect();
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
                assert!(requests.read(Instant::now()).len() <= 4);
            }
        });
        let kept: Vec<_> = (0..100).map(|n| add(&requests, n)).collect();
        assert!(kept.iter().all(Option::is_some) && add(&requests, 100).is_none());
        assert!(sequences(&requests).into_iter().eq(0..100));
    }
}
