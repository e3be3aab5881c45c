//! Takes memory back from idle connections when the budget is short.
//!
//! A claim examines a few connections in turn, and takes from the one whose address holds the most memory (push-out, as
//! in longest queue drop), there from the connection that is idle for the longest time. If all connections of an address
//! are idle, its memory counts more: after a second, nine times. The memory of a connection whose client has to send the
//! rest of a request counts more with the silence of this connection alone, and much faster: such clients rarely pause.
//! A claimant can take from an address with a higher weight than its own address would then hold, so that active
//! addresses get equal shares, and an address without memory always gets some. It takes first from clients that pause in
//! the middle of a request. Only idle connections give up memory to
//! one whose client has to send the rest of a request: responses do not wait for clients that only begin requests.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::budget::{Budget, Holder};

/// The owner of memory that another thread can take back between two calls.
pub trait Reclaim: Send {
    /// Gives up memory that is charged to the budget. Must not block, and must not take memory from the budget.
    fn give_up(&mut self);
}

/// Time units per second of `Holder::used`.
const TICKS: u32 = 16;

/// Weight that each second without any event adds to the memory of an address.
const PER_SECOND: u32 = 8;

/// The same for a connection whose client has to send the rest of a request.
const INCOMPLETE_PER_SECOND: u32 = 16 * PER_SECOND;

/// A connection that is idle for this long gives up its memory to any claimant: its client or server is probably gone.
const DEAD: u32 = 300 * TICKS;

/// The same for a connection whose client has to send the rest of a request.
const INCOMPLETE_DEAD: u32 = 10 * TICKS;

/// Number of connections that are examined at a time, and maximum number of times per claim.
const EXAMINED: usize = 32;
const ROUNDS: usize = 4;

/// Maximum number of connections that give up memory for one claim.
pub(super) const VICTIMS: usize = 64;

/// `Holder::place` of an account that cannot give up memory.
pub(super) const NOWHERE: u32 = u32::MAX;

/// The connections that can give up memory, in the order in which they are examined.
#[derive(Debug, Default)]
pub(super) struct Members {
    places: Vec<Option<Member>>,
    free: Vec<u32>,
    next: usize,
}

#[derive(Clone)]
struct Member {
    holder: Weak<Holder>,
    owner: Weak<Mutex<dyn Reclaim>>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}

impl Members {
    fn enter(&mut self, member: Member) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        if let Some(free) = self.places.get_mut(place as usize) {
            *free = Some(member);
        }
        place
    }

    /// Removes a member. The returned value must be dropped without the lock.
    pub(super) fn leave(&mut self, place: u32) -> impl Sized + use<> {
        let member = self.places.get_mut(place as usize).and_then(Option::take);
        if member.is_some() {
            self.free.push(place);
        }
        member
    }

    /// The next members to examine, at equal distances.
    fn next(&mut self) -> Vec<(Arc<Holder>, Member)> {
        let length = self.places.len().max(1);
        let distance = length.div_ceil(EXAMINED);
        let places = (0..length / distance).map(|at| (self.next + at * distance) % length);
        let members = places.filter_map(|place| self.places.get(place)?.as_ref());
        let found = members.filter_map(|member| Some((member.holder.upgrade()?, member.clone()))).collect();
        self.next = (self.next + 1) % length;
        found
    }
}

