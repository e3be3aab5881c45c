//! What ended waits here to be told: by a thread that lets the traffic go first, many at a time.
//!
//! A client asks again as soon as it has its answer. Were the books of that answer closed at once, on the thread that relays, the
//! next request would wait for them.

use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::measure::Record;
use crate::measure::Sink;
use crate::measure::Stage;
use crate::measure::UncountedText;

/// Niceness of the thread (setpriority(2)): streams go first where they share a core with it.
const NICENESS: i32 = 10;

/// How long what ended waits unless somebody asks for it: the more are told together, the less each of them costs.
const PAUSE: Duration = Duration::from_millis(100);

/// So many do not wait for the rest of the time.
const MANY: usize = 256;

/// So many may wait. Over that the data path tells what ends by itself, so that nothing is lost and memory has a bound.
const MOST: usize = 1024;

/// Room that is kept while nothing waits.
const KEPT: usize = 32;

/// What a sink is told of an exchange that ended.
type Ended = (Record, Option<UncountedText>);

/// Stands between the data path and the sinks.
pub(super) struct Backlog {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    next: Arc<dyn Sink>,
    waiting: Mutex<Waiting>,
    /// Something waits, or much, or all is over.
    news: Condvar,
    /// Held while records are told, so that each is told once, and whoever asks finds them told.
    telling: Mutex<Vec<Ended>>,
}

#[derive(Default)]
struct Waiting {
    ended: Vec<Ended>,
    /// The thread sleeps until it is woken.
    idle: bool,
    over: bool,
}

impl fmt::Debug for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backlog").finish_non_exhaustive()
    }
}

impl Backlog {
    /// Tells `next`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(next: Arc<dyn Sink>) -> io::Result<Backlog> {
        let (waiting, news, telling) = (Mutex::default(), Condvar::new(), Mutex::default());
        let shared = Arc::new(Shared { next, waiting, news, telling });
        let teller = Arc::clone(&shared);
        let thread = thread::Builder::new().name("backlog".to_owned()).spawn(move || {
            // Lowering needs no right; should it be refused all the same, it tells as well.
            rustix::process::nice(NICENESS).ok();
            while teller.wait() {
                teller.settle();
            }
        })?;
        Ok(Backlog { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Tells all that has ended until now. Called by whoever is about to ask the sinks, on no thread of the data path, and by
    /// no sink.
    pub(super) fn settle(&self) {
        self.shared.settle();
    }

    /// Tells the rest. What ends from now on is told at once.
    pub(super) fn stop(&self) {
        self.shared.waiting().over = true;
        self.shared.news.notify_all();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of that thread has been printed; what it left is told here.
            thread.join().ok();
        }
        self.shared.settle();
    }

    fn take(&self, record: &Record, text: &mut Option<UncountedText>) {
        let mut waiting = self.shared.waiting();
        if waiting.over || waiting.ended.len() >= MOST {
            drop(waiting);
            self.shared.next.record_with_text(record, text);
            return;
        }
        waiting.ended.push((record.clone(), text.take()));
        let news = std::mem::take(&mut waiting.idle) || waiting.ended.len() == MANY;
        drop(waiting);
        if news {
            self.shared.news.notify_one();
        }
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Stage for Backlog {
    fn next(&self) -> &Arc<dyn Sink> {
        &self.shared.next
    }

    fn record(&self, record: &Record) {
        self.take(record, &mut None);
    }

    fn record_with_text(&self, record: &Record, text: &mut Option<UncountedText>) {
        self.take(record, text);
    }
}

impl Shared {
    /// Held for as long as it takes to add one.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has waited for a while; false when all is over.
    fn wait(&self) -> bool {
        let mut waiting = self.waiting();
        while waiting.ended.is_empty() && !waiting.over {
            waiting.idle = true;
            waiting = self.news.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        waiting.idle = false;
        let few = |waiting: &mut Waiting| !waiting.over && waiting.ended.len() < MANY;
        let (waiting, _) = self.news.wait_timeout_while(waiting, PAUSE, few).unwrap_or_else(PoisonError::into_inner);
        !waiting.over
    }

    fn settle(&self) {
        let mut batch = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *batch, &mut self.waiting().ended);
        for (record, mut text) in batch.drain(..) {
            // One that cannot be told is lost; those behind it are not.
            if catch_unwind(AssertUnwindSafe(|| self.next.record_with_text(&record, &mut text))).is_err() {
                tracing::error!("An exchange could not be recorded: this is a fault of tokometer.");
            }
        }
        batch.shrink_to(KEPT);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::SeqCst;
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::measure::Labels;
    use crate::measure::Outcome;

    /// Adds up what it is told, and says each time on which thread.
    struct Sum {
        told: AtomicU64,
        threads: Mutex<mpsc::Sender<Option<String>>>,
    }

    impl Sink for Sum {
        fn record(&self, record: &Record) {
            assert!(record.sequence != 13, "an unlucky one");
            self.told.fetch_add(record.sequence, SeqCst);
            self.threads.lock().unwrap().send(thread::current().name().map(str::to_owned)).ok();
        }
    }

    fn sum() -> (Arc<Sum>, mpsc::Receiver<Option<String>>) {
        let (threads, told_by) = mpsc::channel();
        (Arc::new(Sum { told: AtomicU64::new(0), threads: Mutex::new(threads) }), told_by)
    }

    fn ended(sequence: u64) -> Record {
        Record { sequence, ..Record::new(Labels::default(), Instant::now(), Outcome::Ok, Duration::ZERO) }
    }

    #[test]
    fn what_ended_is_told_by_another_thread_without_being_asked_for() {
        let (sum, told_by) = sum();
        let backlog = Backlog::start(Arc::clone(&sum) as Arc<dyn Sink>).unwrap();
        for sequence in [1, 2] {
            Sink::record(&backlog, &ended(sequence));
            assert_eq!(told_by.recv().unwrap().as_deref(), Some("backlog"));
        }
        assert_eq!(sum.told.load(SeqCst), 3);
    }

    #[test]
    fn who_asks_finds_all_told_that_had_ended() {
        let (sum, _told_by) = sum();
        let backlog = Backlog::start(Arc::clone(&sum) as Arc<dyn Sink>).unwrap();
        let mut all = 0;
        for sequence in 100..200 {
            Sink::record(&backlog, &ended(sequence));
            all += sequence;
            backlog.settle();
            assert_eq!(sum.told.load(SeqCst), all);
        }
    }

    #[test]
    fn nothing_is_lost_over_the_cap_at_the_end_or_behind_a_panic() {
        let (sum, _told_by) = sum();
        let backlog = Backlog::start(Arc::clone(&sum) as Arc<dyn Sink>).unwrap();
        // Nobody can tell now, so that they pile up.
        let telling = backlog.shared.telling.lock().unwrap();
        let many = 1000 + MOST as u64 * 3;
        for sequence in 1000..many {
            Sink::record(&backlog, &ended(sequence));
            assert!(backlog.shared.waiting().ended.len() <= MOST);
        }
        drop(telling);
        backlog.settle();
        for sequence in [13, 7] {
            Sink::record(&backlog, &ended(sequence));
        }
        backlog.stop();
        Sink::record(&backlog, &ended(5));
        assert_eq!(sum.told.load(SeqCst), (1000..many).sum::<u64>() + 7 + 5);
    }
}
