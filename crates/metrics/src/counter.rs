//! Counters that are incremented by several threads and read by the exporters.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A total since the start of the process.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The total so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
