//! The stage between the data path and the sinks.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::tokenizer::Vocabularies;
use crate::tokenizer::worker::Job;
use crate::tokenizer::worker::Worker;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::Stage;
use tokometer_observe::measure::Uncounted;
use tokometer_observe::measure::UncountedText;

/// Hands records on at once, but for those of answers that nobody counted: these go through the worker, if it has room.
pub struct Counting {
    next: Arc<dyn Sink>,
    worker: Worker,
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl Counting {
    /// Counts by these vocabularies before `next` is told, with room for `queue_answers` waiting answers. Without any
    /// there is no thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(next: Arc<dyn Sink>, vocabularies: Vocabularies, queue_answers: usize) -> io::Result<Counting> {
        let counting = Counting { worker: Worker::new(Arc::clone(&next)), next };
        counting.reload(vocabularies, queue_answers)?;
        Ok(counting)
    }

    /// Counts by these from now on. Answers that wait are counted by those that they began with.
    ///
    /// # Errors
    /// When the thread cannot be started; the old vocabularies stay.
    pub fn reload(&self, vocabularies: Vocabularies, queue_answers: usize) -> io::Result<()> {
        self.worker.set(vocabularies, queue_answers)
    }

    /// How many answers could not be counted, by reason; nothing as long as there never was a vocabulary.
    pub fn uncounted(&self) -> Vec<(Uncounted, u64)> {
        self.worker.uncounted()
    }

    /// Answers that wait or are being counted.
    pub fn waiting(&self) -> usize {
        self.worker.waiting()
    }

    /// Counts what waits, for this long; hands the rest on as it is. Every record has been handed on then.
    pub fn stop(&self, at_most: Duration) {
        self.worker.stop(at_most);
    }

    fn offer(&self, record: &Record, text: UncountedText) -> Result<(), Uncounted> {
        if let Some(lost) = text.text.lost() {
            return Err(lost.into());
        }
        if text.text.is_empty() {
            return Err(Uncounted::NotPlain);
        }
        let vocabularies = self.worker.vocabularies();
        let vocabulary = vocabularies.of(&record.labels).ok_or(Uncounted::NoVocabulary)?;
        let job = Job { record: record.clone(), text, vocabulary: Arc::clone(vocabulary), since: Instant::now() };
        self.worker.offer(Box::new(job))
    }
}

impl Stage for Counting {
    fn next(&self) -> &Arc<dyn Sink> {
        &self.next
    }

    fn record(&self, record: &Record) {
        self.next.record(record);
    }

    fn record_with_text(&self, record: &Record, text: &mut Option<UncountedText>) {
        let why = match text.take().map(|text| self.offer(record, text)) {
            Some(Ok(())) => return,
            Some(Err(why)) => Some(why),
            None => None,
        };
        why.into_iter().for_each(|why| self.worker.tally(why));
        self.next.record(record);
    }
}
