//! The memory that messages may take, all together.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::engine_spans::stats::Figures;

/// What a message takes beside its bytes: its place in the queues, its headers.
const OVERHEAD: usize = 1024;

/// Gives shares until there is no more.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    taken: AtomicUsize,
    figures: Arc<Figures>,
}

impl Budget {
    /// `figures` are told what all budgets together have given.
    pub(crate) fn new(most: usize, figures: Arc<Figures>) -> Budget {
        Budget(Arc::new(Inner { most, taken: AtomicUsize::new(0), figures }))
    }

    /// The share of a message of so many bytes; `None` when there is no room.
    pub(crate) fn share(&self, bytes: usize) -> Option<Share> {
        let mut share = Share { budget: self.clone(), bytes: 0 };
        share.grow(OVERHEAD.saturating_add(bytes)).then_some(share)
    }
}

/// What one message takes; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    /// Takes so many bytes more; false, and nothing is taken, when there is no room.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let Inner { most, taken, figures } = &*self.budget.0;
        let within = |taken: usize| taken.checked_add(bytes).filter(|sum| sum <= most);
        let grown = taken.fetch_update(Relaxed, Relaxed, within).is_ok();
        if grown {
            self.bytes += bytes;
            figures.occupy(bytes);
        }
        grown
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Inner { taken, figures, .. } = &*self.budget.0;
        taken.fetch_sub(self.bytes, Relaxed);
        figures.vacate(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_until_there_is_no_more_and_come_back() {
        let figures = Arc::new(Figures::default());
        let budget = Budget::new(4 * OVERHEAD, Arc::clone(&figures));
        let mut first = budget.share(0).unwrap();
        assert!(first.grow(2 * OVERHEAD));
        assert!(!first.grow(OVERHEAD + 1));
        assert!(!first.grow(usize::MAX));
        let second = budget.share(0).unwrap();
        assert!(budget.share(0).is_none());
        assert_eq!(figures.waiting_bytes(), 4 * OVERHEAD);
        drop(second);
        assert!(first.grow(OVERHEAD));
        drop(first);
        assert_eq!(figures.waiting_bytes(), 0);
    }
}
