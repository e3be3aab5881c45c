//! A stage in front of the sinks: queues responses that have no token count, and counts their tokens on a separate
//! thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, io};

use arc_swap::ArcSwap;
use tokometer_decode::ResponseText;
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};
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

/// Queues the records of responses whose tokens must be counted. Forwards all other records immediately, also if the
/// queue is full.
pub struct Counting(Arc<Shared>);

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// State shared by the counting thread, the data path and [`Counting::stop`].
struct Shared {
    next: Arc<dyn Sink>,
    queue: Mutex<Queue>,
    /// Notified when a job is added.
    added: Condvar,
    /// Notified when the last job has been forwarded.
    settled: Condvar,
    vocabularies: ArcSwap<Vocabularies>,
    most: AtomicUsize,
    started: AtomicBool,
    uncounted: [AtomicU64; Uncounted::ALL.len()],
}

/// The records that wait for their count. Every record is in one of the fields until it is forwarded.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The record whose text is being counted. Whichever thread removes the record must forward it.
    current: Option<Arc<Record>>,
    /// The thread is forwarding a record.
    forwarding: bool,
    /// Further responses are not counted, and the thread ends when the queue is empty.
    closed: bool,
}

impl Queue {
    fn waiting(&self) -> usize {
        self.jobs.len() + usize::from(self.current.is_some() || self.forwarding)
    }
}

impl Counting {
    /// Starts counting in front of `next` with these vocabularies and at most `queue_responses` waiting responses.
    /// Without a vocabulary, no thread is started.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(next: Arc<dyn Sink>, vocabularies: Vocabularies, queue_responses: usize) -> io::Result<Counting> {
        let counting = Counting(Arc::new(Shared {
            next,
            queue: Mutex::default(),
            added: Condvar::new(),
            settled: Condvar::new(),
            vocabularies: ArcSwap::default(),
            most: AtomicUsize::new(0),
            started: AtomicBool::new(false),
            uncounted: Default::default(),
        }));
        counting.reload(vocabularies, queue_responses)?;
        Ok(counting)
    }

    /// Replaces the vocabularies. Responses that are already waiting are counted with the old vocabularies.
    ///
    /// # Errors
    /// The thread cannot be started; the old vocabularies are kept.
    pub fn reload(&self, vocabularies: Vocabularies, queue_responses: usize) -> io::Result<()> {
        let shared = &self.0;
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
        if !self.0.started.load(Relaxed) {
            return Vec::new();
        }
        Uncounted::ALL.into_iter().zip(self.0.uncounted.iter().map(|n| n.load(Relaxed))).collect()
    }

    /// Number of responses that are waiting or being counted.
    pub fn waiting(&self) -> usize {
        lock(&self.0.queue).waiting()
    }

    /// Counts waiting responses for at most `at_most` and forwards the rest uncounted. When it returns, every record
    /// has been forwarded.
    pub fn stop(&self, at_most: Duration) {
        let shared = &self.0;
        let queue = lock(&shared.queue);
        let waited = shared.settled.wait_timeout_while(queue, at_most, |queue| queue.waiting() > 0);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        queue.closed = true;
        shared.added.notify_one();
        let current = queue.current.take();
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        for record in current.into_iter().chain(jobs.into_iter().map(|job| job.record)) {
            shared.add_uncounted(Uncounted::QueueFull);
            shared.forward(&record);
        }
    }

    /// Adds a response to the queue. Waits only for the lock, which is never held while counting or forwarding.
    fn offer(&self, record: &Arc<Record>, text: UncountedText) -> Result<(), Uncounted> {
        if let Some(lost) = text.text.lost() {
            return Err(lost.into());
        }
        if text.text.is_empty() {
            return Err(Uncounted::NotPlain);
        }
        let vocabularies = self.0.vocabularies.load();
        let vocabulary = vocabularies.of(&record.labels).ok_or(Uncounted::NoVocabulary)?;
        let job = Job { record: Arc::clone(record), text, vocabulary: Arc::clone(vocabulary), since: Instant::now() };
        let mut queue = lock(&self.0.queue);
        if queue.closed || queue.waiting() >= self.0.most.load(Relaxed) {
            return Err(Uncounted::QueueFull);
        }
        queue.jobs.push_back(job);
        self.0.added.notify_one();
        Ok(())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        lock(&self.0.queue).closed = true;
        self.0.added.notify_one();
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
        &self.0.next
    }

    fn record(&self, record: &Arc<Record>) {
        self.0.next.record(record);
    }

    fn record_with_text(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        match text.take().map(|text| self.offer(record, text)) {
            Some(Ok(())) => return,
            Some(Err(why)) => self.0.add_uncounted(why),
            None => {}
        }
        self.0.next.record(record);
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let queue = self.added.wait_while(lock(&self.queue), |queue| queue.jobs.is_empty() && !queue.closed);
            let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
            let Some(job) = queue.jobs.pop_front() else { return };
            queue.current = Some(Arc::clone(&job.record));
            drop(queue);
            self.count(job);
        }
    }

    /// Counts one response and forwards its record.
    fn count(&self, job: Job) {
        let Job { record, text: UncountedText { text, thresholds }, vocabulary, since } = job;
        // The queue's reference is the only one now, so that the record need not be copied.
        drop(record);
        let tokens = if since.elapsed() > LONGEST_WAIT {
            Err(Uncounted::QueueFull)
        } else {
            let count = AssertUnwindSafe(|| count(&text, vocabulary.as_ref()));
            catch_unwind(count).unwrap_or(Err(Uncounted::Failed))
        };
        drop(text);
        let mut queue = lock(&self.queue);
        // `stop` may have forwarded the record.
        let Some(mut record) = queue.current.take() else { return };
        queue.forwarding = true;
        drop(queue);
        if let Err(why) = tokens.and_then(|tokens| Arc::make_mut(&mut record).count_text(tokens, &thresholds)) {
            self.add_uncounted(why);
        }
        self.forward(&record);
        let mut queue = lock(&self.queue);
        queue.forwarding = false;
        if queue.waiting() == 0 {
            self.settled.notify_all();
        }
    }

    fn forward(&self, record: &Arc<Record>) {
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
