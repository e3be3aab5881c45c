//! Limits decoding by credit: each received byte allows a number of decoded bytes.
//!
//! A connection has one pool of credit for each sender. Most of the credit that the bytes of a body earn moves from the
//! pool to the body itself. A body that decodes to more than that draws the rest from the pool, at most as much as it
//! leaves there. Bodies that cost more than they earn therefore do not stop the other bodies of a shared connection, and
//! the sum of all costs stays limited by the bytes received.

use std::sync::Arc;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

use crate::budget::{Account, Exhausted};
use crate::message::Sender;

/// Initial credit of the pools for requests and for responses. A body may draw half of its pool: enough for a whole
/// short response at any compression ratio. Requests get less, because anyone can send them on many connections.
pub(super) const INITIAL: [i32; 2] = [16 * 1024, 48 * 1024];

/// Maximum credit of a pool or a body before the bytes of a read are added, and maximum credit that one read earns. Limits
/// how many bytes a thread decodes for one read, however many bytes were received before.
pub(super) const MAXIMUM: i32 = 512 * 1024;

/// Two thirds of the credit that the bytes of a body earn belong to the body.
const OF_BODY: (u64, u64) = (2, 3);

/// A number of bytes that may still be decoded. It can become negative, because some costs are known only afterwards;
/// received bytes must then restore the credit before further work.
///
/// Only the connection's thread changes it, so `load` and `store` need not be one atomic operation.
#[derive(Debug)]
pub(super) struct Pool(AtomicI32);

impl Pool {
    pub(super) fn new(sender: Sender) -> Pool {
        Pool(AtomicI32::new(INITIAL[sender as usize]))
    }

    pub(super) fn earn(&self, bytes: u64) {
        let earned = i32::try_from(bytes).unwrap_or(i32::MAX).min(MAXIMUM);
        self.0.store(self.0.load(Relaxed).min(MAXIMUM).saturating_add(earned), Relaxed);
    }

    fn get(&self) -> i32 {
        self.0.load(Relaxed)
    }

    fn add(&self, bytes: i32) {
        self.0.store(self.get().saturating_add(bytes), Relaxed);
    }
}

/// Decoded bytes that received bytes earn, at this many decoded bytes per byte. Request bytes count only a third: unlike
/// streams, requests need no credit for a flush at each event, and anyone can send them.
pub(super) fn earned(sender: Sender, bytes: usize, ratio: u32) -> u64 {
    let counted = match sender {
        Sender::Client => bytes / 3,
        Sender::Server => bytes,
    };
    (counted as u64).saturating_mul(ratio.into())
}

/// The decoding credit of one body, or of all messages of one sender. Clones share the same credit.
#[derive(Clone, Debug)]
pub struct Credit {
    account: Account,
    sender: Sender,
    body: Option<Arc<OfBody>>,
}

/// The part of the credit that belongs to one body.
#[derive(Debug)]
struct OfBody {
    account: Account,
    sender: Sender,
    credit: AtomicI32,
    /// Credit drawn from the pool, less the credit that the body's bytes added to the pool.
    drawn: AtomicI32,
}

impl Drop for OfBody {
    fn drop(&mut self) {
        self.account.pool(self.sender).add(self.credit.load(Relaxed));
    }
}

impl OfBody {
    /// Returns the part of the cost that exceeds the body's credit.
    fn spend(&self, cost: i32) -> i32 {
        let left = self.credit.load(Relaxed).saturating_sub(cost);
        self.credit.store(left.max(0), Relaxed);
        let drawn = left.min(0).saturating_neg();
        self.drawn.store(self.drawn.load(Relaxed).saturating_add(drawn), Relaxed);
        drawn
    }
}

impl Credit {
    pub(super) fn new(account: &Account, sender: Sender) -> Credit {
        Credit { account: account.clone(), sender, body: None }
    }

    /// The account that memory is charged to.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Separates the credit of a body from the rest of the connection.
    pub(crate) fn separate(&mut self) {
        let (account, sender) = (self.account.clone(), self.sender);
        self.body = Some(Arc::new(OfBody { account, sender, credit: AtomicI32::new(0), drawn: AtomicI32::new(0) }));
    }

    /// Moves the body's part of the credit that these bytes of it earned from the pool to the body. The connection has
    /// earned them with [`Account::earn`].
    pub(crate) fn received(&self, bytes: usize) {
        let Some(body) = &self.body else { return };
        let earned = earned(self.sender, bytes, self.account.ratio()).min(MAXIMUM.unsigned_abs().into());
        let own = (earned * OF_BODY.0 / OF_BODY.1) as i32;
        let credit = body.credit.load(Relaxed);
        let moved = own.min(MAXIMUM - credit);
        body.credit.store(credit + moved, Relaxed);
        self.account.pool(self.sender).add(-moved);
        body.drawn.store((body.drawn.load(Relaxed) - (earned as i32 - own)).max(0), Relaxed);
    }

    /// Records that a content decoder produced this many bytes, at the cost of decoding `cost` bytes.
    ///
    /// # Errors
    /// When the credit is then used up.
    pub(crate) fn decoded(&self, bytes: usize, cost: usize) -> Result<(), Exhausted> {
        self.account.count_decoded(bytes);
        self.spend(cost)
    }

