//! Limits the cost that clients can cause in the observers. One memory budget per process gives each connection and
//! each client address a fair share; a work budget limits each connection.
//!
//! Memory is charged by the bytes actually held. A connection may hold at most as many bytes as are still free (the
//! dynamic threshold of Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). The same limit applies to
//! the sum of all connections of one address, but small connections are exempt from it. One connection can therefore
//! hold at most half of the budget, and the most expensive clients are refused first.
//!
//! Decoding is limited by credit: each received byte allows the connection a number of decoded bytes.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A connection that holds at most this many bytes is not limited by other connections of its address, because the
/// address may be that of a gateway.
const SMALL: usize = 128 * 1024;

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
    /// Bytes held by all connections of an address. Only data path threads lock it.
    addresses: Mutex<HashMap<IpAddr, Weak<Address>>>,
}

impl Budget {
    /// A budget of this many bytes.
    pub fn new(limit: usize) -> Budget {
        Budget(Arc::new(Shared {
            limit: AtomicUsize::new(limit),
            held: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            decoded: AtomicU64::new(0),
            addresses: Mutex::default(),
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
        let address = address.map(|address| self.address(network(address)));
        Account(Arc::new(Holder { budget: self.clone(), address, held: AtomicUsize::new(0), work: Work::new(ratio) }))
    }

    /// The shared counter of the bytes that the connections of a network hold.
    fn address(&self, network: IpAddr) -> Arc<Address> {
        let mut addresses = self.addresses();
        if let Some(known) = addresses.get(&network).and_then(Weak::upgrade) {
            return known;
        }
        let address = Arc::new(Address { network, held: AtomicUsize::new(0) });
        addresses.insert(network, Arc::downgrade(&address));
        address
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<IpAddr, Weak<Address>>> {
        self.0.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that identifies a client: an IPv4 address, or the /64 of an IPv6 address (RFC 6177 gives each site at
/// least a /64).
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
}

/// Kept small, because every open connection has one.
#[derive(Debug)]
struct Holder {
    budget: Budget,
    address: Option<Arc<Address>>,
    held: AtomicUsize,
    work: Work,
}

impl Drop for Holder {
    fn drop(&mut self) {
        let Some(address) = self.address.take() else { return };
        // References are added and dropped only under this lock, so that the last holder removes the address.
        let mut addresses = self.budget.addresses();
        let network = address.network;
        drop(address);
        if addresses.get(&network).is_some_and(|known| known.strong_count() == 0) {
            addresses.remove(&network);
        }
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

    /// Records that the connection received this many bytes.
    pub fn earn(&self, bytes: usize) {
        self.0.work.earn(bytes);
    }

    /// Records that a content decoder produced this many bytes, at the cost of decoding `cost` bytes.
    ///
    /// # Errors
    /// When the connection's credit is then negative.
    pub fn decoded(&self, bytes: usize, cost: usize) -> Result<(), Exhausted> {
        self.0.budget.0.decoded.fetch_add(bytes as u64, Relaxed);
        self.spend(cost)
    }

    /// Charges for work that is about to begin, as the cost of decoding this many bytes.
    ///
    /// # Errors
    /// When the connection's credit is already negative. Nothing is charged then.
    pub fn begin(&self, bytes: usize) -> Result<(), Exhausted> {
        if self.0.work.has_credit() { self.spend(bytes) } else { Err(Exhausted) }
    }

    /// Charges for finished work, as the cost of decoding this many bytes.
    ///
    /// # Errors
    /// When the connection's credit is then negative.
    pub fn spend(&self, bytes: usize) -> Result<(), Exhausted> {
        self.0.work.spend(bytes)
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

    fn take(&self, bytes: usize) -> Result<(), Exhausted> {
        let budget = &self.0.budget;
        let free = budget.limit().saturating_sub(budget.held());
        let before = self.levels().map(|level| level.map(|held| held.fetch_add(bytes, Relaxed)));
        let [own, address, _] = before;
        let is_within = |held: Option<usize>, limit: usize| held.is_none_or(|held| held.saturating_add(bytes) <= limit);
        if bytes <= free && is_within(own, free) && (is_within(own, SMALL) || is_within(address, free)) {
            return Ok(());
        }
        self.give_back(bytes);
        budget.0.refused.fetch_add(1, Relaxed);
        Err(Exhausted)
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

/// Initial credit of a connection: enough for a whole short response at any compression ratio.
const INITIAL: i32 = 32 * 1024;

/// Maximum credit. Limits how many bytes a thread decodes for one read, however many bytes were received before.
const MAXIMUM: i32 = 512 * 1024;

/// The number of bytes that a connection may still decode. It can become negative, because some costs are known only
/// afterwards; received bytes must then restore the credit before further work.
#[derive(Debug)]
struct Work {
    credit: AtomicI32,
    /// Decoded bytes that one received byte earns; 0 without a limit.
    ratio: u32,
}

impl Work {
    fn new(ratio: u64) -> Work {
        Work { credit: AtomicI32::new(INITIAL), ratio: u32::try_from(ratio).unwrap_or(u32::MAX) }
    }

    /// Adds credit for received bytes. Only the connection's thread calls this function and [`Work::spend`], so `load`
    /// and `store` need not be one atomic operation.
    fn earn(&self, bytes: usize) {
        let earned = i32::try_from((bytes as u64).saturating_mul(self.ratio.into())).unwrap_or(i32::MAX);
        self.credit.store(self.credit.load(Relaxed).saturating_add(earned).min(MAXIMUM), Relaxed);
    }

    /// True while the credit is not negative.
    fn has_credit(&self) -> bool {
        self.ratio == 0 || self.credit.load(Relaxed) >= 0
    }

    /// Charges this many bytes.
    fn spend(&self, bytes: usize) -> Result<(), Exhausted> {
        if self.ratio == 0 {
            return Ok(());
        }
        let credit = self.credit.load(Relaxed).saturating_sub_unsigned(u32::try_from(bytes).unwrap_or(u32::MAX));
        self.credit.store(credit, Relaxed);
        if credit >= 0 { Ok(()) } else { Err(Exhausted) }
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
    fn one_client_holds_at_most_half_of_the_budget() {
        let budget = Budget::new(100 * SMALL);
        // Ten connections of one address grow in small steps.
        let accounts: Vec<Account> = (0..10).map(|_| budget.account(address(1), 1)).collect();
        let mut shares: Vec<Share> = accounts.iter().map(Account::share).collect();
        let step = SMALL / 8;
        for _ in 0..1000 {
            for share in &mut shares {
                share.hold(share.bytes() + step).ok();
            }
        }
        assert_eq!(budget.held(), 50 * SMALL);
        assert_eq!(budget.account(address(2), 1).share().hold(25 * SMALL), Ok(()));
        assert_eq!(budget.account(address(1), 1).share().hold(SMALL), Ok(()), "small, from the same address");
        assert_eq!(budget.account(address(1), 1).share().hold(SMALL + 1), Err(Exhausted));
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
            assert_eq!(budget.addresses().len(), 0);
        }
    }

    #[test]
    fn addresses_are_removed_with_their_last_connection() {
        let budget = Budget::new(100);
        let mapped = Some("::ffff:192.0.2.1".parse().unwrap());
        let (one, two) = (budget.account(address(1), 1), budget.account(mapped, 1));
        let v6 = |text: &str| budget.account(Some(text.parse().unwrap()), 1);
        let (three, four) = (v6("2001:db8::1"), v6("2001:db8::ffff:2"));
        assert_eq!(budget.addresses().len(), 2);
        drop((one, three));
        assert_eq!(budget.addresses().len(), 2);
        drop((two, four));
        assert_eq!(budget.addresses().len(), 0);
    }

    #[test]
    fn received_bytes_earn_decoded_bytes_up_to_the_maximum() {
        let work = Work::new(32);
        assert_eq!(work.spend(INITIAL as usize), Ok(()));
        assert_eq!(work.spend(1), Err(Exhausted), "nothing is left");
        work.earn(10);
        assert_eq!(work.spend(319), Ok(()));
        assert_eq!(work.spend(1), Err(Exhausted));
        work.earn(usize::MAX);
        assert_eq!(work.spend(MAXIMUM as usize), Ok(()));
        assert_eq!(work.spend(1), Err(Exhausted));
    }

    #[test]
    fn debt_must_be_earned_before_further_work() {
        let work = Work::new(2);
        assert_eq!(work.spend(INITIAL as usize + 1000), Err(Exhausted));
        work.earn(499);
        assert_eq!(work.spend(0), Err(Exhausted));
        work.earn(1);
        assert_eq!(work.spend(0), Ok(()));
    }

    #[test]
    fn account_takes_no_more_than_48_bytes_per_connection() {
        // Includes the two counters of the `Arc`.
        assert!(size_of::<Holder>() + 16 <= 48, "{}", size_of::<Holder>());
    }
}
