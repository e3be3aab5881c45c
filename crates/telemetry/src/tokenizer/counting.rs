//! A stage in front of the sinks: queues responses that have no token count, and counts their tokens on a separate
//! thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::export::table::{Id, Key};
use crate::export::{Collect, Points};
use arc_swap::ArcSwap;
use tokometer_decode::ResponseText;
use tokometer_observe::measure::{Record, Sink, Stage, TextTokens, Uncounted, UncountedText};

use crate::tokenizer::{Tokenize, Vocabularies};

/// Niceness of the thread (setpriority(2)): a lower priority than the data path's threads have.
const NICENESS: i32 = 10;

/// Maximum time in the queue. Records that have waited longer are forwarded uncounted, to limit the delay of metrics
/// and logs.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A response waiting to be counted.
struct Job {
    record: Arc<Record>,
    text: UncountedText,
    vocabulary: Arc<dyn Tokenize>,
    since: Instant,
}

enum Message {
    /// Boxed, because the channel allocates its slots in blocks: small slots save memory while the queue is empty.
    Count(Box<Job>),
    /// Sends a reply when all earlier messages have been processed.
    Flush(SyncSender<()>),
}

/// Queues the records of responses whose tokens must be counted. Forwards all other records immediately, also if the
/// queue is full.
pub struct Counting {
    /// The channel is unbounded. `Shared::waiting` enforces the limit, which a reload can change.
    queue: Sender<Message>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// State shared by the counting thread, the data path and [`Counting::stop`].
struct Shared {
    next: Arc<dyn Sink>,
    /// Locked by the thread while it waits for messages, and never while it counts.
    jobs: Mutex<Receiver<Message>>,
    /// The record whose text is being counted. Whichever thread removes the record must forward it.
    current: Mutex<Option<Arc<Record>>>,
    vocabularies: ArcSwap<Vocabularies>,
    waiting: AtomicUsize,
    most: AtomicUsize,
    started: AtomicBool,
    /// Set when `stop` runs out of time: waiting records are then forwarded uncounted.
    hurry: AtomicBool,
    uncounted: [AtomicU64; Uncounted::ALL.len()],
}

impl Counting {
    /// Starts counting in front of `next` with these vocabularies and at most `queue_responses` waiting responses.
    /// Without a vocabulary, no thread is started.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(next: Arc<dyn Sink>, vocabularies: Vocabularies, queue_responses: usize) -> io::Result<Counting> {
        let (queue, jobs) = channel();
        let shared = Arc::new(Shared {
            next,
            jobs: Mutex::new(jobs),
            current: Mutex::new(None),
            vocabularies: ArcSwap::default(),
            waiting: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            started: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            uncounted: Default::default(),
        });
        let counting = Counting { queue, shared };
        counting.reload(vocabularies, queue_responses)?;
        Ok(counting)
    }

    /// Replaces the vocabularies. Responses that are already waiting are counted with the old vocabularies.
    ///
    /// # Errors
    /// The thread cannot be started; the old vocabularies are kept.
    pub fn reload(&self, vocabularies: Vocabularies, queue_responses: usize) -> io::Result<()> {
        let shared = &self.shared;
        if !vocabularies.is_empty() && !shared.started.swap(true, Relaxed) {
            let worker = Arc::clone(shared);
            let work = move || {
                // Lowering the priority needs no privilege; if it fails anyway, tokens are counted at normal priority.
                rustix::process::nice(NICENESS).ok();
                worker.run();
            };
            std::thread::Builder::new()
                .name("tokometer-count".to_owned())
                .spawn(work)
                .inspect_err(|_| shared.started.store(false, Relaxed))?;
        }
        shared.most.store(queue_responses, Relaxed);
        shared.vocabularies.store(Arc::new(vocabularies));
        Ok(())
    }

    /// Number of responses that could not be counted, by reason; empty until a vocabulary has been set.
    pub fn uncounted(&self) -> Vec<(Uncounted, u64)> {
        if !self.shared.started.load(Relaxed) {
            return Vec::new();
        }
        Uncounted::ALL.into_iter().zip(self.shared.uncounted.iter().map(|n| n.load(Relaxed))).collect()
    }

