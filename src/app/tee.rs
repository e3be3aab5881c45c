//! A sink that forwards to several sinks.

use std::fmt;
use std::sync::Arc;

use tokometer_observe::measure::{
    Detach, Gap, Labels, Live, Message, Opening, Phase, Record, Sink, UncountedText, Unread, Watches,
};

/// Forwards every call to several sinks, in order.
pub struct Tee(Vec<Arc<dyn Sink>>);

impl Tee {
    /// Combines the sinks into one; a single sink is not wrapped.
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
    fn in_flight(&self, listener: usize, phase: Phase, delta: i64) {
        self.0.iter().for_each(|sink| sink.in_flight(listener, phase, delta));
    }

    fn live(&self, labels: &Labels) -> Option<Arc<dyn Live>> {
        let mut all: Vec<Arc<dyn Live>> = self.0.iter().filter_map(|sink| sink.live(labels)).collect();
        if all.len() > 1 { Some(Arc::new(TeeLive(all))) } else { all.pop() }
    }

    fn opened(&self, opening: &Opening) -> Watches {
        self.0.iter().fold(Watches::default(), |watches, sink| watches.and(sink.opened(opening)))
    }

    fn record(&self, record: &Arc<Record>) {
        self.0.iter().for_each(|sink| sink.record(record));
    }

    fn record_with_text(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        self.0.iter().for_each(|sink| sink.record_with_text(record, text));
    }

    fn detached(&self, listener: usize, why: Detach) {
        self.0.iter().for_each(|sink| sink.detached(listener, why));
    }

    fn unparsed(&self, listener: usize, of: Message, bytes: usize) {
        self.0.iter().for_each(|sink| sink.unparsed(listener, of, bytes));
    }

    fn unread(&self, listener: usize, of: Message, why: Unread) {
        self.0.iter().for_each(|sink| sink.unread(listener, of, why));
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
