//! Limits the cost that clients can cause in the observers. One memory budget per process gives each connection and
//! each client address a fair share; decoding credit limits the work of each connection.
//!
//! Memory is charged by the bytes actually held. A connection may hold at most as many bytes as are still free (the
//! dynamic threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998), and all connections of one
//! address together at most eight times as many. Connections that hold much for an incomplete request leave a quarter of
//! the budget to the others. If a claim exceeds these limits, memory of idle connections is taken back first.
//! The memory of a connection without requests is not charged, because it cannot be taken back; the
//! maximum number of connections limits it.

mod credit;
mod reclaim;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use crate::budget::credit::Pool;
use crate::budget::reclaim::{Members, NOWHERE, VICTIMS};
use crate::message::Sender;

pub use credit::Credit;
pub use reclaim::Reclaim;

/// An address may hold this many times as many bytes as are still free. A single client (a gateway) can therefore use
/// eight ninths of the budget, and a new client always finds room.
const OF_FREE: usize = 8;

/// Connections that hold more than [`SMALL`] for an incomplete request leave this part of the budget to the others. Many
/// clients can begin requests at the same moment, when none of them is idle and can give memory back.
const OF_COMPLETE: usize = 4;

/// Enough to observe a request that needs no decoder, in bytes.
const SMALL: usize = 8 * 1024;

/// A budget has no room for the requested amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

/// Memory that clients can make the process hold, in bytes. Clones share the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limit: AtomicUsize,
    held: AtomicUsize,
    refused: AtomicU64,
    decoded: AtomicU64,
    /// The time of the first event.
    epoch: OnceLock<Instant>,
    /// The time of the latest event, in ticks since `epoch`.
    latest: AtomicU32,
    /// Only data path threads lock it.
    table: Mutex<Table>,
}

/// All accounts.
#[derive(Debug, Default)]
struct Table {
    addresses: HashMap<IpAddr, Weak<Address>>,
    members: Members,
}

impl Budget {
    /// A budget of this many bytes.
    pub fn new(limit: usize) -> Budget {
        Budget(Arc::new(Shared {
            limit: AtomicUsize::new(limit),
            held: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            decoded: AtomicU64::new(0),
            epoch: OnceLock::new(),
            latest: AtomicU32::new(0),
            table: Mutex::default(),
        }))
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.0.held.load(Relaxed)
    }

    /// Maximum of [`Budget::held`].
    pub fn limit(&self) -> usize {
        self.0.limit.load(Relaxed)
    }

    /// Changes the maximum. Memory already held is kept.
    pub fn set_limit(&self, limit: usize) {
        self.0.limit.store(limit, Relaxed);
    }

    /// Number of refused memory requests.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// Bytes that content decoders have produced so far, including those of chained decoders.
    pub fn decoded(&self) -> u64 {
        self.0.decoded.load(Relaxed)
    }

    /// The account of a connection from this address. Each received byte earns `ratio` decoded bytes; 0 means no limit.
    pub fn account(&self, address: Option<IpAddr>, ratio: u64) -> Account {
        Account(Arc::new(Holder {
            budget: self.clone(),
            address: address.map(|address| self.address(network(address))),
            held: AtomicUsize::new(0),
            used: AtomicU32::new(0),
            place: AtomicU32::new(NOWHERE),
            incomplete: AtomicBool::new(false),
            pools: [Sender::Client, Sender::Server].map(Pool::new),
            ratio: u32::try_from(ratio).unwrap_or(u32::MAX),
        }))
    }

    /// The shared counter of the bytes that the connections of a network hold.
    fn address(&self, network: IpAddr) -> Arc<Address> {
        let mut table = self.table();
        if let Some(known) = table.addresses.get(&network).and_then(Weak::upgrade) {
            return known;
        }
        let address = Arc::new(Address {
            network,
            held: AtomicUsize::new(0),
            used: AtomicU32::new(0),
            refused: AtomicU64::new(u64::MAX),
        });
        table.addresses.insert(network, Arc::downgrade(&address));
        address
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that identifies a client: an IPv4 address, or the /64 of an IPv6 address.
///
/// A /64 is the smallest network that one client controls as a whole (RFC 7421). Providers assign a /64 to a virtual
/// machine, and a /56 or /48 to a site (RFC 6177). A larger network would count the nodes of one cluster as one client.
/// A client with a /48 has 65,536 shares; memory that it holds without using it is taken back.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64))),
        v4 => v4,
    }
}

