//! Queue of ended request records, processed in batches by a thread of lower priority than the traffic.
//!
//! A client sends its next request as soon as it has its response, so recording on the relay thread would delay that
//! request.

use std::fmt;
use std::io;
use std::mem::size_of;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
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
use std::thread::JoinHandle;
use std::thread::Thread;
use std::time::Duration;
use std::time::Instant;

use tokometer_decode::Route;
use tokometer_observe::measure::Inbox;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::Stage;
use tokometer_observe::measure::UncountedText;
use tokometer_telemetry::export::Collect;
use tokometer_telemetry::export::Points;
use tokometer_telemetry::export::table::Id;

/// Niceness of the thread (setpriority(2)): streams take precedence on a shared core.
const NICENESS: i32 = 10;

/// Maximum time that a record waits if `settle` is not called: larger batches cost less per record.
const PAUSE: Duration = Duration::from_millis(100);

/// This many waiting records end the pause.
const MANY: usize = 256;

/// Memory for waiting records. For records above it only the outcome is counted.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Memory of a record's labels, identifiers and finish reasons, in addition to the record.
const TEXTS: usize = 512;

/// Maximum number of waiting records.
const MOST: usize = MOST_BYTES / (size_of::<Record>() + size_of::<Ended>() + TEXTS);

/// An ended request, as passed to sinks.
type Ended = (Arc<Record>, Option<UncountedText>);

/// Called with the number of requests that are counted without their records. The labels contain a listener and a
/// route.
pub(in crate::app) type CountUnrecorded = Box<dyn Fn(&Labels, Outcome, u64) + Send + Sync>;

/// Sits between the data path and the sinks.
pub(in crate::app) struct Backlog {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The data path uses `waiting`, `dropped` and the flags, but never the lock.
struct Shared {
    next: Arc<dyn Sink>,
    waiting: Inbox<Ended>,
    dropped: Dropped,
    count_unrecorded: CountUnrecorded,
    thread: OnceLock<Thread>,
    /// The thread sleeps until it is woken.
    idle: AtomicBool,
    over: AtomicBool,
    /// Held during processing, so that each record is processed once, and all earlier ones are done when `settle`
    /// returns.
    settling: Mutex<()>,
}

/// Requests whose records did not fit, by listener, route and outcome.
struct Dropped {
    counts: Box<[AtomicU64]>,
    all: AtomicU64,
}

impl Dropped {
    fn new(listeners: usize) -> Dropped {
        let places = listeners * Route::all().len() * Outcome::ALL.len();
        Dropped { counts: (0..places).map(|_| AtomicU64::new(0)).collect(), all: AtomicU64::new(0) }
    }

    fn add(&self, record: &Record) {
        let (labels, outcome) = (&record.labels, Outcome::ALL.iter().position(|known| *known == record.outcome));
        let at =
            (labels.listener * Route::all().len() + labels.route as usize) * Outcome::ALL.len() + outcome.unwrap_or(0);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Relaxed);
        }
        self.all.fetch_add(1, SeqCst);
    }

    /// Reports the counts since the last call.
    fn take(&self, count: &CountUnrecorded) {
        let routes = self.counts.chunks(Outcome::ALL.len()).zip(Route::all().cycle());
        for (at, (outcomes, route)) in routes.enumerate() {
            for (outcome, n) in Outcome::ALL.iter().zip(outcomes).filter(|(_, n)| n.load(Relaxed) > 0) {
                let labels = Labels { listener: at / Route::all().len(), route, ..Labels::default() };
                count(&labels, *outcome, n.swap(0, Relaxed));
            }
        }
    }
}

impl fmt::Debug for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backlog").finish_non_exhaustive()
    }
}

