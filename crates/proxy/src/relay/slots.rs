//! Open connections by slot, and the order in which they are closed to make room for new ones.
//!
//! A connection that waits for its client is in one of two queues: those without a complete request are closed before
//! idle ones that have been served. Connections with a request in progress are in no queue. The queues are split by
//! client address, and the longest one loses its oldest connection: a client with many connections displaces its own.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::task::Waker;

use tokometer_observe::input::Activity;

/// Number of groups of client addresses. Addresses of the same group share their queues.
const GROUPS: usize = 64;

/// Number of queues of a group: incomplete, idle.
const QUEUES: usize = 2;

/// Connections that have waited for a shorter time are closed only if no others wait: their client may have a slow
/// network.
const SETTLED_MS: u32 = 1_000;

/// Connections that have waited for a shorter time are not closed: their request may be on its way.
const FRESH_MS: u32 = 200;

/// End of a queue.
const NONE: u32 = u32::MAX;

/// All open connections. Each operation takes constant time.
#[derive(Debug)]
pub(super) struct Slots {
    /// Freed slots are reused.
    slots: Vec<Slot>,
    free: Vec<u32>,
    groups: Box<[[Queue; QUEUES]; GROUPS]>,
    /// Number of evicted connections that have not closed yet.
    evicted: usize,
    hasher: RandomState,
}

/// One open connection, or a free slot.
#[derive(Debug)]
struct Slot {
    waker: Option<Waker>,
    /// Neighbours in the queue.
    previous: u32,
    next: u32,
    /// When the connection was added to the queue, in milliseconds.
    since: u32,
    group: u8,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In this queue of its group.
    Waits(u8),
    /// A request is in progress, or the slot counts other work.
    Busy,
    /// Asked to close.
    Evicted,
}

/// Connections, oldest first.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    length: u32,
}

const EMPTY: Queue = Queue { first: NONE, last: NONE, length: 0 };

impl Default for Slots {
    fn default() -> Slots {
        let groups = Box::new([[EMPTY; QUEUES]; GROUPS]);
        Slots { slots: Vec::new(), free: Vec::new(), groups, evicted: 0, hasher: RandomState::new() }
    }
}

impl Slots {
    /// Number of open connections.
    pub(super) fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of open connections that have not been asked to close.
    pub(super) fn kept(&self) -> usize {
        self.open() - self.evicted
    }

    /// Adds a connection that has not sent a request. Without `now`, the slot counts other work.
    pub(super) fn add(&mut self, client: Option<IpAddr>, now: Option<u32>) -> u32 {
        let group = (self.hasher.hash_one(client.map(network)) % GROUPS as u64) as u8;
        let new = Slot { waker: None, previous: NONE, next: NONE, since: 0, group, state: State::Busy };
        let slot = match self.free.pop() {
            Some(slot) => {
                if let Some(place) = self.slots.get_mut(slot as usize) {
                    *place = new;
                }
                slot
            }
            None => {
                self.slots.push(new);
                (self.slots.len() - 1) as u32
            }
        };
        if let Some(now) = now {
            self.set(slot, Activity::Incomplete, now);
        }
        slot
    }

    /// Frees the slot.
    pub(super) fn remove(&mut self, slot: u32) {
        self.leave(slot);
        if let Some(place) = self.slots.get_mut(slot as usize) {
            place.waker = None;
            self.free.push(slot);
        }
    }

    /// Sets what the connection waits for since `now`. A connection that was asked to close is kept.
    pub(super) fn set(&mut self, slot: u32, activity: Activity, now: u32) {
        self.leave(slot);
        let queue = match activity {
            Activity::Incomplete => 0,
            Activity::Idle => 1,
            Activity::InProgress => return,
        };
        let Some(place) = self.slots.get_mut(slot as usize) else { return };
        let list = &mut self.groups[usize::from(place.group) % GROUPS][queue];
        let last = std::mem::replace(&mut list.last, slot);
        list.length += 1;
        (place.previous, place.next, place.since) = (last, NONE, now);
        place.state = State::Waits(queue as u8);
        match self.slots.get_mut(last as usize) {
            Some(before) => before.next = slot,
            None => list.first = slot,
        }
    }

    /// Selects a connection to close; returns its waker if it has one. `None` if no connection can be closed.
    pub(super) fn evict(&mut self, now: u32) -> Option<Option<Waker>> {
        let choices = [(0, SETTLED_MS), (1, SETTLED_MS), (0, FRESH_MS), (1, FRESH_MS)];
        let slot = choices.into_iter().find_map(|(queue, age)| self.oldest(queue, age, now))?;
        self.leave(slot);
        let place = self.slots.get_mut(slot as usize)?;
        place.state = State::Evicted;
        self.evicted += 1;
        Some(place.waker.clone())
    }

    pub(super) fn is_evicted(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|slot| slot.state == State::Evicted)
    }

    /// Sets the waker of a connection.
    pub(super) fn set_waker(&mut self, slot: u32, waker: Waker) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.waker = Some(waker);
        }
    }

    /// The wakers of all connections.
    pub(super) fn wakers(&self) -> Vec<Waker> {
        self.slots.iter().filter_map(|slot| slot.waker.clone()).collect()
    }

    /// The oldest connection in the longest queue of this kind, of those whose oldest connection waits for `age`.
    fn oldest(&self, queue: usize, age: u32, now: u32) -> Option<u32> {
        let queues = self.groups.iter().map(|group| &group[queue]);
        let waits = |queue: &&Queue| {
            let first = self.slots.get(queue.first as usize);
            first.is_some_and(|first| now.wrapping_sub(first.since) >= age)
        };
        queues.filter(waits).max_by_key(|queue| queue.length).map(|queue| queue.first)
    }

    /// Removes the connection from its queue.
    fn leave(&mut self, slot: u32) {
        let Some(place) = self.slots.get_mut(slot as usize) else { return };
        let (previous, next, group) = (place.previous, place.next, usize::from(place.group) % GROUPS);
        let queue = match std::mem::replace(&mut place.state, State::Busy) {
            State::Waits(queue) => usize::from(queue) % QUEUES,
            State::Busy => return,
            State::Evicted => {
                self.evicted -= 1;
                return;
            }
        };
        let list = &mut self.groups[group][queue];
        list.length -= 1;
        match self.slots.get_mut(previous as usize) {
            Some(before) => before.next = next,
            None => list.first = next,
        }
        match self.slots.get_mut(next as usize) {
            Some(after) => after.previous = previous,
            None => list.last = previous,
        }
    }
}