/// Cost limits of one connection. Clones share the same account.
#[derive(Clone, Debug)]
pub struct Account(Arc<Holder>);

/// Memory held by the connections of one client.
#[derive(Debug)]
struct Address {
    network: IpAddr,
    held: AtomicUsize,
    /// The time of the last event of any connection, in ticks since the budget's first event.
    used: AtomicU32,
    /// The latest claim for which no memory could be taken back: its time in ticks, and in the lower half the number
    /// of bytes that the address would have held.
    refused: AtomicU64,
}

/// Kept small, because every open connection has one.
#[derive(Debug)]
struct Holder {
    budget: Budget,
    address: Option<Arc<Address>>,
    held: AtomicUsize,
    /// The time of the last event, in ticks since the budget's first event.
    used: AtomicU32,
    /// Index of the owner in `Members`, or [`NOWHERE`].
    place: AtomicU32,
    /// The client has begun a request, and has to send the rest.
    incomplete: AtomicBool,
    /// Decoding credit for the bytes of the client and of the server.
    pools: [Pool; 2],
    /// Decoded bytes that one received byte earns; 0 without a limit.
    ratio: u32,
}

impl Holder {
    /// Bytes that the connections of this address hold.
    fn of_address(&self) -> usize {
        self.address.as_ref().map_or(&self.held, |address| &address.held).load(Relaxed)
    }

    /// The last event of any connection of this address.
    fn address_used(&self) -> u32 {
        self.address.as_ref().map_or(&self.used, |address| &address.used).load(Relaxed)
    }

    fn shares_address(&self, other: &Holder) -> bool {
        match (&self.address, &other.address) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => std::ptr::eq(self, other),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let (address, place) = (self.address.take(), *self.place.get_mut());
        if address.is_none() && place == NOWHERE {
            return;
        }
        let mut table = self.budget.table();
        let member = table.members.leave(place);
        // References are added and dropped only under this lock, so that the last holder removes the address.
        if let Some(address) = address {
            let network = address.network;
            drop(address);
            if table.addresses.get(&network).is_some_and(|known| known.strong_count() == 0) {
                table.addresses.remove(&network);
            }
        }
        drop(table);
        drop(member);
    }
}

impl Account {
    /// An account without limits, for trusted bytes.
    pub fn unlimited() -> Account {
        Budget::new(usize::MAX).account(None, 0)
    }

    /// A share that holds nothing yet.
    pub fn share(&self) -> Share {
        Share { account: self.clone(), bytes: 0 }
    }

    /// Lets other connections take memory back from `owner`, which owns everything that the account holds.
    pub fn set_owner(&self, owner: Weak<Mutex<dyn Reclaim>>) {
        self.0.budget.enter(&self.0, owner);
    }

    /// Records that the connection was used at `at`.
    pub fn touch(&self, at: Instant) {
        let Holder { budget, address, used, .. } = &*self.0;
        let now = reclaim::ticks(budget, at);
        used.store(now, Relaxed);
        // Other threads write these values too, so they are only written when they change.
        for shared in [Some(&budget.0.latest), address.as_ref().map(|address| &address.used)].into_iter().flatten() {
            if shared.load(Relaxed) < now {
                shared.fetch_max(now, Relaxed);
            }
        }
    }

    /// Sets whether the client has to send the rest of a request, so that silence is the client's.
    pub fn set_incomplete(&self, incomplete: bool) {
        self.0.incomplete.store(incomplete, Relaxed);
    }

    /// The decoding credit for bytes of this sender.
    pub fn credit(&self, sender: Sender) -> Credit {
        Credit::new(self, sender)
    }

    /// Records that the connection received this many bytes.
    pub fn earn(&self, sender: Sender, bytes: usize) {
        self.pool(sender).earn(credit::earned(sender, bytes, self.0.ratio));
    }

    fn pool(&self, sender: Sender) -> &Pool {
        &self.0.pools[sender as usize]
    }

    fn ratio(&self) -> u32 {
        self.0.ratio
    }

