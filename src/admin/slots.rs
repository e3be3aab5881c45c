//! Slots of the admin server: open connections, eviction, and the number of responses in progress per page.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// Pages that cost time or memory. Probes and the small fixed pages are not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Metrics,
    Requests,
    Snapshot,
    Events,
    Config,
    /// `GET /drain/wait`.
    DrainWait,
    /// `POST /drain?wait`.
    Drain,
}

impl Page {
    /// Maximum number of responses in progress, in total and per client address. A single client cannot use the slots
    /// of the scraper or of the kubelet's preStop request.
    pub(super) fn limits(self) -> (usize, usize) {
        match self {
            Page::Metrics => (4, 2),
            Page::Requests => (2, 2),
            Page::Snapshot | Page::Config => (4, 4),
            Page::Events | Page::Drain => (16, 16),
            Page::DrainWait => (64, 16),
        }
    }
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Slots {
    /// Maximum number of connections without a page in progress.
    max_waiting: usize,
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    next: u64,
    by_id: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    client: IpAddr,
    /// Time when it was accepted or last sent a request.
    since: Instant,
    page: Option<Page>,
    evict: Arc<Notify>,
}

impl Slots {
    pub(super) fn new(max_waiting: usize) -> Arc<Slots> {
        Arc::new(Slots { max_waiting, all: Mutex::default() })
    }

    /// Adds a connection. At the maximum number of waiting connections, closes the oldest one of the address with the
    /// most: clients that send no complete request cannot lock out others.
    pub(super) fn admit(self: &Arc<Self>, client: IpAddr) -> Arc<Slot> {
        let mut all = self.all();
        while all.by_id.values().filter(|entry| entry.page.is_none()).count() >= self.max_waiting
            && let Some(entry) = all.oldest_of_the_largest_client().and_then(|id| all.by_id.remove(&id))
        {
            tracing::warn!(client = %entry.client, "The admin server is at admin.max_connections: closed the oldest idle connection of this client.");
            entry.evict.notify_one();
        }
        let id = all.next;
        all.next += 1;
        let evicted = Arc::new(Notify::new());
        all.by_id.insert(id, Entry { client, since: Instant::now(), page: None, evict: Arc::clone(&evicted) });
        Arc::new(Slot { slots: Arc::clone(self), id, evicted, response: AtomicU8::new(Response::None as u8) })
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    fn oldest_of_the_largest_client(&self) -> Option<u64> {
        let waiting = || self.by_id.iter().filter(|(_, entry)| entry.page.is_none());
        let mut by_client: HashMap<IpAddr, usize> = HashMap::new();
        waiting().for_each(|(_, entry)| *by_client.entry(entry.client).or_default() += 1);
        let most = by_client.values().max().copied()?;
        let of_largest = waiting().filter(|(_, entry)| by_client.get(&entry.client) == Some(&most));
        of_largest.min_by_key(|(_, entry)| entry.since).map(|(id, _)| *id)
    }
}

/// State of a connection's current response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Response {
    /// None, or one without a limited page.
    None,
    /// Its body is not yet completely passed to the connection.
    Whole,
    /// An event stream; the client must read each event in time.
    Events,
    /// Its body is passed to the connection, but possibly not written.
    Handed,
}

/// The slot of one connection. Released when the connection and the page rendered for it have ended.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    evicted: Arc<Notify>,
    /// A [`Response`].
    response: AtomicU8,
}

impl Slot {
    /// Returns when the connection must close.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Records the time of a request.
    pub(super) fn touch(&self) {
        if let Some(entry) = self.slots.all().by_id.get_mut(&self.id) {
            entry.since = Instant::now();
        }
    }

    /// Starts a response of this page; `None` if the maximum is in progress.
    pub(super) fn begin(self: &Arc<Self>, page: Page) -> Option<PageSlot> {
        let (most, most_of_client) = page.limits();
        let mut all = self.slots.all();
        let client = all.by_id.get(&self.id)?.client;
        let mut same = all.by_id.values().filter(|entry| entry.page == Some(page)).map(|entry| entry.client);
        let (of_client, others): (Vec<IpAddr>, Vec<IpAddr>) = same.by_ref().partition(|other| *other == client);
        if of_client.len() >= most_of_client || of_client.len() + others.len() >= most {
            return None;
        }
        all.by_id.get_mut(&self.id)?.page = Some(page);
        let response = if page == Page::Events { Response::Events } else { Response::Whole };
        self.response.store(response as u8, Ordering::Release);
        Some(PageSlot(Arc::clone(self)))
    }

