//! The latest and the slowest finished requests, in bounded memory. The data path adds them to a queue; other threads
//! move them to the store.

use std::collections::VecDeque;
use std::io;
use std::mem::size_of;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokometer_observe::measure::{Record, TimeLine};

use crate::batches::Batches;

/// Capacity of the queue of finished requests.
const WAITING: usize = 1024;

/// Number of slowest requests to keep per measure, regardless of newer requests.
const SLOWEST: usize = 16;

/// Maximum age of the slowest requests.
const SLOWEST_AGE: Duration = Duration::from_secs(3600);

/// A finished request.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The request record.
    pub record: Arc<Record>,
    /// Arrival times of its tokens; `None` when no token was observed.
    pub line: Option<Box<TimeLine>>,
}

impl Finished {
    /// Memory use in bytes, including heap data.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
        let (record, labels) = (&self.record, &self.record.labels);
        size_of::<Finished>()
            + size_of::<Record>()
            + self.line.as_ref().map_or(0, |_| size_of::<TimeLine>())
            + size_of_val(&**labels)
            + [&labels.request_model, &labels.response_model].into_iter().map(text).sum::<usize>()
            + [&record.response.id, &record.response.error_type, &record.request.id]
                .into_iter()
                .map(text)
                .sum::<usize>()
            + size_of_val(record.response.finish_reasons.as_slice())
            + record.request.targets.as_ref().map_or(0, |targets| size_of_val(&**targets) + text(&targets.tenant))
    }

    pub(super) fn ended(&self) -> Instant {
        self.record.started + self.record.times.ended
    }

    pub(super) fn time_to_first_token(&self) -> Option<Duration> {
        self.record.since_requested(self.record.times.first_token)
    }
}

/// The latest and the slowest finished requests.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The latest requests, in the order in which they ended.
    pub latest: Vec<Arc<Finished>>,
    /// Requests with the longest time to first token, longest first.
    pub slowest_first_token: Vec<Arc<Finished>>,
    /// Requests with the longest inter-token gap, longest first.
    pub longest_gap: Vec<Arc<Finished>>,
}

/// Keeps finished requests. If the queue is full, requests are dropped and counted.
#[derive(Debug)]
pub(super) struct Recent {
    /// Queue of finished requests that are not in the store yet.
    arrived: Batches<Arc<Finished>>,
    /// Never locked by the data path.
    store: Arc<Mutex<Store>>,
    dropped: AtomicU64,
}

impl Recent {
    /// Starts the storing thread. The requests use at most `max_bytes` of memory; `None` if this is 0.
    pub(super) fn start(max_bytes: usize) -> io::Result<Option<Arc<Recent>>> {
        if max_bytes == 0 {
            return Ok(None);
        }
        let store = Arc::new(Mutex::new(Store::new(max_bytes, SLOWEST, SLOWEST_AGE)));
        let kept = Arc::clone(&store);
        let arrived = Batches::start("recent", WAITING, move |all: &mut dyn Iterator<Item = Arc<Finished>>| {
            let mut store = kept.lock().unwrap_or_else(PoisonError::into_inner);
            for finished in all {
                let now = finished.ended();
                store.add(finished, now);
            }
        })?;
        Ok(Some(Arc::new(Recent { arrived, store, dropped: AtomicU64::new(0) })))
    }