    /// Charges for work that is about to begin, as the cost of decoding this many bytes.
    ///
    /// # Errors
    /// When the credit is already used up. Nothing is charged then.
    pub(crate) fn begin(&self, bytes: usize) -> Result<(), Exhausted> {
        let covered = self.body.as_ref().is_some_and(|body| body.credit.load(Relaxed).unsigned_abs() as usize >= bytes);
        if covered || self.may_draw() { self.spend(bytes) } else { Err(Exhausted) }
    }

    /// Charges for finished work, as the cost of decoding this many bytes.
    ///
    /// # Errors
    /// When the credit is then used up.
    pub(crate) fn spend(&self, bytes: usize) -> Result<(), Exhausted> {
        if self.account.ratio() == 0 {
            return Ok(());
        }
        let cost = i32::try_from(bytes).unwrap_or(i32::MAX);
        let drawn = self.body.as_ref().map_or(cost, |body| body.spend(cost));
        self.account.pool(self.sender).add(drawn.saturating_neg());
        if drawn == 0 || self.may_draw() { Ok(()) } else { Err(Exhausted) }
    }

    /// True if the pool has credit for this body.
    fn may_draw(&self) -> bool {
        let drawn = self.body.as_ref().map_or(0, |body| body.drawn.load(Relaxed));
        self.account.ratio() == 0 || self.account.pool(self.sender).get() >= drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    const REQUESTS: i32 = INITIAL[0];
    const RESPONSES: i32 = INITIAL[1];

    fn account(ratio: u64) -> Account {
        Budget::new(usize::MAX).account(None, ratio)
    }

    fn body(account: &Account) -> Credit {
        let mut credit = account.credit(Sender::Server);
        credit.separate();
        credit
    }

    #[test]
    fn received_bytes_earn_decoded_bytes_up_to_the_maximum() {
        let account = account(32);
        let credit = account.credit(Sender::Server);
        assert_eq!(credit.spend(RESPONSES as usize), Ok(()));
        assert_eq!(credit.spend(1), Err(Exhausted), "nothing is left");
        account.earn(Sender::Server, 10);
        assert_eq!(credit.spend(319), Ok(()));
        assert_eq!(credit.spend(1), Err(Exhausted));
        account.earn(Sender::Server, usize::MAX);
        assert_eq!(credit.spend(MAXIMUM as usize - 1), Ok(()));
        assert_eq!(credit.spend(1), Err(Exhausted));
    }

    #[test]
    fn debt_must_be_earned_before_further_work() {
        let account = account(2);
        let credit = account.credit(Sender::Server);
        assert_eq!(credit.spend(RESPONSES as usize + 1000), Err(Exhausted));
        account.earn(Sender::Server, 499);
        assert_eq!(credit.begin(0), Err(Exhausted));
        account.earn(Sender::Server, 1);
        assert_eq!(credit.begin(0), Ok(()));
    }

    #[test]
    fn senders_have_separate_credit_and_request_bytes_earn_a_third() {
        let account = account(24);
        let [client, server] = [Sender::Client, Sender::Server].map(|sender| account.credit(sender));
        assert_eq!(client.spend(usize::MAX), Err(Exhausted));
        assert_eq!(server.spend(RESPONSES as usize), Ok(()));
        account.earn(Sender::Server, 1000);
        assert_eq!(client.begin(0), Err(Exhausted));
        let other = super::tests::account(24).credit(Sender::Client);
        other.account().earn(Sender::Client, 300);
        assert_eq!(other.spend(REQUESTS as usize + 2400), Ok(()));
        assert_eq!(other.spend(1), Err(Exhausted));
    }

    #[test]
    fn body_that_decodes_within_its_own_credit_is_not_stopped_by_others() {
        let account = account(24);
        let (bomb, regular) = (body(&account), body(&account));
        assert_eq!(bomb.spend(1 << 20), Err(Exhausted));
        for _ in 0..1000 {
            account.earn(Sender::Server, 600);
            regular.received(600);
            assert_eq!(regular.begin(600 * 16), Ok(()));
        }
        assert_eq!(body(&account).begin(1), Ok(()), "the rest of the credit has paid the debt");
    }

    #[test]
    fn body_draws_at_most_half_of_the_pool() {
        let account = account(24);
        for left in [RESPONSES / 2, RESPONSES / 4, RESPONSES / 8] {
            let bomb = body(&account);
            let drawn = (0..).take_while(|_| bomb.spend(1).is_ok()).count();
            assert_eq!(drawn, left as usize);
            bomb.account.pool(Sender::Server).add(1);
        }
    }

    #[test]
    fn bodies_cost_no_more_than_the_connection_earns() {
        let account = account(24);
        let mut spent = 0;
        for _ in 0..1000 {
            account.earn(Sender::Server, 100);
            let body = body(&account);
            body.received(80);
            while body.begin(512).is_ok() {
                spent += 512;
            }
        }
        assert!(spent <= RESPONSES as usize + 1000 * 100 * 24 + 512, "{spent}");
        assert!(spent >= 1000 * 100 * 24 - MAXIMUM as usize, "{spent}");
    }
}