    /// Called when all data so far is written to the socket. True if that was a response or an event of a stream: the
    /// write timeout then restarts.
    pub(super) fn flushed(&self) -> bool {
        let response = self.response.load(Ordering::Acquire);
        if response == Response::Handed as u8 {
            self.response.store(Response::None as u8, Ordering::Release);
            if let Some(entry) = self.slots.all().by_id.get_mut(&self.id) {
                entry.page = None;
                entry.since = Instant::now();
            }
        }
        response != Response::Whole as u8
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.all().by_id.remove(&self.id);
    }
}

/// A response in progress: held while its page is rendered, and by its body.
#[derive(Debug)]
pub(super) struct PageSlot(Arc<Slot>);

impl Drop for PageSlot {
    fn drop(&mut self) {
        self.0.response.store(Response::Handed as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_evicted(slot: &Slot) -> bool {
        !slot.slots.all().by_id.contains_key(&slot.id)
    }

    #[test]
    fn client_with_most_waiting_connections_loses_its_oldest() {
        let slots = Slots::new(4);
        let kubelet = slots.admit(ip(1));
        let attacker: Vec<_> = (0..3).map(|_| slots.admit(ip(2))).collect();
        let scraper = slots.admit(ip(3));
        assert!(is_evicted(&attacker[0]) && !is_evicted(&attacker[1]) && !is_evicted(&kubelet));
        let more: Vec<_> = (0..100).map(|_| slots.admit(ip(2))).collect();
        assert!(!is_evicted(&kubelet) && !is_evicted(&scraper) && !is_evicted(&more[99]));
        assert_eq!(slots.all().by_id.len(), 4);
    }

    #[test]
    fn connection_with_a_page_in_progress_is_not_evicted() {
        let slots = Slots::new(1);
        let busy = slots.admit(ip(1));
        let held = busy.begin(Page::Metrics).unwrap();
        let (second, third) = (slots.admit(ip(1)), slots.admit(ip(1)));
        assert!(!is_evicted(&busy) && is_evicted(&second) && !is_evicted(&third));
        drop(held);
        assert!(busy.flushed());
        let fourth = slots.admit(ip(1));
        assert!(is_evicted(&third) && is_evicted(&busy) && !is_evicted(&fourth));
    }

    #[test]
    fn page_holds_its_slot_until_its_body_is_written() {
        let slots = Slots::new(100);
        let readers: Vec<_> = (0..5).map(|last| slots.admit(ip(last))).collect();
        let mut held: Vec<_> = readers[..4].iter().map(|slot| slot.begin(Page::Metrics).unwrap()).collect();
        assert!(readers[4].begin(Page::Metrics).is_none(), "in total");
        assert!(readers[4].begin(Page::Requests).is_some(), "each page has its own limit");
        assert!(!readers[0].flushed(), "only a part of the body is written");
        held.remove(0);
        assert!(readers[4].begin(Page::Metrics).is_none(), "passed to the connection, but not written");
        assert!(readers[0].flushed());
        assert!(readers[4].begin(Page::Metrics).is_some());
    }

    #[test]
    fn one_client_leaves_slots_for_others() {
        let slots = Slots::new(100);
        let mine: Vec<_> = (0..3).map(|_| slots.admit(ip(1))).collect();
        let _held: Vec<_> = mine[..2].iter().map(|slot| slot.begin(Page::Metrics).unwrap()).collect();
        assert!(mine[2].begin(Page::Metrics).is_none());
        assert!(slots.admit(ip(2)).begin(Page::Metrics).is_some());
    }

    #[test]
    fn page_holds_its_slot_after_its_connection_closes() {
        let slots = Slots::new(100);
        let slot = slots.admit(ip(1));
        let held = slot.begin(Page::Config).unwrap();
        drop(slot);
        assert_eq!(slots.all().by_id.len(), 1);
        drop(held);
        assert_eq!(slots.all().by_id.len(), 0);
    }
}
