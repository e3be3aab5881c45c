//! The stage before the exporters: requests without a queue time wait for their engine's span.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver};

use tokometer_observe::measure::{Outcome, Record, Sink, Stage};

use crate::engine_spans::forward::Stopping;
use crate::engine_spans::interpret::Interpreter;
use crate::engine_spans::joiner::{Joiner, RecordedRequest};
use crate::engine_spans::message::Message;
use crate::engine_spans::spans;
use crate::engine_spans::stats::{Join, Measurements};

/// An ended request, sent from the data path to the joiner.
pub(crate) enum Ended {
    /// The record waits for its span.
    Waits(Arc<Record>),
    /// The record was already passed on. Its data is used to recognize its span.
    Recorded(RecordedRequest),
}

/// The stage in front of the exporters: sends records to the joiner's thread, or passes them on immediately.
pub struct SpanJoin {
    next: Arc<dyn Sink>,
    ended: Sender<Ended>,
    measurements: Arc<Measurements>,
}

impl fmt::Debug for SpanJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpanJoin").finish_non_exhaustive()
    }
}

impl SpanJoin {
    pub(crate) fn new(next: Arc<dyn Sink>, ended: Sender<Ended>, measurements: Arc<Measurements>) -> SpanJoin {
        SpanJoin { next, ended, measurements }
    }
}

impl Stage for SpanJoin {
    fn next(&self) -> &Arc<dyn Sink> {
        &self.next
    }

    fn record(&self, record: &Arc<Record>) {
        let has_key = record.response.id.is_some() || record.server_trace().is_some();
        if !record.labels.route.generates() || !has_key {
            return self.next.record(record);
        }
        if !waits(record) {
            self.next.record(record);
            // If the queue is full, the request's span will be counted as unmatched.
            self.ended.try_send(Ended::Recorded(RecordedRequest::of(record))).ok();
            return;
        }
        if let Err(TrySendError::Full(unsent) | TrySendError::Closed(unsent)) =
            self.ended.try_send(Ended::Waits(Arc::clone(record)))
            && let Ended::Waits(record) = unsent
        {
            self.measurements.joins(Join::Full).add(1);
            self.next.record(&record);
        }
    }
}

/// True if the queue time is unknown and exactly one span is expected. Engines send one span per choice, and none for
/// aborted requests.
fn waits(record: &Record) -> bool {
    let whole = matches!(record.outcome, Outcome::Ok | Outcome::NoOutput);
    whole && record.request.choices == 1 && record.engine.queue.is_none()
}

/// The part of the stage that runs on the receiver's thread.
pub(crate) struct Joining {
    pub(crate) joiner: Joiner,
    pub(crate) interpreter: Interpreter,
    pub(crate) next: Arc<dyn Sink>,
    pub(crate) ended: Receiver<Ended>,
    pub(crate) messages: UnboundedReceiver<Message>,
}

impl Joining {
    /// Joins until it is stopped, then passes on the waiting records.
    pub(crate) async fn run(mut self, mut stopped: Stopping) {
        loop {
            let due = self.joiner.next_due();
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = stopped.changed() => break,
                Some(ended) = self.ended.recv() => self.ended(ended, Instant::now()),
                Some(message) = self.messages.recv() => self.message(&message, Instant::now()),
                () = pause => self.joiner.pass_time(Instant::now()),
            }
            self.pass_on();
        }
        // Once the queue is closed, [`SpanJoin`] passes records on immediately.
        self.ended.close();
        while let Ok(ended) = self.ended.try_recv() {
            self.ended(ended, Instant::now());
        }
        self.joiner.close();
        self.pass_on();
    }

    fn pass_on(&mut self) {
        for record in self.joiner.take() {
            self.next.record(&record);
        }
    }

    fn ended(&mut self, ended: Ended, now: Instant) {
        match ended {
            Ended::Waits(record) => self.joiner.record(record, now),
            Ended::Recorded(passed) => self.joiner.passed(&passed, now),
        }
    }

    fn message(&mut self, message: &Message, now: Instant) {
        let read = spans::read(&message.bytes, |span| {
            if let Some(request) = self.interpreter.take(&span) {
                self.joiner.span(request, now);
            }
        });
        debug_assert!(read.is_ok(), "the message was validated when it was accepted");
    }
}
