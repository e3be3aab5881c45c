//! Lock-free stack of the free slots in the table. It grows to the peak number of slots in use.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

/// No next slot.
const NONE: u32 = u32::MAX;

/// Returned slots, each linked to the one below it, and slots never handed out.
///
/// A Treiber stack over indices. Its head carries a change count against the ABA problem.
#[derive(Debug)]
pub(super) struct Free {
    /// Change count in the upper half, index of the topmost free slot in the lower half.
    head: AtomicU64,
    /// Number of slots ever handed out.
    fresh: AtomicU32,
    most: u32,
}

impl Free {
    /// Creates `most` free slots.
    pub(super) fn new(most: u32) -> Free {
        Free { head: AtomicU64::new(u64::from(NONE)), fresh: AtomicU32::new(0), most: most.min(NONE - 1) }
    }

    /// Takes a free slot; `None` when all are in use. `below` returns the link of a slot.
    pub(super) fn take<'a>(&self, below: impl Fn(u32) -> Option<&'a AtomicU32>) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        while let Some(link) = below(place(head)) {
            let next = after(head, link.load(Ordering::Relaxed));
            match self.head.compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(place(head)),
                Err(now) => head = now,
            }
        }
        let more = |fresh| (fresh < self.most).then_some(fresh + 1);
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()
    }

    /// Returns a slot; `link` is its link.
    pub(super) fn give_back(&self, place_of: u32, link: &AtomicU32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.store(place(head), Ordering::Relaxed);
            let next = after(head, place_of);
            match self.head.compare_exchange_weak(head, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Number of slots ever handed out; higher indices were never used.
    pub(super) fn used(&self) -> u32 {
        self.fresh.load(Ordering::Relaxed)
    }
}

fn place(head: u64) -> u32 {
    head as u32
}

fn after(head: u64, place: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(place)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn links(places: u32) -> Vec<AtomicU32> {
        (0..places).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn slots_are_handed_out_once_and_reused_when_returned() {
        let links = links(3);
        let below = |place: u32| links.get(place as usize);
        let free = Free::new(3);
        let all: HashSet<u32> = std::iter::from_fn(|| free.take(below)).collect();
        assert_eq!((all.len(), free.used()), (3, 3));
        free.give_back(1, &links[1]);
        free.give_back(0, &links[0]);
        assert_eq!([free.take(below), free.take(below), free.take(below)], [Some(0), Some(1), None]);
    }

    #[test]
    fn no_slot_is_held_by_two_threads() {
        const PLACES: u32 = 4;
        let links = links(PLACES);
        let taken: Vec<AtomicBool> = (0..PLACES).map(|_| AtomicBool::new(false)).collect();
        let free = Free::new(PLACES);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let Some(place) = free.take(|place| links.get(place as usize)) else { continue };
                        let mine = &taken[place as usize];
                        assert!(!mine.swap(true, Ordering::Relaxed), "{place} is held by two threads");
                        mine.store(false, Ordering::Relaxed);
                        free.give_back(place, &links[place as usize]);
                    }
                });
            }
        });
        let all: HashSet<u32> = std::iter::from_fn(|| free.take(|place| links.get(place as usize))).collect();
        assert_eq!(all.len(), PLACES as usize, "a slot was lost");
    }
}
