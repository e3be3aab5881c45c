//! The memory budget shared by all messages.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::engine_spans::stats::Figures;

/// Memory of a message in addition to its bytes: its queue entry and headers.
const OVERHEAD: usize = 1024;

/// Grants shares until the budget is used up.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: usize,
    taken: AtomicUsize,
    figures: Arc<Figures>,
}

impl Budget {
    /// `figures` counts what all budgets together have granted.
    pub(crate) fn new(most: usize, figures: Arc<Figures>) -> Budget {
        Budget(Arc::new(Inner { most, taken: AtomicUsize::new(0), figures }))
    }

    /// A share for a message of this size; `None` when there is no room.
    pub(crate) fn share(&self, bytes: usize) -> Option<Share> {
        let mut share = Share { budget: self.clone(), bytes: 0 };
        share.grow(OVERHEAD.saturating_add(bytes)).then_some(share)
    }
}

/// The share of one message; returned to the budget when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    bytes: usize,
}

impl Share {
    /// Adds this many bytes; returns false and adds nothing when there is no room.
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
    fn shares_are_granted_until_full_and_returned() {
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
