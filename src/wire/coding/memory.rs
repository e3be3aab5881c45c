//! One account for the memory of all decoders.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use crate::wire::coding::Unreadable;

/// What all decoders hold together, in bytes. Clones are the same account.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<AtomicUsize>);

impl Memory {
    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// A share of nothing.
    pub(super) fn share(&self) -> Share {
        Share { memory: self.clone(), bytes: 0 }
    }
}

/// What one decoder holds of the account; given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    memory: Memory,
    bytes: usize,
}

impl Share {
    /// The decoder holds `bytes` now.
    ///
    /// # Errors
    /// [`Unreadable::Memory`] when that makes more than `most` of all together.
    pub(super) fn hold(&mut self, bytes: usize, most: usize) -> Result<(), Unreadable> {
        if bytes <= self.bytes {
            self.memory.0.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
            self.bytes = bytes;
            return Ok(());
        }
        let more = bytes - self.bytes;
        let before = self.memory.0.fetch_add(more, Ordering::Relaxed);
        self.bytes = bytes;
        if before.saturating_add(more) > most { Err(Unreadable::Memory) } else { Ok(()) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_counted_together_and_given_back() {
        let memory = Memory::default();
        let mut one = memory.share();
        let mut other = memory.share();
        assert_eq!(one.hold(60, 100), Ok(()));
        assert_eq!(other.hold(50, 100), Err(Unreadable::Memory));
        drop(other);
        assert_eq!(memory.held(), 60);
        assert_eq!(one.hold(100, 100), Ok(()));
        assert_eq!(one.hold(20, 100), Ok(()));
        assert_eq!(memory.held(), 20);
        drop(one);
        assert_eq!(memory.held(), 0);
    }
}
