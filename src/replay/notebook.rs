//! Stores everything that observers report.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokometer_observe::measure::{
    Detach, Gap, Labels, Live, Message, Opening, Phase, Record, Requested, Sink, TimeLine, Unread, Watch, Watches,
};

/// Result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Replayed {
    /// One record per request that ended.
    pub records: Vec<Record>,
    /// One entry per observer that stopped parsing, with the reason.
    pub detached: Vec<Detach>,
    /// Bodies that were not parsed, or not completely.
    pub unread: Vec<(Message, Unread)>,
    /// All gaps reported while the stream ran.
    pub gaps: Vec<Gap>,
    /// Sum of all changes of the number of in-flight requests, over all phases; 0 after all requests have ended.
    pub in_flight: i64,
    /// Tokens counted while the stream ran, reconciled at its end.
    pub live_tokens: u64,
    /// Timelines of the responses, by connection and sequence number.
    lines: HashMap<(u64, u64), TimeLine>,
}

impl Replayed {
    /// Timeline of this request's response; `None` if no token arrival was observed.
    pub fn line(&self, record: &Record) -> Option<&TimeLine> {
        self.lines.get(&(record.connection, record.sequence))
    }
}

/// A sink that stores everything, for replays and tests.
#[derive(Clone, Debug, Default)]
pub struct Notebook {
    stored: Arc<Mutex<Replayed>>,
    /// Gaps and timelines are not stored for a capture, which may be large.
    omits_gaps: bool,
    omits_lines: bool,
}

impl Notebook {
    /// A sink for a capture: stores no gaps, and timelines only on request.
    pub(super) fn of_capture(timelines: bool) -> Notebook {
        Notebook { omits_gaps: true, omits_lines: !timelines, ..Notebook::default() }
    }

    /// Returns everything stored so far, and clears it.
    pub fn take(&self) -> Replayed {
        std::mem::take(&mut *self.stored.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, write: impl FnOnce(&mut Replayed)) {
        write(&mut self.stored.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Sink for Notebook {
    fn in_flight(&self, _listener: usize, _phase: Phase, delta: i64) {
        self.note(|all| all.in_flight += delta);
    }

    fn live(&self, _labels: &Labels) -> Option<Arc<dyn Live>> {
        Some(Arc::new(self.clone()))
    }

    fn opened(&self, _opening: &Opening) -> Watches {
        if self.omits_lines {
            return Watches::default();
        }
        Watches::of(TimeLineWatch { notebook: self.clone(), line: None })
    }

    fn record(&self, record: &Arc<Record>) {
        self.note(|all| all.records.push(Record::clone(record)));
    }

    fn detached(&self, _listener: usize, why: Detach) {
        self.note(|all| all.detached.push(why));
    }

    fn unread(&self, _listener: usize, of: Message, why: Unread) {
        self.note(|all| all.unread.push((of, why)));
    }
}

/// Builds the timeline of one request.
struct TimeLineWatch {
    notebook: Notebook,
    line: Option<TimeLine>,
}

impl Watch for TimeLineWatch {
    fn requested(&mut self, _request: &Requested<'_>, _at: Duration) {}

    fn response_started(&mut self, _status: u16, _streaming: bool) {}

    fn prefilling(&mut self, _at: Duration) {}

    fn token(&mut self, at: Duration, tokens: u64) -> bool {
        self.line.get_or_insert_default().push(at, tokens);
        true
    }

    fn client_blocked(&mut self, _at: Duration) {}

    fn resumed(&mut self, _at: Duration) {}

    fn response_complete(&mut self) {}

    fn ended(self: Box<Self>, record: &Arc<Record>) {
        if let Some(line) = self.line {
            self.notebook.note(|all| {
                all.lines.insert((record.connection, record.sequence), line);
            });
        }
    }
}

impl Live for Notebook {
    fn progress(&self, gaps: &[Gap], tokens: u64) {
        self.note(|all| {
            if !self.omits_gaps {
                all.gaps.extend_from_slice(gaps);
            }
            all.live_tokens += tokens;
        });
    }

    fn stalled(&self) {}

    fn reconcile(&self, tokens: u64) {
        self.note(|all| all.live_tokens += tokens);
    }
}
