//! A timer that is more precise than the runtime's millisecond resolution.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

use tokio::time::Instant;

/// The sleeping tasks and their wake-up times.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    sleepers: Mutex<BTreeMap<(Instant, u64), Waker>>,
    /// Makes equal wake-up times distinct.
    next: AtomicU64,
}

impl Pacer {
    /// Sleeps until `at`, provided that [`Pacer::spin`] is running.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        let mut asleep = false;
        std::future::poll_fn(|context| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            // A sleeper stays in one task until it completes, so its waker stays valid.
            if !asleep {
                asleep = true;
                let key = (at, self.next.fetch_add(1, Relaxed));
                self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).insert(key, context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Wakes due sleepers, forever; yields to the rest of the runtime between checks.
    pub(crate) async fn spin(&self) {
        loop {
            while let Some(waker) = self.next_due() {
                waker.wake();
            }
            tokio::task::yield_now().await;
        }
    }

    fn next_due(&self) -> Option<Waker> {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        let first = sleepers.first_entry()?;
        (first.key().0 <= Instant::now()).then(|| first.remove())
    }
}
