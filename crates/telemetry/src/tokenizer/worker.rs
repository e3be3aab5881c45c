//! The counting thread and its queue.

use std::io;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::sync::mpsc::SyncSender;
use std::sync::mpsc::channel;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::tokenizer::Tokenize;
use crate::tokenizer::Vocabularies;
use tokometer_decode::AnswerText;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::TextTokens;
use tokometer_observe::measure::Uncounted;
use tokometer_observe::measure::UncountedText;

/// Lower priority than the data path's threads, like telemetry.
const NICENESS: i32 = 10;

/// A record that has waited longer is forwarded uncounted: a late record is of no use.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A response waiting to be counted.
pub(super) struct Job {
    pub(super) record: Record,
    pub(super) text: UncountedText,
    pub(super) vocabulary: Arc<dyn Tokenize>,
    pub(super) since: Instant,
}

enum Message {
    /// Boxed: a queue of pointers needs little memory while it is empty.
    Count(Box<Job>),
    /// Reports when all earlier messages have been processed.
    Flush(SyncSender<()>),
}

/// The data path's handle of the worker.
pub(super) struct Worker {
    /// The channel is unbounded; `waiting` enforces the limit, so that a reload can change it.
    queue: Sender<Message>,
    shared: Arc<Shared>,
}

/// State shared by the thread, the data path and the code that stops them.
struct Shared {
    next: Arc<dyn Sink>,
    /// Locked by the thread while it waits for messages, and never while it counts.
    jobs: Mutex<Receiver<Message>>,
    /// The record whose text is being counted: the code that takes it out forwards it.
    at_hand: Mutex<Option<Box<Record>>>,
    vocabularies: ArcSwap<Vocabularies>,
    waiting: AtomicUsize,
    most: AtomicUsize,
    started: AtomicBool,
    /// Forward waiting records uncounted.
    hurry: AtomicBool,
    tally: [AtomicU64; Uncounted::ALL.len()],
}

impl Worker {
    pub(super) fn new(next: Arc<dyn Sink>) -> Worker {
        let (queue, jobs) = channel();
        let shared = Arc::new(Shared {
            next,
            jobs: Mutex::new(jobs),
            at_hand: Mutex::new(None),
            vocabularies: ArcSwap::default(),
            waiting: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            started: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            tally: Default::default(),
        });
        Worker { queue, shared }
    }

    /// Applies these settings. The thread starts with the first vocabulary.
    pub(super) fn set(&self, vocabularies: Vocabularies, most: usize) -> io::Result<()> {
        let shared = &self.shared;
        if !vocabularies.is_empty() && !shared.started.swap(true, Ordering::Relaxed) {
            let worker = Arc::clone(shared);
            let work = move || {
                // Lowering the priority needs no privileges; if it fails nevertheless, count at normal priority.
                rustix::process::nice(NICENESS).ok();
                worker.run();
            };
            std::thread::Builder::new()
                .name("tokometer-count".to_owned())
                .spawn(work)
                .inspect_err(|_| shared.started.store(false, Ordering::Relaxed))?;
        }
        shared.most.store(most, Ordering::Relaxed);
        shared.vocabularies.store(Arc::new(vocabularies));
        Ok(())
    }

    pub(super) fn vocabularies(&self) -> Arc<Vocabularies> {
        self.shared.vocabularies.load_full()
    }

    pub(super) fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn uncounted(&self) -> Vec<(Uncounted, u64)> {
        if !self.shared.started.load(Ordering::Relaxed) {
            return Vec::new();
        }
        Uncounted::ALL.into_iter().zip(self.shared.tally.iter().map(|n| n.load(Ordering::Relaxed))).collect()
    }

    pub(super) fn tally(&self, why: Uncounted) {
        self.shared.tally(why);
    }

    /// Adds a response to the queue. Never blocks.
    pub(super) fn offer(&self, job: Box<Job>) -> Result<(), Uncounted> {
        let shared = &self.shared;
        if shared.waiting.fetch_add(1, Ordering::Relaxed) >= shared.most.load(Ordering::Relaxed) {
            shared.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Uncounted::QueueFull);
        }
        // Cannot fail: `shared` also holds the receiver.
        self.queue.send(Message::Count(job)).map_err(|_| Uncounted::QueueFull)
    }

    /// See [`crate::tokenizer::Counting::stop`].
    pub(super) fn stop(&self, at_most: Duration) {
        let shared = &self.shared;
        if !shared.started.load(Ordering::Relaxed) {
            return;
        }
        let (done, counted) = sync_channel(1);
        let sent = self.queue.send(Message::Flush(done)).is_ok();
        if sent && counted.recv_timeout(at_most).is_ok() {
            return;
        }
        shared.hurry.store(true, Ordering::Relaxed);
        shared.give_up();
        // The thread is stuck in a text, or has died: forward the waiting records here.
        if let Ok(jobs) = shared.jobs.try_lock() {
            shared.drain(&jobs);
        }
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let message = lock(&self.jobs).recv();
            match message {
                Ok(Message::Count(job)) => self.count(*job),
                Ok(Message::Flush(done)) => drop(done.try_send(())),
                Err(_) => return,
            }
        }
    }

    /// Counts one response and forwards its record.
    fn count(&self, job: Job) {
        let Job { record, text: UncountedText { text, thresholds }, vocabulary, since } = job;
        *lock(&self.at_hand) = Some(Box::new(record));
        let late = self.hurry.load(Ordering::Relaxed) || since.elapsed() > LONGEST_WAIT;
        let tokens = if late {
            Err(Uncounted::QueueFull)
        } else {
            let count = AssertUnwindSafe(|| count(&text, vocabulary.as_ref()));
            catch_unwind(count).unwrap_or(Err(Uncounted::Failed))
        };
        drop(text);
        let Some(mut record) = lock(&self.at_hand).take() else { return };
        if let Err(why) = tokens.and_then(|tokens| record.count_text(tokens, &thresholds)) {
            self.tally(why);
        }
        self.hand_on(&record);
    }

    /// Forwards the current record uncounted.
    fn give_up(&self) {
        if let Some(record) = lock(&self.at_hand).take() {
            self.tally(Uncounted::QueueFull);
            self.hand_on(&record);
        }
    }

    /// Forwards all waiting records uncounted.
    fn drain(&self, jobs: &Receiver<Message>) {
        for message in jobs.try_iter() {
            if let Message::Count(job) = message {
                self.tally(Uncounted::QueueFull);
                self.hand_on(&job.record);
            }
        }
    }

    fn hand_on(&self, record: &Record) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // A panic of the sink must not end the thread.
        drop(catch_unwind(AssertUnwindSafe(|| self.next.record(record))));
    }

    fn tally(&self, why: Uncounted) {
        if let Some(count) = Uncounted::ALL.iter().position(|one| *one == why).and_then(|at| self.tally.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counts the tokens of every run of the text separately: markers separated them.
fn count(text: &AnswerText, vocabulary: &dyn Tokenize) -> Result<TextTokens, Uncounted> {
    let runs = text.runs().map_err(Uncounted::from)?;
    let all = runs.iter().map(|run| vocabulary.tokens(run)).sum::<Option<u64>>().ok_or(Uncounted::Failed)?;
    let first = text.first().and_then(|first| vocabulary.tokens(first)).unwrap_or(1);
    Ok(TextTokens { all, first })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
