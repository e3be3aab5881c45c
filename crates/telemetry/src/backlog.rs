//! Queue of ended request records, processed in batches by a low-priority thread.
//!
//! A client may send its next request as soon as it has the response. Recording on the relay thread would delay that
//! request.

use std::mem::size_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::{fmt, io};

use tokometer_decode::Route;
use tokometer_observe::measure::{Labels, Outcome, Record, Sink, Stage, UncountedText};

use crate::batches::Batches;
use tokometer_metrics::table::Id;
use tokometer_metrics::{Collect, Points};

/// Maximum memory of waiting records, in bytes. When it is reached, records are dropped and only their outcomes are
/// counted.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// Estimated heap memory of a record's labels, identifiers and finish reasons, in bytes.
const TEXTS: usize = 512;

/// Maximum number of waiting records.
const MAX: usize = MAX_BYTES / (size_of::<Record>() + size_of::<Ended>() + TEXTS);

/// An ended request, as passed to sinks.
type Ended = (Arc<Record>, Option<UncountedText>);

/// Called with the number of requests whose records were dropped. The labels contain only the listener and the route.
pub type CountUnrecorded = Box<dyn Fn(&Labels, Outcome, u64) + Send + Sync>;

/// Queues records between the data path and the sinks.
pub struct Backlog {
    next: Arc<dyn Sink>,
    waiting: Batches<Ended>,
    dropped: Arc<Dropped>,
}

/// Numbers of requests whose records did not fit in the queue, by listener, route and outcome.
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

    /// Calls `count` for each nonzero count, and resets the counts.
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
    /// Starts a queue in front of `next`. `count_unrecorded` receives the number of requests whose records did not fit
    /// in the queue.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(next: Arc<dyn Sink>, listeners: usize, count_unrecorded: CountUnrecorded) -> io::Result<Backlog> {
        let dropped = Arc::new(Dropped::new(listeners));
        let (sink, lost) = (Arc::clone(&next), Arc::clone(&dropped));
        let waiting = Batches::start("backlog", MAX, move |ended: &mut dyn Iterator<Item = Ended>| {
            for (record, mut text) in ended {
                // A panic loses only the record being processed.
                if catch_unwind(AssertUnwindSafe(|| sink.record_with_text(&record, &mut text))).is_err() {
                    tracing::error!("A request could not be recorded: this is a bug in tokometer.");
                }
            }
            lost.take(&count_unrecorded);
        })?;
        Ok(Backlog { next, waiting, dropped })
    }

    /// Processes all waiting records. Call it before reading the sinks, on a thread outside the data path. A call from
    /// a sink would deadlock.
    pub fn settle(&self) {
        self.waiting.settle();
    }

    /// Number of requests whose records were dropped because the queue was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.all.load(Relaxed)
    }

    /// Processes the waiting records and ends the thread. Later records are processed on the calling thread.
    pub fn stop(&self) {
        self.waiting.stop();
    }

    fn take(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        // Requests without a valid response may fill only half of the queue; the rest is reserved for other requests.
        let crowded = !record.proves_model() && self.waiting.waiting() >= MAX / 2;
        if crowded || !self.waiting.push(|| (Arc::clone(record), text.take())) {
            self.dropped.add(record);
        }
    }
}

impl Collect for Backlog {
    fn settle(&self) {
        self.waiting.settle();
    }

    fn collect(&self, points: &mut Points<'_>) {
        points.put(Id::RecordsDropped, &[], self.dropped());
    }
}

impl Stage for Backlog {
    fn next(&self) -> &Arc<dyn Sink> {
        &self.next
    }

    fn record(&self, record: &Arc<Record>) {
        self.take(record, &mut None);
    }

    fn record_with_text(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        self.take(record, text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// Sums the recorded sequence numbers, and sends the name of each recording thread to a channel.
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

    /// A backlog with two listeners, and a list that receives the requests whose records were dropped.
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
        let settling = backlog.waiting.pause();
        let labels = Arc::new(Labels { listener: 1, route: Route::Chat, ..Labels::default() });
        for n in 0..BURST {
            let outcome = if n % 4 == 0 { Outcome::Http4xx } else { Outcome::Ok };
            Sink::record(
                &backlog,
                &Arc::new(Record { labels: Arc::clone(&labels), outcome, ..Record::clone(&ended(1)) }),
            );
        }
        // Half of the queue is reserved for requests with a valid response.
        assert_eq!((sum.reported.load(SeqCst), backlog.waiting.waiting()), (0, MAX / 2));
        let response = Arc::new(Record::clone(&ended(1)).with(|r| {
            r.labels = labels;
            r.response.status = Some(200);
        }));
        assert!(response.proves_model());
        for _ in 0..MAX {
            Sink::record(&backlog, &response);
        }
        assert_eq!((sum.reported.load(SeqCst), backlog.waiting.waiting()), (0, MAX));
        drop(settling);
        backlog.settle();
        let recorded = sum.reported.load(SeqCst);
        assert_eq!((recorded, backlog.dropped()), (MAX as u64, BURST));
        let unrecorded = unrecorded.lock().unwrap();
        assert!(
            unrecorded.iter().all(|(listener, route, ..)| (*listener, *route) == (1, Route::Chat)),
            "{unrecorded:?}"
        );
        assert_eq!(unrecorded.iter().map(|(.., n)| n).sum::<u64>() + recorded, BURST + MAX as u64);
        assert!(unrecorded.iter().any(|(_, _, outcome, n)| *outcome == Outcome::Http4xx && *n > 10_000));
        drop(unrecorded);
        drop(backlog);
        let own = thread::current().name().map(str::to_owned);
        assert!(MAX > 4096 && reported_by.iter().take(MAX).all(|by| by == own || by.as_deref() == Some("backlog")));
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
