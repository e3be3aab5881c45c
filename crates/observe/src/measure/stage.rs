//! Stages in front of a sink that may complete a record before it is passed on.

use std::sync::Arc;

use crate::measure::Detach;
use crate::measure::Labels;
use crate::measure::Live;
use crate::measure::Message;
use crate::measure::Opening;
use crate::measure::Phase;
use crate::measure::Record;
use crate::measure::Sink;
use crate::measure::UncountedText;
use crate::measure::Unread;
use crate::measure::Watches;

/// Holds some records back until more data is available, for a bounded time and in bounded memory, and then forwards
/// each exactly once. Everything else is forwarded immediately.
pub trait Stage: Send + Sync + 'static {
    /// The sink that records are forwarded to.
    fn next(&self) -> &Arc<dyn Sink>;

    /// A request ended. Called from the data path's threads: must not block.
    fn record(&self, record: &Record);

    /// As [`Sink::record_with_text`].
    fn record_with_text(&self, record: &Record, _text: &mut Option<UncountedText>) {
        self.record(record);
    }
}

impl<S: Stage> Sink for S {
    fn in_flight(&self, pair: usize, phase: Phase, delta: i64) {
        self.next().in_flight(pair, phase, delta);
    }

    fn live(&self, labels: &Labels) -> Option<Arc<dyn Live>> {
        self.next().live(labels)
    }

    fn opened(&self, opening: &Opening) -> Watches {
        self.next().opened(opening)
    }

    fn record(&self, record: &Record) {
        Stage::record(self, record);
    }

    fn record_with_text(&self, record: &Record, text: &mut Option<UncountedText>) {
        Stage::record_with_text(self, record, text);
    }

    fn detached(&self, pair: usize, why: Detach) {
        self.next().detached(pair, why);
    }

    fn unread(&self, pair: usize, of: Message, why: Unread) {
        self.next().unread(pair, of, why);
    }
}
