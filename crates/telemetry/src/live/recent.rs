//! The latest and the slowest finished requests. The data path queues them; other threads store them.

use std::io;
use std::mem::size_of;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::thread::Thread;
use std::time::Duration;
use std::time::Instant;

use crate::live::settings::Settings;
use crate::live::shelf::Shelf;
use tokometer_observe::measure::Inbox;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::TimeLine;

/// Capacity of the queue of finished requests.
const WAITING: usize = 1024;
/// Queue length at which the storing thread is woken. Waking it for each request would cost a short request more than
/// all its other measurements.
const BATCH: usize = 256;

/// A finished request.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The request record.
    pub record: Record,
    /// Arrival times of its tokens; `None` when no token was observed.
    pub line: Option<Box<TimeLine>>,
}

impl Finished {
    pub(super) fn new(record: &Record, line: Option<Box<TimeLine>>) -> Finished {
        // Tenants are not kept: this store has no use for them, and they are client-supplied.
        Finished { record: Record { targets: None, ..record.clone() }, line }
    }

    /// Memory use in bytes, including heap data.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let (record, labels) = (&self.record, &self.record.labels);
        size_of::<Finished>()
            + self.line.as_ref().map_or(0, |_| size_of::<TimeLine>())
            + size_of_val(&**labels)
            + [&labels.request_model, &labels.response_model].into_iter().map(text).sum::<usize>()
            + [&record.response_id, &record.error_type, &record.request_id].into_iter().map(text).sum::<usize>()
            + size_of_val(record.finish_reasons.as_slice())
    }

    pub(super) fn ended(&self) -> Instant {
        self.record.started + self.record.ended
    }

    pub(super) fn time_to_first_token(&self) -> Option<Duration> {
        self.record.since_requested(self.record.first_token)
    }
}

/// The latest and the slowest finished requests.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The latest, in the order in which they ended.
    pub latest: Vec<Arc<Finished>>,
    /// The longest times to first token, longest first.
    pub slowest_first_token: Vec<Arc<Finished>>,
    /// The longest inter-token gaps, longest first.
    pub longest_gap: Vec<Arc<Finished>>,
}

/// Lock-free queue of finished requests. When it is full, requests are dropped and counted.
#[derive(Clone, Debug)]
pub(super) struct Queue(Arc<Shared>);

impl Queue {
    pub(super) fn add(&self, finished: impl FnOnce() -> Finished) {
        match self.0.arrived.push(|| Arc::new(finished())) {
            None => drop(self.0.dropped.fetch_add(1, Relaxed)),
            Some(BATCH) => self.0.wake(),
            Some(_) => {}
        }
    }
}

/// State shared by the data path, the storing thread and the readers.
#[derive(Debug)]
struct Shared {
    /// Requests that are queued but not stored yet.
    arrived: Inbox<Arc<Finished>>,
    /// The thread that stores requests when woken.
    keeper: OnceLock<Thread>,
    /// The last reader is gone.
    over: AtomicBool,
    /// Never locked by the data path.
    shelf: Mutex<Shelf>,
    dropped: AtomicU64,
}

impl Shared {
    fn wake(&self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    /// The store, with every queued request added.
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        for finished in self.arrived.drain() {
            let now = finished.ended();
            shelf.add(finished, now);
        }
        shelf
    }

    /// Waits for a batch; returns false on shutdown.
    fn batch_arrived(&self) -> bool {
        while self.arrived.len() < BATCH && !self.over.load(SeqCst) {
            thread::park();
        }
        !self.over.load(SeqCst)
    }
}

/// Keeps finished requests.
#[derive(Debug)]
pub struct Recent {
    /// `None` when the store is disabled.
    shared: Option<Arc<Shared>>,
}

impl Recent {
    pub(super) fn start(settings: &Settings) -> io::Result<Recent> {
        if settings.recent_bytes == 0 {
            return Ok(Recent { shared: None });
        }
        let shared = Arc::new(Shared {
            arrived: Inbox::new(WAITING),
            keeper: OnceLock::new(),
            over: AtomicBool::new(false),
            shelf: Mutex::new(Shelf::new(settings)),
            dropped: AtomicU64::new(0),
        });
        let keeper = Arc::clone(&shared);
        thread::Builder::new().name("recent".to_owned()).spawn(move || {
            keeper.keeper.set(thread::current()).ok();
            while keeper.batch_arrived() {
                drop(keeper.shelf());
            }
        })?;
        Ok(Recent { shared: Some(shared) })
    }

    pub(super) fn queue(&self) -> Option<Queue> {
        self.shared.clone().map(Queue)
    }

    pub(super) fn kept(&self, now: Instant) -> Kept {
        self.shared.as_ref().map_or_else(Kept::default, |shared| shared.shelf().kept(now))
    }

    /// Stored requests, and the bytes they use.
    pub fn held(&self) -> (u64, u64) {
        self.shared.as_ref().map_or((0, 0), |shared| shared.shelf().held())
    }

    /// Requests dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.dropped.load(Relaxed))
    }
}

impl Drop for Recent {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            shared.over.store(true, SeqCst);
            shared.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::record;

    fn queue(recent: &Recent, milliseconds: std::ops::Range<u64>) {
        let (queue, now) = (recent.queue().unwrap(), Instant::now());
        for gap in milliseconds {
            let record = Record { longest_gap: Some(Duration::from_millis(gap)), ..record(now) };
            queue.add(|| Finished::new(&record, None));
        }
    }

    fn gaps(recent: &Recent) -> Vec<u128> {
        let latest = recent.kept(Instant::now()).latest;
        latest.iter().filter_map(|kept| Some(kept.record.longest_gap?.as_millis())).collect()
    }

    fn recent(recent_bytes: usize) -> Recent {
        Recent::start(&Settings { recent_bytes, ..Settings::default() }).unwrap()
    }

    #[test]
    fn reader_sees_all_queued_requests_in_order() {
        let recent = recent(1 << 26);
        queue(&recent, 0..3);
        assert_eq!(gaps(&recent), [0, 1, 2], "fewer than a batch");
        // Several batches, drained by the thread and by readers in turn.
        for batch in 0..20 {
            queue(&recent, 3 + 100 * batch..103 + 100 * batch);
            assert!(gaps(&recent).into_iter().eq(0..u128::from(103 + 100 * batch)));
        }
    }

    #[test]
    fn batch_is_stored_without_a_reader() {
        let recent = recent(1 << 26);
        queue(&recent, 0..BATCH as u64);
        let shared = recent.shared.as_ref().unwrap();
        while !shared.arrived.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(recent.held().0, BATCH as u64);
    }

    #[test]
    fn full_queue_counts_drops_and_disabled_store_has_no_queue() {
        let recent = recent(1 << 20);
        let shared = recent.shared.as_ref().unwrap();
        // Holding the lock blocks the storing thread.
        let shelf = shared.shelf.lock().unwrap();
        queue(&recent, 0..WAITING as u64 + 10);
        assert_eq!(recent.dropped(), 10);
        drop(shelf);
        assert!(!gaps(&recent).is_empty());
        assert!(self::recent(0).queue().is_none());
    }

    #[test]
    fn thread_ends_with_the_last_reader() {
        let recent = recent(1 << 20);
        let shared = Arc::downgrade(recent.shared.as_ref().unwrap());
        drop(recent);
        while shared.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