    pub(super) fn add(&self, finished: impl FnOnce() -> Finished) {
        if !self.arrived.push(|| Arc::new(finished())) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Adds every queued request to the store, and locks it.
    fn store(&self) -> MutexGuard<'_, Store> {
        self.arrived.settle();
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kept(&self, now: Instant) -> Kept {
        self.store().kept(now)
    }

    /// Number of latest requests, and the bytes used by all kept requests.
    pub(super) fn held(&self) -> (u64, u64) {
        let store = self.store();
        (store.latest.len() as u64, store.bytes() as u64)
    }

    /// Requests dropped because the queue was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// Returns the duration by which a request is ranked.
type Measure = fn(&Finished) -> Option<Duration>;

/// Interval between expiry scans. A scan reads every kept request, so it does not run for each request.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// The slowest requests by one measure, slowest first.
#[derive(Debug)]
struct Slowest {
    measure: Measure,
    most: usize,
    age: Duration,
    all: Vec<Arc<Finished>>,
    bytes: usize,
    /// Time of the last expiry scan.
    scanned: Option<Instant>,
}

impl Slowest {
    fn new(most: usize, age: Duration, measure: Measure) -> Slowest {
        Slowest { measure, most, age, all: Vec::with_capacity(most + 1), bytes: 0, scanned: None }
    }

    /// Keeps the request if it is slow enough, and drops expired requests.
    fn add(&mut self, finished: &Arc<Finished>, now: Instant) {
        if self.scanned.is_none_or(|scanned| now.saturating_duration_since(scanned) >= SCAN_INTERVAL) {
            self.scanned = Some(now);
            self.all.retain(|kept| now.saturating_duration_since(kept.ended()) <= self.age);
            self.bytes = self.all.iter().map(|finished| finished.bytes()).sum();
        }
        let Some(slow) = (self.measure)(finished) else { return };
        let place = self.all.partition_point(|kept| (self.measure)(kept) >= Some(slow));
        if place < self.most {
            self.all.insert(place, Arc::clone(finished));
            self.bytes += finished.bytes();
            if self.all.len() > self.most {
                self.take_fastest();
            }
        }
    }

    fn take_fastest(&mut self) -> bool {
        let gone = self.all.pop();
        self.bytes -= gone.as_ref().map_or(0, |gone| gone.bytes());
        gone.is_some()
    }
}

/// The finished requests that are kept.
#[derive(Debug)]
struct Store {
    latest: VecDeque<Arc<Finished>>,
    latest_bytes: usize,
    slowest: [Slowest; 2],
    most_bytes: usize,
}

impl Store {
    fn new(most_bytes: usize, slowest: usize, age: Duration) -> Store {
        Store {
            latest: VecDeque::new(),
            latest_bytes: 0,
            slowest: [
                Slowest::new(slowest, age, Finished::time_to_first_token),
                Slowest::new(slowest, age, |finished| finished.record.gaps.longest_pause),
            ],
            most_bytes,
        }
    }

    fn add(&mut self, finished: Arc<Finished>, now: Instant) {
        self.slowest.iter_mut().for_each(|slowest| slowest.add(&finished, now));
        self.latest_bytes += finished.bytes();
        self.latest.push_back(finished);
        while self.bytes() > self.most_bytes {
            match self.latest.pop_front() {
                Some(gone) => self.latest_bytes -= gone.bytes(),
                // The slowest requests are evicted only after all latest requests, fastest first.
                None if self.slowest.iter_mut().any(Slowest::take_fastest) => {}
                None => break,
            }
        }
    }

    /// Memory of all lists, in bytes. A request in several lists is counted once per list.
    fn bytes(&self) -> usize {
        self.latest_bytes + self.slowest.iter().map(|slowest| slowest.bytes).sum::<usize>()
    }

    /// The stored requests, without slow requests that have expired at `now`.
    fn kept(&self, now: Instant) -> Kept {
        let slowest = |slowest: &Slowest| {
            let young = |kept: &&Arc<Finished>| now.saturating_duration_since(kept.ended()) <= slowest.age;
            slowest.all.iter().filter(young).cloned().collect()
        };
        let [first_token, gap] = &self.slowest;
        Kept {
            latest: self.latest.iter().cloned().collect(),
            slowest_first_token: slowest(first_token),
            longest_gap: slowest(gap),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::tests::record;

    fn queue(recent: &Recent, milliseconds: std::ops::Range<u64>) {
        let now = Instant::now();
        for gap in milliseconds {
            let record = record(now).with(|r| r.gaps.longest_pause = Some(Duration::from_millis(gap)));
            recent.add(|| Finished { record: Arc::new(record), line: None });
        }
    }

    fn gaps(recent: &Recent) -> Vec<u128> {
        let latest = recent.kept(Instant::now()).latest;
        latest.iter().filter_map(|kept| Some(kept.record.gaps.longest_pause?.as_millis())).collect()
    }

    fn recent(recent_bytes: usize) -> Arc<Recent> {
        Recent::start(recent_bytes).unwrap().unwrap()
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
        queue(&recent, 0..256);
        while recent.store.lock().unwrap().latest.len() < 256 {
            std::thread::yield_now();
        }
        assert_eq!(recent.held().0, 256);
    }

    #[test]
    fn full_queue_counts_drops_and_disabled_store_keeps_nothing() {
        let recent = recent(1 << 20);
        // The held lock blocks the storing thread.
        let store = recent.store.lock().unwrap();
        queue(&recent, 0..WAITING as u64 + 10);
        assert_eq!(recent.dropped(), 10);
        drop(store);
        assert!(!gaps(&recent).is_empty());
        assert!(Recent::start(0).unwrap().is_none());
    }

    #[test]
    fn thread_ends_with_the_last_reader() {
        let recent = recent(1 << 20);
        let store = Arc::downgrade(&recent.store);
        drop(recent);
        assert_eq!(store.strong_count(), 0);
    }

    fn store(max_bytes: usize, slowest: usize) -> Store {
        Store::new(max_bytes, slowest, Duration::from_secs(100))
    }

    /// A request that began `at` seconds after `began`; `first` and `gap` in milliseconds.
    fn finished(began: Instant, at: u64, first: u64, gap: u64) -> Arc<Finished> {
        let record = record(began + Duration::from_secs(at)).with(|r| {
            r.times.first_token = Some(Duration::from_millis(first));
            r.gaps.longest_pause = Some(Duration::from_millis(gap));
        });
        Arc::new(Finished { record: Arc::new(record), line: Some(Box::default()) })
    }

    fn firsts(all: &[Arc<Finished>]) -> Vec<u64> {
        all.iter().filter_map(|kept| Some(kept.record.times.first_token?.as_millis() as u64)).collect()
    }

    #[test]
    fn oldest_are_evicted_first_and_slowest_stay_by_each_measure() {
        let began = Instant::now();
        let one = finished(began, 0, 1, 1).bytes();
        println!("{one} bytes each");
        // Room for two of the slowest by each measure, and for three of the latest.
        let mut store = store(one * 7, 2);
        for (at, (first, gap)) in
            [(900, 1), (100, 800), (500, 2), (200, 700), (300, 3), (400, 4)].into_iter().enumerate()
        {
            let finished = finished(began, at as u64, first, gap);
            let now = finished.ended();
            store.add(finished, now);
            assert!(store.bytes() <= one * 7, "{}", store.bytes());
        }
        let kept = store.kept(began + Duration::from_secs(6));
        assert_eq!(firsts(&kept.latest), [200, 300, 400]);
        assert_eq!(firsts(&kept.slowest_first_token), [900, 500]);
        assert_eq!(firsts(&kept.longest_gap), [100, 200]);
    }

    #[test]
    fn slowest_requests_expire() {
        let began = Instant::now();
        let mut store = store(1 << 20, 4);
        for (at, first) in [(0, 900), (90, 100)] {
            let finished = finished(began, at, first, 1);
            let now = finished.ended();
            store.add(finished, now);
        }
        let slowest = |store: &Store, at| firsts(&store.kept(began + Duration::from_secs(at)).slowest_first_token);
        assert_eq!(slowest(&store, 99), [900, 100]);
        assert_eq!(slowest(&store, 150), [100], "expires without newer requests");
        let newest = finished(began, 300, 50, 1);
        let now = newest.ended();
        store.add(newest, now);
        assert_eq!(slowest(&store, 301), [50]);
    }

    #[test]
    fn memory_never_exceeds_the_limit() {
        let began = Instant::now();
        for most in [1, 1000, 5000, 20_000] {
            let mut store = store(most, 3);
            for at in 0..100 {
                let finished = finished(began, at, (at * 37) % 101, (at * 53) % 97);
                let now = finished.ended();
                store.add(finished, now);
                let held: usize = store.latest.iter().map(|kept| kept.bytes()).sum::<usize>()
                    + store.slowest.iter().flat_map(|slowest| &slowest.all).map(|kept| kept.bytes()).sum::<usize>();
                assert!(store.bytes() == held && held <= most, "{held} {}", store.bytes());
            }
        }
    }
}