    /// Number of responses that are waiting or being counted.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Relaxed)
    }

    /// Counts waiting responses for at most `at_most` and forwards the rest uncounted. When it returns, every record
    /// has been forwarded.
    pub fn stop(&self, at_most: Duration) {
        let shared = &self.shared;
        if !shared.started.load(Relaxed) {
            return;
        }
        let (done, counted) = sync_channel(1);
        let sent = self.queue.send(Message::Flush(done)).is_ok();
        if sent && counted.recv_timeout(at_most).is_ok() {
            return;
        }
        shared.hurry.store(true, Relaxed);
        shared.give_up();
        // The thread is still counting one text, or has died. Forward the waiting records here.
        if let Ok(jobs) = shared.jobs.try_lock() {
            shared.drain(&jobs);
        }
    }

    /// Adds a response to the queue. Never blocks.
    fn offer(&self, record: &Arc<Record>, text: UncountedText) -> Result<(), Uncounted> {
        if let Some(lost) = text.text.lost() {
            return Err(lost.into());
        }
        if text.text.is_empty() {
            return Err(Uncounted::NotPlain);
        }
        let vocabularies = self.shared.vocabularies.load();
        let vocabulary = vocabularies.of(&record.labels).ok_or(Uncounted::NoVocabulary)?;
        if self.shared.waiting.fetch_add(1, Relaxed) >= self.shared.most.load(Relaxed) {
            self.shared.waiting.fetch_sub(1, Relaxed);
            return Err(Uncounted::QueueFull);
        }
        let job = Job { record: Arc::clone(record), text, vocabulary: Arc::clone(vocabulary), since: Instant::now() };
        // Cannot fail: `shared` also holds the receiver.
        self.queue.send(Message::Count(Box::new(job))).map_err(|_| Uncounted::QueueFull)
    }
}

impl Collect for Counting {
    fn collect(&self, points: &mut Points<'_>) {
        for (why, responses) in self.uncounted() {
            points.put(Id::TokenizerUncounted, &[(Key::Reason, why.as_str().into())], responses);
        }
    }
}

impl Stage for Counting {
    fn next(&self) -> &Arc<dyn Sink> {
        &self.shared.next
    }

    fn record(&self, record: &Arc<Record>) {
        self.shared.next.record(record);
    }

    fn record_with_text(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        match text.take().map(|text| self.offer(record, text)) {
            Some(Ok(())) => return,
            Some(Err(why)) => self.shared.add_uncounted(why),
            None => {}
        }
        self.shared.next.record(record);
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
        *lock(&self.current) = Some(record);
        let late = self.hurry.load(Relaxed) || since.elapsed() > LONGEST_WAIT;
        let tokens = if late {
            Err(Uncounted::QueueFull)
        } else {
            let count = AssertUnwindSafe(|| count(&text, vocabulary.as_ref()));
            catch_unwind(count).unwrap_or(Err(Uncounted::Failed))
        };
        drop(text);
        let Some(mut record) = lock(&self.current).take() else { return };
        if let Err(why) = tokens.and_then(|tokens| Arc::make_mut(&mut record).count_text(tokens, &thresholds)) {
            self.add_uncounted(why);
        }
        self.forward(&record);
    }

    /// Forwards the current record uncounted.
    fn give_up(&self) {
        if let Some(record) = lock(&self.current).take() {
            self.add_uncounted(Uncounted::QueueFull);
            self.forward(&record);
        }
    }

    /// Forwards all waiting records uncounted.
    fn drain(&self, jobs: &Receiver<Message>) {
        for message in jobs.try_iter() {
            if let Message::Count(job) = message {
                self.add_uncounted(Uncounted::QueueFull);
                self.forward(&job.record);
            }
        }
    }

    fn forward(&self, record: &Arc<Record>) {
        self.waiting.fetch_sub(1, Relaxed);
        // A panic of the sink must not end the thread.
        drop(catch_unwind(AssertUnwindSafe(|| self.next.record(record))));
    }

    fn add_uncounted(&self, why: Uncounted) {
        self.uncounted[why as usize].fetch_add(1, Relaxed);
    }
}

/// Counts the tokens of each run of text separately: in the response, the runs were separated by markers, which are not
/// part of the text.
fn count(text: &ResponseText, vocabulary: &dyn Tokenize) -> Result<TextTokens, Uncounted> {
    let runs = text.runs().map_err(Uncounted::from)?;
    let all = runs.iter().map(|run| vocabulary.tokens(run)).sum::<Option<u64>>().ok_or(Uncounted::Failed)?;
    let first = text.first().and_then(|first| vocabulary.tokens(first)).unwrap_or(1);
    Ok(TextTokens { all, first, least: text.events() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
