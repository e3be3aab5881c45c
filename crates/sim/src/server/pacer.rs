//! A timer that is more precise than the runtime's millisecond resolution.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::Poll;
use std::task::Waker;

use tokio::time::Instant;

/// The sleeping tasks and their wake-up times.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    sleepers: Mutex<BinaryHeap<Sleeper>>,
}

#[derive(Debug)]
struct Sleeper {
    until: Instant,
    waker: Waker,
}

/// Reversed order: the earliest is the greatest, because the heap pops the greatest.
impl Ord for Sleeper {
    fn cmp(&self, other: &Sleeper) -> Ordering {
        other.until.cmp(&self.until)
    }
}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Sleeper) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Sleeper) -> bool {
        self.until == other.until
    }
}

impl Eq for Sleeper {}

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
                let sleeper = Sleeper { until: at, waker: context.waker().clone() };
                self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).push(sleeper);
            }
            Poll::Pending
        })
        .await;
    }

    /// Wakes due sleepers, forever; yields to the rest of the runtime between checks.
    pub(crate) async fn spin(&self) {
        loop {
            while let Some(sleeper) = self.next_due() {
                sleeper.waker.wake();
            }
            tokio::task::yield_now().await;
        }
    }

    fn next_due(&self) -> Option<Sleeper> {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        match sleepers.peek() {
            Some(sleeper) if sleeper.until <= Instant::now() => sleepers.pop(),
            _ => None,
        }
    }
}
