//! Engine activity per listener that is not derived from the requests in flight.

use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A listener. Times are nanoseconds since the table was created.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) name: Box<str>,
    /// Pending requests.
    owed: AtomicI64,
    /// Start of the current period with at least one pending request.
    owes_since: AtomicU64,
    /// Last progress of requests that have ended.
    progressed: AtomicU64,
}

impl Pair {
    pub(super) fn new(name: &str) -> Pair {
        let (owed, owes_since, progressed) = (AtomicI64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Pair { name: name.into(), owed, owes_since, progressed }
    }

    /// A request became pending.
    pub(super) fn owe(&self, at: u64) {
        // If the last other pending request is settled in between, the period without pending requests was negligible.
        if self.owed.load(Relaxed) <= 0 {
            self.owes_since.fetch_max(at, Relaxed);
        }
        self.owed.fetch_add(1, Relaxed);
    }

    /// A request is no longer pending.
    pub(super) fn settle(&self) {
        self.owed.fetch_sub(1, Relaxed);
    }

    /// The engine made progress on a request.
    pub(super) fn progress(&self, at: u64) {
        self.progressed.fetch_max(at, Relaxed);
    }

    /// Start of the engine's silence: the later of its last known progress and the start of the pending period.
    pub(super) fn silent_since(&self) -> u64 {
        self.owes_since.load(Relaxed).max(self.progressed.load(Relaxed))
    }
}
