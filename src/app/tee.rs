//! One sink in front of several.

use std::fmt;
use std::sync::Arc;

use crate::measure::Detach;
use crate::measure::Gap;
use crate::measure::Labels;
use crate::measure::Live;
use crate::measure::Message;
use crate::measure::Phase;
use crate::measure::Record;
use crate::measure::Sink;
use crate::measure::Unread;

/// Tells several sinks the same, in their order.
pub struct Tee(Vec<Arc<dyn Sink>>);

impl Tee {
    /// One sink for these; a single one is not wrapped.
    pub fn of(mut sinks: Vec<Arc<dyn Sink>>) -> Arc<dyn Sink> {
        match (sinks.pop(), sinks.is_empty()) {
            (Some(only), true) => only,
            (last, _) => {
                sinks.extend(last);
                Arc::new(Tee(sinks))
            }
        }
    }
}

impl fmt::Debug for Tee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tee").field(&self.0.len()).finish()
    }
}

impl Sink for Tee {
    fn in_flight(&self, pair: usize, phase: Phase, delta: i64) {
        self.0.iter().for_each(|sink| sink.in_flight(pair, phase, delta));
    }

    fn live(&self, labels: &Labels) -> Arc<dyn Live> {
        Arc::new(TeeLive(self.0.iter().map(|sink| sink.live(labels)).collect()))
    }

    fn record(&self, record: &Record) {
        self.0.iter().for_each(|sink| sink.record(record));
    }

    fn detached(&self, pair: usize, why: Detach) {
        self.0.iter().for_each(|sink| sink.detached(pair, why));
    }

    fn unread(&self, pair: usize, of: Message, why: Unread) {
        self.0.iter().for_each(|sink| sink.unread(pair, of, why));
    }
}

struct TeeLive(Vec<Arc<dyn Live>>);

impl Live for TeeLive {
    fn progress(&self, gaps: &[Gap], tokens: u64) {
        self.0.iter().for_each(|live| live.progress(gaps, tokens));
    }

    fn stalled(&self) {
        self.0.iter().for_each(|live| live.stalled());
    }

    fn reconcile(&self, tokens: u64) {
        self.0.iter().for_each(|live| live.reconcile(tokens));
    }
}

/// The handles of a sink that has no use for what moves while a stream runs.
#[derive(Clone, Copy, Debug)]
pub struct Unmoved;

impl Live for Unmoved {
    fn progress(&self, _gaps: &[Gap], _tokens: u64) {}

    fn stalled(&self) {}

    fn reconcile(&self, _tokens: u64) {}
}
