//! A timer without the runtime's resolution of a millisecond.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::Poll;
use std::task::Waker;

use tokio::time::Instant;

/// Who sleeps until when.
#[derive(Debug, Default)]
pub(crate) struct Pacer {
    sleepers: Mutex<BinaryHeap<Sleeper>>,
}

#[derive(Debug)]
struct Sleeper {
    until: Instant,
    waker: Waker,
}

/// The earliest is the greatest, because that is what a heap hands out first.
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
    /// Sleeps until `at`, as long as [`Pacer::spin`] runs.
    pub(crate) async fn sleep_until(&self, at: Instant) {
        let mut asleep = false;
        std::future::poll_fn(|context| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            // A sleeper stays in one task from its first poll to its last, so its waker stays the right one.
            if !asleep {
                asleep = true;
                let sleeper = Sleeper { until: at, waker: context.waker().clone() };
                self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).push(sleeper);
            }
            Poll::Pending
        })
        .await;
    }

    /// Wakes whoever is due, for ever; between two looks everything else on the runtime has its turn.
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
