//! Hands values from the data path to another thread: a bounded queue whose senders wait for no receiver.

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crossbeam_queue::SegQueue;

/// A bounded queue without a lock. A receiver that loses its core in the middle of [`Inbox::drain`] delays no sender: so
/// threads of a lower priority can receive.
pub struct Inbox<T> {
    queue: SegQueue<T>,
    /// Values in the queue, those that are being added included.
    len: AtomicUsize,
    most: usize,
}

impl<T> fmt::Debug for Inbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Inbox<T> {
    /// An empty queue for at most `most` values.
    pub fn new(most: usize) -> Inbox<T> {
        Inbox { queue: SegQueue::new(), len: AtomicUsize::new(0), most }
    }

    /// Adds the value that `make` returns, unless the queue is full. Returns the number of values in it.
    pub fn push(&self, make: impl FnOnce() -> T) -> Option<usize> {
        let before = self.len.fetch_add(1, SeqCst);
        if before >= self.most {
            self.len.fetch_sub(1, SeqCst);
            return None;
        }
        self.queue.push(make());
        Some(before + 1)
    }

    /// The values that are in the queue now, the oldest first. Those that are added meanwhile stay for the next call.
    pub fn drain(&self) -> impl Iterator<Item = T> + '_ {
        (0..self.len()).map_while(|_| {
            let value = self.queue.pop()?;
            self.len.fetch_sub(1, SeqCst);
            Some(value)
        })
    }

    /// Values in the queue.
    pub fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_refuses_and_a_drained_one_takes_again() {
        let inbox = Inbox::new(2);
        assert_eq!([inbox.push(|| 'a'), inbox.push(|| 'b'), inbox.push(|| 'c')], [Some(1), Some(2), None]);
        assert_eq!((inbox.drain().collect::<String>(), inbox.is_empty()), ("ab".to_owned(), true));
        assert_eq!(inbox.push(|| 'd'), Some(1));
    }

    #[test]
    fn every_value_of_several_senders_is_received_once() {
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
