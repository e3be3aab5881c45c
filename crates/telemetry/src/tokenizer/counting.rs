//! Stage between the data path and the sinks.

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

/// Forwards records immediately, except those of responses without a token count: these go through the worker if it has
/// room.
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
    /// Starts counting with these vocabularies in front of `next`, with at most `queue_answers` waiting responses. No
    /// thread is started without a vocabulary.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(next: Arc<dyn Sink>, vocabularies: Vocabularies, queue_answers: usize) -> io::Result<Counting> {
        let counting = Counting { worker: Worker::new(Arc::clone(&next)), next };
        counting.reload(vocabularies, queue_answers)?;
        Ok(counting)
    }

    /// Replaces the vocabularies. Responses that are already waiting are counted with their old ones.
    ///
    /// # Errors
    /// The thread cannot be started; the old vocabularies are kept.
    pub fn reload(&self, vocabularies: Vocabularies, queue_answers: usize) -> io::Result<()> {
        self.worker.set(vocabularies, queue_answers)
    }

    /// Number of responses that could not be counted, by reason; empty until a vocabulary has been set.
    pub fn uncounted(&self) -> Vec<(Uncounted, u64)> {
        self.worker.uncounted()
    }

    /// Number of responses that are waiting or being counted.
    pub fn waiting(&self) -> usize {
        self.worker.waiting()
    }

    /// Counts the waiting responses for at most this long and forwards the others uncounted. Every record has been
    /// forwarded when it returns.
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
