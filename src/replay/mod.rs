//! Runs recordings of real servers, and packet captures, through observe and measure: the same code as in production,
//! with the times of the recording.

mod capture;
mod recording;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokometer_observe::input::{Close, Connection, Direction, Observe, Side};
use tokometer_observe::measure::{
    Detach, Gap, Labels, Live, Message, Opening, Phase, Record, Requested, Sink, TimeLine, Unread, Watch, Watches,
};
use tokometer_observe::observer::{Observers, Settings};

pub use capture::{CaptureError, Captured, Ends, recognise as is_capture};
pub use recording::{End, Error, Recording};

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
    /// Data that is not stored for a capture, which may be large.
    omits: Omits,
}

#[derive(Clone, Copy, Debug, Default)]
struct Omits {
    gaps: bool,
    lines: bool,
}

impl Notebook {
    /// A sink for a capture: stores no gaps, and timelines only on request.
    fn of_capture(timelines: bool) -> Notebook {
        Notebook { omits: Omits { gaps: true, lines: !timelines }, ..Notebook::default() }
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
        if self.omits.lines {
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
            if !self.omits.gaps {
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

/// Replays one recording through the observer.
pub fn replay(recording: &Recording, settings: &Settings) -> Replayed {
    let notebook = Notebook::default();
    let observers = Observers::new(settings.clone(), 1, Arc::new(notebook.clone()));
    let start = Instant::now();
    let connection = Connection { id: 1, peer: None, listener: 0, upstream: Arc::from("recording"), accepted: start };
    let Some(mut observer) = observers.accepted(&connection) else { return Replayed::default() };
    observer.seen(Direction::Request, &recording.request, start);
    let mut last = Duration::ZERO;
    for (at, bytes) in &recording.reads {
        observer.seen(Direction::Response, bytes, start + *at);
        last = last.max(*at);
    }
    let (at, close) = match recording.end {
        // A client that received everything closes the connection.
        None => (last, Close::Finished { first: Side::Client }),
        Some((at, End::Eof)) => (at, Close::Finished { first: Side::Server }),
        Some((at, End::Reset)) => (at, Close::Reset(Side::Server)),
        Some((at, End::ClientAbort | End::ClientTimeout)) => (at, Close::Finished { first: Side::Client }),
    };
    if close == (Close::Finished { first: Side::Server }) {
        observer.finished(Direction::Response, start + at);
    }
    observer.closed(close, start + at);
    drop(observer);
    notebook.take()
}
