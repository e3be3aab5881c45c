//! The figures that the exporters ask the rest of the program for.

use std::sync::{Arc, OnceLock};

use crate::app::path::Handles;
use crate::export::PairStats;
use crate::export::ProcessFigures;
use crate::export::ProcessStats;
use crate::export::Snapshot;
use crate::relay::Direction;

/// Figures of the data path. The exporters start before it does: until then its figures are absent.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures(Arc<OnceLock<Handles>>);

impl Figures {
    /// The data path runs.
    pub(super) fn attach(&self, handles: Handles) {
        // A second data path would have figures of its own.
        self.0.set(handles).ok();
    }
}

impl ProcessStats for Figures {
    fn snapshot(&self) -> Snapshot {
        let process = ProcessFigures::of_this_process();
        let Some(Handles { relay, observatory }) = self.0.get() else {
            return Snapshot { process, ..Snapshot::default() };
        };
        let pairs = relay.stats().iter().map(|stats| PairStats {
            opened: stats.accepted(),
            open: stats.open(),
            refused: stats.connect_failures(),
            timed_out: stats.connect_timeouts(),
            request_bytes: stats.bytes(Direction::Request),
            response_bytes: stats.bytes(Direction::Response),
        });
        Snapshot {
            pairs: pairs.collect(),
            observed_connections: observatory.observed() as u64,
            observer_time: observatory.busy(),
            event_loop_lag: relay.lag(),
            process,
        }
    }
}
