//! Limits and state shared by the connections of a tap.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokometer_observe::budget::Budget;
use tokometer_observe::input::{Connection, Observe, Observer};

use crate::stats::Stats;

/// Limits of a tap.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory budget of all connections and their observers.
    pub budget: Budget,
    /// Maximum number of open connections; further connections are not observed.
    pub connections: usize,
    /// Maximum number of bytes that wait for an earlier segment, per direction of a connection.
    pub reassembly_bytes: usize,
    /// A connection without packets for this long is evicted.
    pub idle: Duration,
}

impl Limits {
    /// The default limits, with this memory budget.
    pub fn new(budget: Budget) -> Limits {
        Limits { budget, connections: 65_536, reassembly_bytes: 1024 * 1024, idle: Duration::from_secs(3600) }
    }
}

/// State shared by the connections of a tap.
pub(crate) struct Shared {
    pub(crate) observe: Arc<dyn Observe>,
    pub(crate) limits: Limits,
    pub(crate) stats: Arc<Stats>,
    /// Number of connections observed so far.
    pub(crate) observed: u64,
    /// A connection may have a gap or may have been reset: check all connections soon.
    pub(crate) suspects_end: bool,
}

impl Shared {
    /// Numbers a connection and creates its observer.
    pub(crate) fn accepted(&mut self, mut connection: Connection) -> Option<Box<dyn Observer>> {
        self.observed += 1;
        connection.id = self.observed;
        self.contain(|| self.observe.accepted(&connection)).flatten()
    }

    /// Runs observer code; `None` if it panicked, which is counted.
    pub(crate) fn contain<R>(&self, call: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(result) => Some(result),
            Err(payload) => {
                // Dropping the payload may panic too.
                std::mem::forget(payload);
                self.stats.observer_panics.add(1);
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.observe.panicked())) {
                    std::mem::forget(payload);
                }
                None
            }
        }
    }
}