/// Time since the first event of the budget, in ticks. Times of a capture file may be centuries apart: the value
/// saturates.
pub(super) fn ticks(budget: &Budget, at: Instant) -> u32 {
    let since: Duration = at.saturating_duration_since(*budget.0.epoch.get_or_init(|| at));
    let part = since.subsec_nanos() / (1_000_000_000 / TICKS);
    let ticks = since.as_secs().saturating_mul(TICKS.into()).saturating_add(part.into());
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

impl Budget {
    /// Adds an account whose memory can be taken back.
    pub(super) fn enter(&self, holder: &Arc<Holder>, owner: Weak<Mutex<dyn Reclaim>>) {
        let member = Member { holder: Arc::downgrade(holder), owner };
        let place = self.table().members.enter(member);
        holder.place.store(place, Relaxed);
    }

    /// Takes memory back from another connection, to give `bytes` to this one. Returns the number of bytes freed.
    pub(super) fn take_back(&self, claimant: &Holder, bytes: usize) -> Option<usize> {
        let claim = claimant.of_address().saturating_add(bytes);
        let from_incomplete = claimant.incomplete.load(Relaxed);
        for _ in 0..ROUNDS {
            let now = self.0.latest.load(Relaxed);
            // The holders are dropped after the lock is released, because dropping the last reference locks again.
            let examined = self.table().members.next();
            let weights = examined.iter().filter_map(|(holder, member)| {
                let idle = now.saturating_sub(holder.used.load(Relaxed));
                let incomplete = holder.incomplete.load(Relaxed);
                let (unused, per_second, dead) = if incomplete {
                    (idle, INCOMPLETE_PER_SECOND, INCOMPLETE_DEAD)
                } else {
                    (now.saturating_sub(holder.address_used()), PER_SECOND, DEAD)
                };
                let weight =
                    holder.of_address() as u128 * u128::from(TICKS + per_second * unused.min(DEAD)) / u128::from(TICKS);
                let yields = idle >= TICKS || incomplete || !from_incomplete;
                let wins = idle >= dead || yields && !holder.shares_address(claimant) && weight > claim as u128;
                let pauses = incomplete && idle > 0;
                (wins && holder.held.load(Relaxed) > 0).then_some(((pauses, weight, idle), holder, member))
            });
            if let Some((_, holder, member)) = weights.max_by_key(|(key, ..)| *key) {
                let before = holder.held.load(Relaxed);
                // An observer that is locked now is in use.
                if let Some(owner) = member.owner.upgrade()
                    && let Ok(mut owner) = owner.try_lock()
                {
                    owner.give_up();
                }
                // What is left is taken only after the memory of the others.
                holder.used.store(now, Relaxed);
                let freed = before.saturating_sub(holder.held.load(Relaxed));
                if freed > 0 {
                    return Some(freed);
                }
            }
        }
        None
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests may read the clock")]
mod tests {
    use super::*;
    use crate::budget::{Account, Exhausted, Share};
    use std::net::IpAddr;

    struct Owner(Share);

    impl Reclaim for Owner {
        fn give_up(&mut self) {
            self.0.hold(0).unwrap();
        }
    }

    /// A connection of this address, last used at `at`, that tries to hold `bytes`.
    fn connection(budget: &Budget, address: &str, at: Instant, bytes: usize) -> (Arc<Mutex<Owner>>, bool) {
        let account = budget.account(Some(address.parse().unwrap()), 1);
        account.touch(at);
        let owner = Arc::new(Mutex::new(Owner(account.share())));
        account.set_owner(Arc::downgrade(&owner) as Weak<Mutex<dyn Reclaim>>);
        let holds = owner.lock().unwrap().0.hold(bytes).is_ok();
        (owner, holds)
    }

    #[test]
    fn ticks_saturate() {
        let (budget, start) = (Budget::new(1), Instant::now());
        let at = |seconds| ticks(&budget, start + Duration::from_secs(seconds));
        assert_eq!((ticks(&budget, start), at(1), at(3)), (0, TICKS, 3 * TICKS));
        let century = 100 * 365 * 24 * 3600;
        assert_eq!((at(century), at(2 * century)), (u32::MAX, u32::MAX));
        // The last second before the limit, and a part of a second.
        let last = Duration::from_secs(u64::from(u32::MAX / TICKS));
        assert_eq!(ticks(&budget, start + last + Duration::from_millis(999)), u32::MAX);
    }

    fn held(owner: &Mutex<Owner>) -> usize {
        owner.lock().unwrap().0.bytes()
    }

    fn account_of(owner: &Mutex<Owner>) -> Account {
        owner.lock().unwrap().0.account().clone()
    }

    fn filled(
        budget: &Budget,
        addresses: impl Iterator<Item = String>,
        at: Instant,
        bytes: usize,
    ) -> Vec<Arc<Mutex<Owner>>> {
        let mut all = Vec::new();
        for address in addresses {
            match connection(budget, &address, at, bytes) {
                (owner, true) => all.push(owner),
                (_, false) => break,
            }
        }
        all
    }

    #[test]
    fn idle_memory_of_many_addresses_is_taken_back_for_a_new_address() {
        for prefix in ["127.0.", "2001:db8:0:"] {
            let (budget, start) = (Budget::new(1 << 20), Instant::now());
            let of = |at: usize| match prefix {
                "127.0." => format!("127.0.{}.{}", at / 250, at % 250),
                v6 => format!("{v6}{at:x}::1"),
            };
            let idle = filled(&budget, (0..1000).map(of), start, 4000);
            assert!(idle.len() > 200, "{prefix}: {}", idle.len());
            let later = start + Duration::from_secs(10);
            // Ten connections of one new address, at once.
            let new: Vec<_> = (0..10).map(|_| connection(&budget, "192.0.2.1", later, 4000)).collect();
            assert!(new.iter().all(|(_, holds)| *holds), "{prefix}");
            let lost = idle.iter().filter(|owner| held(owner) == 0).count();
            assert!((1..=14).contains(&lost), "{prefix}: {lost}");
            assert!(budget.held() <= budget.limit());
        }
    }

    #[test]
    fn one_address_with_many_small_connections_leaves_a_share_to_each_new_address() {
        let (budget, start) = (Budget::new(1 << 20), Instant::now());
        let hostile = filled(&budget, (0..2000).map(|_| "127.0.0.1".to_owned()), start, 1000);
        assert!(budget.held() > budget.limit() * 8 / 10, "a single client may use nearly everything");
        let mut regular = Vec::new();
        for at in 0..3 {
            for _ in 0..200 {
                let (owner, holds) = connection(&budget, &format!("192.0.2.{at}"), start, 1000);
                assert!(holds, "address {at}");
                regular.push(owner);
            }
        }
        assert!(regular.iter().all(|owner| held(owner) == 1000), "smaller shares are not taken");
        assert!(hostile.iter().any(|owner| held(owner) == 0));
        let more = budget.account(Some("127.0.0.1".parse().unwrap()), 1).share().hold(300_000);
        assert_eq!(more, Err(Exhausted), "an address above its share takes nothing from smaller ones");
    }

    #[test]
    fn incomplete_requests_take_no_memory_from_responses() {
        let (budget, start) = (Budget::new(1 << 20), Instant::now());
        let (response, holds) = connection(&budget, "192.0.2.1", start, 300_000);
        assert!(holds);
        let many = |at: usize| {
            let (owner, _) = connection(&budget, &format!("127.0.{}.{}", at / 250, at % 250), start, 0);
            account_of(&owner).set_incomplete(true);
            owner.lock().unwrap().0.hold(20_000).ok();
            owner
        };
        let incomplete: Vec<_> = (0..200).map(many).collect();
        assert_eq!(held(&response), 300_000);
        assert!(incomplete.iter().filter(|owner| held(owner) > 0).count() > 20);
        let next = start + Duration::from_millis(100);
        assert!(connection(&budget, "192.0.2.2", next, 10_000).1, "a new request takes memory from them");
        assert_eq!(held(&response), 300_000);
    }

    #[test]
    fn incomplete_request_gets_memory_of_one_idle_connection_when_complete_requests_hold_most() {
        let (budget, start) = (Budget::new(1 << 20), Instant::now());
        let idle: Vec<_> =
            (1..=3).flat_map(|at| filled(&budget, (0..100).map(|_| format!("127.0.0.{at}")), start, 10_000)).collect();
        assert!(budget.held() > budget.limit() * 9 / 10, "{}", budget.held());
        let kept = || idle.iter().filter(|owner| held(owner) > 0).count();
        let before = kept();
        let (new, _) = connection(&budget, "192.0.2.1", start + Duration::from_secs(2), 0);
        account_of(&new).set_incomplete(true);
        assert_eq!(new.lock().unwrap().0.hold(10_000), Ok(()));
        assert_eq!(kept(), before - 1);
    }

    #[test]
    fn least_recently_used_connection_of_an_address_gives_up_first() {
        let (budget, start) = (Budget::new(100_000), Instant::now());
        let second = Duration::from_secs(1);
        let old = filled(&budget, (0..20).map(|_| "127.0.0.1".to_owned()), start, 4000);
        assert_eq!(old.len(), 20);
        let fresh = [3, 7, 11].map(|at: usize| at);
        fresh.iter().for_each(|at| account_of(&old[*at]).touch(start + 5 * second));
        let new = filled(&budget, (0..12).map(|_| "192.0.2.1".to_owned()), start + 5 * second, 4000);
        assert!(new.len() >= 9, "{}", new.len());
        assert!(fresh.iter().all(|at| held(&old[*at]) == 4000));
    }

    #[test]
    fn address_takes_only_dead_memory_from_itself() {
        let (budget, start) = (Budget::new(100_000), Instant::now());
        let own = filled(&budget, (0..100).map(|_| "127.0.0.1".to_owned()), start, 4000);
        assert!(!own.is_empty());
        let after = |seconds| connection(&budget, "127.0.0.1", start + Duration::from_secs(seconds), 4000).1;
        assert!(!after(100), "requests that wait are not given up for further requests of the same address");
        assert!(after(301));
    }

    #[test]
    fn owner_in_use_gives_up_nothing_and_its_end_frees_its_place() {
        let (budget, start) = (Budget::new(20_000), Instant::now());
        let (owner, holds) = connection(&budget, "127.0.0.1", start, 9000);
        assert!(holds);
        let in_use = owner.lock().unwrap();
        let late = start + Duration::from_secs(400);
        assert!(!connection(&budget, "192.0.2.1", late, 11_500).1);
        drop(in_use);
        assert_eq!(held(&owner), 9000);
        drop(owner);
        assert_eq!(budget.held(), 0);
        let table = budget.table();
        assert_eq!(table.members.free.len(), table.members.places.len());
    }

    #[test]
    fn claim_is_searched_again_when_it_is_smaller_or_time_has_passed() {
        let (budget, start) = (Budget::new(10_000), Instant::now());
        let (_small, holds) = connection(&budget, "127.0.0.1", start, 4000);
        assert!(holds);
        let claimant = budget.account(Some(IpAddr::from([192, 0, 2, 1])), 1);
        let claims = |bytes, at| {
            claimant.touch(at);
            let next = || budget.table().members.next;
            let before = next();
            assert_eq!(claimant.share().hold(bytes), Err(Exhausted));
            next() != before
        };
        // The rounds of a search do not end where they began.
        let _others = ["127.0.0.3", "127.0.0.4"].map(|address| connection(&budget, address, start, 10));
        assert!(claims(7000, start));
        assert!(!claims(7000, start) && !claims(7001, start));
        assert!(claims(6999, start));
        assert!(claims(7000, start + Duration::from_millis(100)));
        assert_eq!(budget.refused(), 5);
    }

    #[test]
    fn memory_of_incomplete_requests_counts_more_after_a_moment() {
        let (budget, start) = (Budget::new(1 << 20), Instant::now());
        let of = |at: usize| format!("127.0.{}.{}", at / 250, at % 250);
        // Each address has one upload that pauses, and another connection that is active.
        let mut uploads = Vec::new();
        let mut active = Vec::new();
        for at in 0..400 {
            let (owner, holds) = connection(&budget, &of(at), start, 4000);
            if !holds {
                break;
            }
            account_of(&owner).set_incomplete(true);
            uploads.push(owner);
            active.push(connection(&budget, &of(at), start, 0).0);
        }
        assert!(uploads.len() > 200, "{}", uploads.len());
        let later = start + Duration::from_millis(500);
        active.iter().for_each(|owner| account_of(owner).touch(later));
        let new: Vec<_> = (0..20).map(|_| connection(&budget, "192.0.2.1", later, 4000)).collect();
        assert!(new.iter().all(|(_, holds)| *holds));
    }
}
