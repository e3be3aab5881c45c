//! A bounded queue from the data path to another thread. Senders never block.

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crossbeam_queue::SegQueue;

/// Bounded lock-free queue. Senders do not wait for a receiver that is preempted in [`Inbox::drain`], so the receiver
/// may be a low-priority thread.
pub struct Inbox<T> {
    queue: SegQueue<T>,
    /// Number of values in the queue, including those being added.
    len: AtomicUsize,
    most: usize,
}

impl<T> fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Inbox<T> {
    /// Creates an empty queue for at most `most` values.
    pub fn new(most: usize) -> Inbox<T> {
        Inbox { queue: SegQueue::new(), len: AtomicUsize::new(0), most }
    }

    /// Adds the value returned by `make`. Returns the new length, or `None` if the queue is full (`make` is then not
    /// called).
    pub fn push(&self, make: impl FnOnce() -> T) -> Option<usize> {
        let before = self.len.fetch_add(1, SeqCst);
        if before >= self.most {
            self.len.fetch_sub(1, SeqCst);
            return None;
        }
        self.queue.push(make());
        Some(before + 1)
    }

    /// Removes the values currently in the queue, oldest first. Values added meanwhile stay for the next call.
    pub fn drain(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len()).map_while(|_| {
            let value = self.queue.pop()?;
            self.len.fetch_sub(1, SeqCst);
            Some(value)
        })
    }

    /// Number of values in the queue.
    pub fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    /// True if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_rejects_values_until_drained() {
        let inbox = Inbox::new(2);
        assert_eq!([inbox.push(|| 'a'), inbox.push(|| 'b'), inbox.push(|| 'c')], [Some(1), Some(2), None]);
        assert_eq!((inbox.drain().collect::<String>(), inbox.is_empty()), ("ab".to_owned(), true));
        assert_eq!(inbox.push(|| 'd'), Some(1));
    }

    #[test]
    fn values_of_concurrent_senders_are_received_once() {
        let inbox = Inbox::new(usize::MAX);
        let mut sum = 0_u64;
        std::thread::scope(|scope| {
            let senders: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (1..=10_000_u64).for_each(|n| assert!(inbox.push(|| n).is_some()))))
                .collect();
            while !senders.iter().all(|sender| sender.is_finished()) {
                sum += inbox.drain().sum::<u64>();
            }
        });
        assert_eq!(sum + inbox.drain().sum::<u64>(), 4 * 50_005_000);
    }
}