    fn count_decoded(&self, bytes: usize) {
        self.0.budget.0.decoded.fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes that the connection holds.
    pub fn held(&self) -> usize {
        self.0.held.load(Relaxed)
    }

    /// Bytes held by the connection, by its address and by the process.
    fn levels(&self) -> [Option<&AtomicUsize>; 3] {
        let Holder { budget, address, held, .. } = &*self.0;
        [Some(held), address.as_ref().map(|address| &address.held), Some(&budget.0.held)]
    }

    /// The maximum of all memory held, for a claim of this connection for `bytes` more.
    fn limit(&self, bytes: usize) -> usize {
        let limit = self.0.budget.limit();
        let yields = self.0.incomplete.load(Relaxed) && self.held().saturating_add(bytes) > SMALL;
        if yields { limit - limit / OF_COMPLETE } else { limit }
    }

    fn take(&self, bytes: usize) -> Result<(), Exhausted> {
        if self.try_take(bytes, self.limit(bytes)) || self.search(bytes) {
            return Ok(());
        }
        self.0.budget.0.refused.fetch_add(1, Relaxed);
        Err(Exhausted)
    }

    /// Takes memory back from other connections until there is room.
    fn search(&self, bytes: usize) -> bool {
        let Holder { budget, address, .. } = &*self.0;
        let claim = u32::try_from(self.0.of_address().saturating_add(bytes)).unwrap_or(u32::MAX);
        let now = budget.0.latest.load(Relaxed);
        if let Some(address) = address {
            // The same claim, or a larger one, would be refused again.
            let refused = address.refused.load(Relaxed);
            if (refused >> 32) as u32 == now && refused as u32 <= claim {
                return false;
            }
        }
        // A claim above this is refused even if nobody else holds memory.
        if bytes <= budget.limit() {
            let mut freed = 0;
            for _ in 0..VICTIMS {
                let Some(more) = budget.take_back(&self.0, bytes) else { break };
                freed += more;
                // A claim that has freed what it needs leaves as much to the others as before.
                let limit = if freed >= bytes { budget.limit() } else { self.limit(bytes) };
                if self.try_take(bytes, limit) {
                    return true;
                }
            }
        }
        if let Some(address) = address {
            address.refused.store(u64::from(now) << 32 | u64::from(claim), Relaxed);
        }
        false
    }

    fn try_take(&self, bytes: usize, limit: usize) -> bool {
        let free = limit.saturating_sub(self.0.budget.held());
        let before = self.levels().map(|level| level.map(|held| held.fetch_add(bytes, Relaxed)));
        let [own, address, _] = before;
        let Some(left) = free.checked_sub(bytes) else {
            self.give_back(bytes);
            return false;
        };
        let fits = own.is_none_or(|own| own.saturating_add(bytes) <= free)
            && address.is_none_or(|address| address <= left.saturating_mul(OF_FREE));
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.levels().into_iter().flatten().for_each(|held| {
            held.fetch_sub(bytes, Relaxed);
        });
    }
}

/// A part of the memory that a connection holds; released when dropped.
#[derive(Debug)]
pub struct Share {
    account: Account,
    bytes: usize,
}

impl Share {
    /// Changes the number of bytes held to `bytes`.
    ///
    /// # Errors
    /// When there is no room for more. The number of held bytes is then unchanged.
    pub fn hold(&mut self, bytes: usize) -> Result<(), Exhausted> {
        match bytes.checked_sub(self.bytes) {
            Some(0) => {}
            Some(more) => self.account.take(more)?,
            None => self.account.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Number of bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The account that this share belongs to.
    pub fn account(&self) -> &Account {
        &self.account
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn shares_add_up_and_are_released_on_drop() {
        let budget = Budget::new(100);
        let account = budget.account(None, 1);
        let (mut one, mut other) = (account.share(), account.share());
        assert_eq!(one.hold(30), Ok(()));
        assert_eq!(other.hold(20), Ok(()));
        assert_eq!((budget.held(), account.held()), (50, 50));
        assert_eq!(other.hold(40), Err(Exhausted));
        assert_eq!((budget.held(), account.held(), budget.refused()), (50, 50, 1));
        assert_eq!(one.hold(10), Ok(()));
        drop((one, other));
        assert_eq!((budget.held(), account.held()), (0, 0));
    }

    #[test]
    fn one_client_holds_at_most_eight_ninths_and_one_connection_half_of_the_budget() {
        let budget = Budget::new(9000);
        // Ten connections of one address grow in small steps.
        let accounts: Vec<Account> = (0..10).map(|_| budget.account(address(1), 1)).collect();
        let mut shares: Vec<Share> = accounts.iter().map(Account::share).collect();
        (0..1000).for_each(|step| {
            shares[0].hold(step * 10).ok();
        });
        assert_eq!(shares[0].bytes(), 4500);
        for _ in 0..1000 {
            for share in &mut shares {
                share.hold(share.bytes() + 10).ok();
            }
        }
        assert_eq!(budget.held(), 8000);
        assert_eq!(budget.account(address(1), 1).share().hold(20), Err(Exhausted), "a small one of the same address");
        assert_eq!(budget.account(address(2), 1).share().hold(1000), Ok(()));
    }

    #[test]
    fn incomplete_requests_leave_a_quarter_of_the_budget_to_complete_ones() {
        let budget = Budget::new(400_000);
        // No connection is idle, so that nothing can be taken back.
        let accounts: Vec<Account> = (0..200).map(|at| budget.account(address(at), 1)).collect();
        let mut shares: Vec<Share> = accounts.iter().map(Account::share).collect();
        accounts.iter().for_each(|account| account.set_incomplete(true));
        for share in &mut shares {
            share.hold(10_000).ok();
        }
        assert_eq!(budget.held(), 300_000);
        let small = budget.account(address(200), 1);
        small.set_incomplete(true);
        assert_eq!(small.share().hold(SMALL), Ok(()), "needs no decoder");
        assert_eq!(budget.account(address(201), 1).share().hold(45_000), Ok(()));
    }

    #[test]
    fn ipv6_clients_count_by_64_bit_prefix() {
        let budget = Budget::new(900);
        let holds = |address: &str, bytes| {
            let mut share = budget.account(Some(address.parse().unwrap()), 1).share();
            share.hold(bytes).map(|()| share)
        };
        // Two addresses of one /64 share a limit.
        let _first = holds("2001:db8:0:1::1", 450).unwrap();
        let _second = holds("2001:db8:0:1:ffff::2", 350).unwrap();
        assert!(holds("2001:db8:0:1:8000::3", 1).is_err());
        // A /64 of the same /56, /60 and /63 has its own limit.
        for other in ["2001:db8:0:0::1", "2001:db8:0:2::1", "2001:db8:0:11::1", "2001:db8:0:101::1"] {
            assert!(holds(other, 50).is_ok(), "{other}");
        }
    }

    #[test]
    fn many_greedy_connections_leave_room_for_a_new_one() {
        let budget = Budget::new(1000);
        let accounts: Vec<Account> = (0..9).map(|_| budget.account(None, 1)).collect();
        let mut shares: Vec<Share> = accounts.iter().map(Account::share).collect();
        let mut held = vec![0; shares.len()];
        for _ in 0..1000 {
            for (share, held) in shares.iter_mut().zip(&mut held) {
                *held += usize::from(share.hold(*held + 1).is_ok());
            }
        }
        // Each connection holds as much as is still free.
        assert_eq!(held, vec![100; 9]);
        assert_eq!(budget.account(None, 1).share().hold(100), Ok(()));
    }

    #[test]
    fn connections_of_an_address_that_end_at_the_same_time_remove_it() {
        let budget = Budget::new(100);
        for _ in 0..2000 {
            let accounts = [(); 2].map(|()| budget.account(address(1), 1));
            let start = Barrier::new(2);
            thread::scope(|scope| {
                for account in accounts {
                    let start = &start;
                    scope.spawn(move || {
                        start.wait();
                        drop(account);
                    });
                }
            });
            assert_eq!(budget.table().addresses.len(), 0);
        }
    }

    #[test]
    fn addresses_are_removed_with_their_last_connection() {
        let budget = Budget::new(100);
        let mapped = Some("::ffff:192.0.2.1".parse().unwrap());
        let (one, two) = (budget.account(address(1), 1), budget.account(mapped, 1));
        let v6 = |text: &str| budget.account(Some(text.parse().unwrap()), 1);
        let (three, four) = (v6("2001:db8::1"), v6("2001:db8::ffff:2"));
        assert_eq!(budget.table().addresses.len(), 2);
        drop((one, three));
        assert_eq!(budget.table().addresses.len(), 2);
        drop((two, four));
        assert_eq!(budget.table().addresses.len(), 0);
    }

    #[test]
    fn account_takes_no_more_than_64_bytes_per_connection() {
        // Includes the two counters of the `Arc`.
        assert!(size_of::<Holder>() + 16 <= 64, "{}", size_of::<Holder>());
    }
}
