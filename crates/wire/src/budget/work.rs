//! The work budget of one connection, in decoded bytes.

use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

/// Initial credit of a connection: enough for a whole short response at any compression ratio.
const INITIAL: i64 = 32 * 1024;

/// Maximum credit. It bounds how much one read can make its thread decode, independently of the credit earned before.
const MAXIMUM: i64 = 512 * 1024;

/// The number of bytes that a connection may still decode. A negative value is a debt: the cost of some work is known
/// only afterwards, and has to be earned before further work.
#[derive(Debug)]
pub(super) struct Work {
    credit: AtomicI64,
    /// Decoded bytes that one received byte earns; 0 without a limit.
    ratio: u64,
}

impl Work {
    pub(super) fn new(ratio: u64) -> Work {
        Work { credit: AtomicI64::new(INITIAL), ratio }
    }

    /// Adds credit for received bytes. Only the connection's thread calls it and [`Work::spend`].
    pub(super) fn earn(&self, bytes: usize) {
        let earned = i64::try_from((bytes as u64).saturating_mul(self.ratio)).unwrap_or(i64::MAX);
        self.credit.store(self.credit.load(Relaxed).saturating_add(earned).min(MAXIMUM), Relaxed);
    }

    /// True while there is no debt.
    pub(super) fn has_credit(&self) -> bool {
        self.ratio == 0 || self.credit.load(Relaxed) >= 0
    }

    /// Charges this many bytes; true while there is no debt.
    pub(super) fn spend(&self, bytes: usize) -> bool {
        if self.ratio == 0 {
            return true;
        }
        let credit = self.credit.load(Relaxed).saturating_sub_unsigned(bytes as u64);
        self.credit.store(credit, Relaxed);
        credit >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_bytes_earn_decoded_bytes_up_to_the_maximum() {
        let work = Work::new(32);
        assert!(work.spend(INITIAL as usize));
        assert!(!work.spend(1), "nothing is left");
        work.earn(10);
        assert!(work.spend(319));
        assert!(!work.spend(1));
        work.earn(usize::MAX);
        assert!(work.spend(MAXIMUM as usize));
        assert!(!work.spend(1));
    }

    #[test]
    fn debt_must_be_earned_before_further_work() {
        let work = Work::new(2);
        assert!(!work.spend(INITIAL as usize + 1000));
        work.earn(499);
        assert!(!work.spend(0));
        work.earn(1);
        assert!(work.spend(0));
    }
}