impl Backlog {
    /// Passes records on to `next`. `count_unrecorded` gets the number of records that do not fit.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(in crate::app) fn start(
        next: Arc<dyn Sink>,
        listeners: usize,
        count_unrecorded: CountUnrecorded,
    ) -> io::Result<Backlog> {
        let shared = Arc::new(Shared {
            next,
            waiting: Inbox::new(MOST),
            dropped: Dropped::new(listeners),
            count_unrecorded,
            thread: OnceLock::new(),
            idle: AtomicBool::new(false),
            over: AtomicBool::new(false),
            settling: Mutex::default(),
        });
        let settler = Arc::clone(&shared);
        let thread = thread::Builder::new().name("backlog".to_owned()).spawn(move || {
            settler.thread.set(thread::current()).ok();
            // Lowering the priority needs no privilege; if it fails anyway, records are still processed.
            rustix::process::nice(NICENESS).ok();
            while settler.wait() {
                settler.settle();
            }
        })?;
        Ok(Backlog { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Processes all waiting records. Call it before the sinks are read, on a thread outside the data path, never from
    /// a sink.
    pub(in crate::app) fn settle(&self) {
        self.shared.settle();
    }

    /// Number of requests whose records were dropped because the queue was full.
    pub(in crate::app) fn dropped(&self) -> u64 {
        self.shared.dropped.all.load(Relaxed)
    }

    /// Processes the rest. Later records are processed immediately.
    pub(in crate::app) fn stop(&self) {
        self.shared.over.store(true, SeqCst);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.thread().unpark();
            // A panic of that thread is already printed; its remaining records are processed here.
            thread.join().ok();
        }
        self.shared.settle();
    }

    fn take(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        let shared = &self.shared;
        // A flood of requests without a valid response leaves room for the others.
        let crowded = !record.proves_model() && shared.waiting.len() >= MOST / 2;
        let waiting = if crowded { None } else { shared.waiting.push(|| (Arc::clone(record), text.take())) };
        if waiting.is_none() {
            shared.dropped.add(record);
        }
        if waiting == Some(MANY) || shared.idle.load(SeqCst) && shared.idle.swap(false, SeqCst) {
            shared.wake();
        }
        // The data path has already stopped.
        if shared.over.load(SeqCst) {
            shared.settle();
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Collect for Backlog {
    fn settle(&self) {
        self.shared.settle();
    }

    fn collect(&self, points: &mut Points<'_>) {
        points.put(Id::RecordsDropped, &[], self.dropped());
    }
}

impl Stage for Backlog {
    fn next(&self) -> &Arc<dyn Sink> {
        &self.shared.next
    }

    fn record(&self, record: &Arc<Record>) {
        self.take(record, &mut None);
    }

    fn record_with_text(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        self.take(record, text);
    }
}

impl Shared {
    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Waits until a batch is due; false after `stop`.
    fn wait(&self) -> bool {
        let over = || self.over.load(SeqCst);
        loop {
            self.idle.store(true, SeqCst);
            if !self.waiting.is_empty() || over() {
                break;
            }
            thread::park();
        }
        self.idle.store(false, SeqCst);
        let since = Instant::now();
        while let Some(left) = PAUSE.checked_sub(since.elapsed()).filter(|_| self.waiting.len() < MANY && !over()) {
            thread::park_timeout(left);
        }
        !over()
    }

    fn settling(&self) -> MutexGuard<'_, ()> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self) {
        let _settling = self.settling();
        for (record, mut text) in self.waiting.drain() {
            // A record whose processing panics is lost; those after it are not.
            if catch_unwind(AssertUnwindSafe(|| self.next.record_with_text(&record, &mut text))).is_err() {
                tracing::error!("A request could not be recorded: this is a bug in tokometer.");
            }
        }
        self.dropped.take(&self.count_unrecorded);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Sums the recorded sequence numbers, and sends the name of the recording thread.
    struct Sum {
        reported: AtomicU64,
        threads: Mutex<mpsc::Sender<Option<String>>>,
    }

    impl Sink for Sum {
        fn record(&self, record: &Arc<Record>) {
            assert!(record.sequence != 13, "panic of a sink");
            self.reported.fetch_add(record.sequence, SeqCst);
            self.threads.lock().unwrap().send(thread::current().name().map(str::to_owned)).ok();
        }
    }

    fn sum() -> (Arc<Sum>, mpsc::Receiver<Option<String>>) {
        let (threads, reported_by) = mpsc::channel();
        (Arc::new(Sum { reported: AtomicU64::new(0), threads: Mutex::new(threads) }), reported_by)
    }

    /// Listener, route, outcome, count.
    type Unrecorded = Arc<Mutex<Vec<(usize, Route, Outcome, u64)>>>;

    /// A backlog with two listeners, and the requests counted without their records.
    fn started(sum: &Arc<Sum>) -> (Backlog, Unrecorded) {
        let unrecorded = Arc::new(Mutex::new(Vec::new()));
        let list = Arc::clone(&unrecorded);
        let count = move |labels: &Labels, outcome, n| {
            list.lock().unwrap().push((labels.listener, labels.route, outcome, n));
        };
        (Backlog::start(Arc::clone(sum) as Arc<dyn Sink>, 2, Box::new(count)).unwrap(), unrecorded)
    }

    fn ended(sequence: u64) -> Arc<Record> {
        Arc::new(Record { sequence, ..Record::new(Labels::default(), Instant::now(), Outcome::Ok, Duration::ZERO) })
    }

    #[test]
    fn records_are_processed_by_another_thread_without_settle() {
        let (sum, reported_by) = sum();
        let (backlog, _) = started(&sum);
        for sequence in [1, 2] {
            Sink::record(&backlog, &ended(sequence));
            assert_eq!(reported_by.recv().unwrap().as_deref(), Some("backlog"));
        }
        assert_eq!(sum.reported.load(SeqCst), 3);
    }

    #[test]
    fn settle_processes_all_earlier_records() {
        let (sum, _reported_by) = sum();
        let (backlog, _) = started(&sum);
        let mut all = 0;
        for sequence in 100..200 {
            Sink::record(&backlog, &ended(sequence));
            all += sequence;
            backlog.settle();
            assert_eq!(sum.reported.load(SeqCst), all);
        }
    }

    #[test]
    fn burst_above_the_maximum_is_counted_by_outcome() {
        const BURST: u64 = 100_000;
        let (sum, reported_by) = sum();
        let (backlog, unrecorded) = started(&sum);
        // Block processing, so that the records pile up.
        let settling = backlog.shared.settling();
        let labels = Arc::new(Labels { listener: 1, route: Route::Chat, ..Labels::default() });
        for n in 0..BURST {
            let outcome = if n % 4 == 0 { Outcome::Http4xx } else { Outcome::Ok };
            Sink::record(
                &backlog,
                &Arc::new(Record { labels: Arc::clone(&labels), outcome, ..Record::clone(&ended(1)) }),
            );
        }
        // Half of the queue is reserved for requests with a valid response.
        assert_eq!((sum.reported.load(SeqCst), backlog.shared.waiting.len()), (0, MOST / 2));
        let response = Arc::new(Record { labels, status: Some(200), ..Record::clone(&ended(1)) });
        assert!(response.proves_model());
        for _ in 0..MOST {
            Sink::record(&backlog, &response);
        }
        assert_eq!((sum.reported.load(SeqCst), backlog.shared.waiting.len()), (0, MOST));
        drop(settling);
        backlog.settle();
        let recorded = sum.reported.load(SeqCst);
        assert_eq!((recorded, backlog.dropped()), (MOST as u64, BURST));
        let unrecorded = unrecorded.lock().unwrap();
        assert!(
            unrecorded.iter().all(|(listener, route, ..)| (*listener, *route) == (1, Route::Chat)),
            "{unrecorded:?}"
        );
        assert_eq!(unrecorded.iter().map(|(.., n)| n).sum::<u64>() + recorded, BURST + MOST as u64);
        assert!(unrecorded.iter().any(|(_, _, outcome, n)| *outcome == Outcome::Http4xx && *n > 10_000));
        drop(unrecorded);
        drop(backlog);
        let own = thread::current().name().map(str::to_owned);
        assert!(MOST > 4096 && reported_by.iter().take(MOST).all(|by| by == own || by.as_deref() == Some("backlog")));
    }

    #[test]
    fn no_record_is_lost_on_stop_or_after_a_panic() {
        let (sum, _reported_by) = sum();
        let (backlog, _) = started(&sum);
        for sequence in [13, 7] {
            Sink::record(&backlog, &ended(sequence));
        }
        backlog.stop();
        Sink::record(&backlog, &ended(5));
        assert_eq!(sum.reported.load(SeqCst), 7 + 5);
    }
}
