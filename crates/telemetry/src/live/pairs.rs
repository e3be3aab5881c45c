//! What is known of each pair's engine beyond the exchanges in flight.

use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// One listen -> upstream pair. Times are nanoseconds since the table was made.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) name: Box<str>,
    /// Exchanges to which the engine owes something.
    owed: AtomicI64,
    /// Since when there has been at least one of them without a break.
    owes_since: AtomicU64,
    /// The last progress of exchanges that have ended.
    progressed: AtomicU64,
}

impl Pair {
    pub(super) fn new(name: &str) -> Pair {
        let (owed, owes_since, progressed) = (AtomicI64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Pair { name: name.into(), owed, owes_since, progressed }
    }

    /// The engine owes one more exchange something.
    pub(super) fn owe(&self, at: u64) {
        // Should the last other one leave in between, the break was too short to be one.
        if self.owed.load(Relaxed) <= 0 {
            self.owes_since.fetch_max(at, Relaxed);
        }
        self.owed.fetch_add(1, Relaxed);
    }

    /// It owes one fewer.
    pub(super) fn settle(&self) {
        self.owed.fetch_sub(1, Relaxed);
    }

    /// It did something for an exchange.
    pub(super) fn progress(&self, at: u64) {
        self.progressed.fetch_max(at, Relaxed);
    }

    /// Since when it could have done something and, as far as ended exchanges tell, has not.
    pub(super) fn silent_since(&self) -> u64 {
        self.owes_since.load(Relaxed).max(self.progressed.load(Relaxed))
    }
}