/// The network of a client: its IPv4 address, or the first 64 bits of its IPv6 address, all of which one host may use.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([127, 0, 0, last]))
    }

    /// The slots that are closed one after another at `now`.
    fn closed(slots: &mut Slots, now: u32) -> Vec<u32> {
        let all = slots.slots.len() as u32;
        let mut closed: Vec<u32> = Vec::new();
        while slots.evict(now).is_some() {
            closed
                .extend((0..all).filter(|slot| slots.is_evicted(*slot) && !closed.contains(slot)).collect::<Vec<_>>());
        }
        closed
    }

    #[test]
    fn incomplete_requests_are_closed_before_idle_connections_and_pending_ones_never() {
        let mut slots = Slots::default();
        let open: Vec<u32> = (0..4).map(|n| slots.add(client(1), Some(n))).collect();
        slots.set(open[0], Activity::InProgress, 10);
        slots.set(open[1], Activity::Idle, 11);
        let other_work = slots.add(None, None);
        assert_eq!(closed(&mut slots, SETTLED_MS + 20), [open[2], open[3], open[1]]);
        assert_eq!((slots.open(), slots.kept()), (5, 2));
        assert!(!slots.is_evicted(open[0]) && !slots.is_evicted(other_work));
    }

    #[test]
    fn connection_that_gets_a_request_is_kept() {
        let mut slots = Slots::default();
        let slot = slots.add(client(1), Some(0));
        assert!(slots.evict(FRESH_MS).is_some() && slots.is_evicted(slot));
        slots.set(slot, Activity::InProgress, FRESH_MS);
        assert!(!slots.is_evicted(slot) && slots.evict(u32::MAX / 2).is_none());
        assert_eq!(slots.kept(), 1);
        slots.remove(slot);
        assert_eq!((slots.open(), slots.kept()), (0, 0));
    }

    #[test]
    fn client_with_the_most_connections_loses_its_oldest() {
        let mut slots = Slots::default();
        let few = slots.add(client(1), Some(0));
        let flood = (2..).find(|last| {
            let group = |last| slots.hasher.hash_one(client(last).map(network)) % GROUPS as u64;
            group(*last) != group(1)
        });
        let many: Vec<u32> = (0..3).map(|n| slots.add(client(flood.unwrap()), Some(n))).collect();
        slots.evict(SETTLED_MS + 3).unwrap();
        assert!(slots.is_evicted(many[0]) && !slots.is_evicted(few));
    }

    #[test]
    fn idle_connection_is_closed_before_one_whose_request_may_be_on_its_way() {
        let mut slots = Slots::default();
        let idle = slots.add(client(1), Some(0));
        slots.set(idle, Activity::Idle, 0);
        let new = slots.add(client(1), Some(SETTLED_MS));
        assert_eq!(closed(&mut slots, SETTLED_MS + 1), [idle]);
        assert_eq!(closed(&mut slots, SETTLED_MS + FRESH_MS), [idle, new]);
    }

    proptest::proptest! {
        #[test]
        fn queues_hold_exactly_the_waiting_connections(
            steps in proptest::collection::vec((0_u8..6, 0_u32..8, 1_u8..4), 0..80),
        ) {
            let mut slots = Slots::default();
            let mut open: Vec<u32> = Vec::new();
            for (now, (step, n, last)) in steps.into_iter().enumerate() {
                let now = now as u32 * FRESH_MS;
                let slot = open.get(n as usize % open.len().max(1)).copied();
                match (step, slot) {
                    (0 | 1, _) => open.push(slots.add(client(last), Some(now))),
                    (2, Some(slot)) => {
                        slots.remove(slot);
                        open.retain(|other| *other != slot);
                    }
                    (3, Some(slot)) => slots.set(slot, Activity::Idle, now),
                    (4, Some(slot)) => slots.set(slot, Activity::InProgress, now),
                    _ => drop(slots.evict(now)),
                }
                let waiting = |slot: &&u32| matches!(slots.slots[**slot as usize].state, State::Waits(_));
                let queued: u32 = slots.groups.iter().flatten().map(|queue| queue.length).sum();
                proptest::prop_assert_eq!(queued as usize, open.iter().filter(waiting).count());
                let evicted = open.iter().filter(|slot| slots.is_evicted(**slot)).count();
                proptest::prop_assert_eq!((slots.open(), slots.kept()), (open.len(), open.len() - evicted));
                for queue in slots.groups.iter().flatten() {
                    let mut links = Vec::new();
                    let mut at = queue.first;
                    while let Some(slot) = slots.slots.get(at as usize) {
                        links.push(at);
                        at = slot.next;
                    }
                    proptest::prop_assert_eq!(links.len(), queue.length as usize);
                    proptest::prop_assert_eq!(links.last().copied().unwrap_or(NONE), queue.last);
                }
            }
        }
    }
}
