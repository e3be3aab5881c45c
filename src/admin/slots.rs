//! Slots of the admin server: open connections, eviction, and the number of responses in progress per page.

use std::cmp::Reverse;
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
    /// Maximum number of responses in progress, in total and per client address. At the total maximum, a client takes a
    /// slot from a client that has more responses. Thus no client or group of clients can lock out the scraper or the
    /// kubelet's preStop request.
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
    /// The client is a process that uses the Unix socket and may change state.
    is_trusted: bool,
    /// Time of the latest of these: the accept, the last request, the end of the last response of a limited page.
    since: Instant,
    page: Option<Page>,
    evict: Arc<Notify>,
}

impl Slots {
    pub(super) fn new(max_waiting: usize) -> Arc<Slots> {
        Arc::new(Slots { max_waiting, all: Mutex::default() })
    }

    /// Adds a connection. If too many connections have no page in progress, selects the client address with the most
    /// such connections and closes its oldest one. Thus clients that send no complete request cannot lock out others.
    pub(super) fn admit(self: &Arc<Self>, client: IpAddr, is_trusted: bool) -> Arc<Slot> {
        let mut all = self.all();
        while all.by_id.values().filter(|entry| entry.page.is_none()).count() >= self.max_waiting
            && let Some(entry) = all.oldest_of_the_largest_client().and_then(|id| all.by_id.remove(&id))
        {
            tracing::warn!(client = %entry.client, "The admin server has reached its maximum number of idle connections: closed the oldest idle connection of this client.");
            entry.evict.notify_one();
        }
        let id = all.next;
        all.next += 1;
        let evicted = Arc::new(Notify::new());
        let evict = Arc::clone(&evicted);
        all.by_id.insert(id, Entry { client, is_trusted, since: Instant::now(), page: None, evict });
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

    /// Numbers of responses of this page in progress, by client.
    fn in_progress(&self, page: Page) -> HashMap<IpAddr, usize> {
        let mut by_client = HashMap::new();
        let of_page = self.by_id.values().filter(|entry| entry.page == Some(page));
        of_page.for_each(|entry| *by_client.entry(entry.client).or_default() += 1);
        by_client
    }

    /// Selects the response that is ended for a client with `own` responses of this page: the oldest response of the
    /// client that has the most. A trusted process can displace any other client, and is displaced last.
    fn to_end(&self, page: Page, own: usize, is_trusted: bool) -> Option<u64> {
        let by_client = self.in_progress(page);
        let held = |entry: &Entry| by_client.get(&entry.client).copied().unwrap_or_default();
        let may_end = |entry: &Entry| held(entry) > own || (is_trusted && !entry.is_trusted);
        let of_page = self.by_id.iter().filter(|(_, entry)| entry.page == Some(page) && may_end(entry));
        of_page
            .max_by_key(|(id, entry)| (!entry.is_trusted, held(entry), Reverse((entry.since, **id))))
            .map(|(id, _)| *id)
    }
}

/// State of a connection's current response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Response {
    /// No response, or a response of a page without limits.
    None,
    /// The body is not yet completely passed to the connection.
    Whole,
    /// An event stream; the client must read each event in time.
    Events,
    /// The body is passed to the connection, but possibly not yet written.
    Buffered,
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

    /// True if the connection was closed for another client.
    pub(super) fn is_evicted(&self) -> bool {
        !self.slots.all().by_id.contains_key(&self.id)
    }

    /// Records the time of a request.
    pub(super) fn touch(&self) {
        if let Some(entry) = self.slots.all().by_id.get_mut(&self.id) {
            entry.since = Instant::now();
        }
    }

    /// Starts a response of this page; `None` if the maximum is in progress and no other response can be ended.
    pub(super) fn begin(self: &Arc<Self>, page: Page) -> Option<PageSlot> {
        let (most, most_of_client) = page.limits();
        let mut all = self.slots.all();
        let (client, is_trusted) = all.by_id.get(&self.id).map(|entry| (entry.client, entry.is_trusted))?;
        let by_client = all.in_progress(page);
        let own = by_client.get(&client).copied().unwrap_or_default();
        if own >= most_of_client {
            return None;
        }
        if by_client.values().sum::<usize>() >= most {
            let id = all.to_end(page, own, is_trusted)?;
            let ended = all.by_id.remove(&id)?;
            tracing::warn!(client = %ended.client, ?page, "An admin page has reached its maximum number of concurrent responses: closed the oldest connection of the client with the most responses.");
            ended.evict.notify_one();
        }
        all.by_id.get_mut(&self.id)?.page = Some(page);
        let response = if page == Page::Events { Response::Events } else { Response::Whole };
        self.response.store(response as u8, Ordering::Release);
        Some(PageSlot(Arc::clone(self)))
    }

    /// Called when all pending data is written to the socket. True if this completes a response or an event of a
    /// stream, so that the write timeout ends.
    pub(super) fn flushed(&self) -> bool {
        let response = self.response.load(Ordering::Acquire);
        if response == Response::Buffered as u8 {
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

/// A response in progress. Exists while the page is rendered, and then as long as the response's body.
#[derive(Debug)]
pub(super) struct PageSlot(Arc<Slot>);

impl PageSlot {
    /// True if the connection was closed for another client, so that its page is no longer needed.
    pub(super) fn is_evicted(&self) -> bool {
        self.0.is_evicted()
    }
}

impl Drop for PageSlot {
    fn drop(&mut self) {
        self.0.response.store(Response::Buffered as u8, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// Admits a connection of a network client.
    fn admit(slots: &Arc<Slots>, last: u8) -> Arc<Slot> {
        slots.admit(ip(last), false)
    }

    /// Fills the slots of the page with responses to these clients, in this order.
    fn fill(slots: &Arc<Slots>, page: Page, clients: &[u8]) -> Vec<(Arc<Slot>, PageSlot)> {
        let each = page.limits().0 / clients.len();
        let fill = |last: &u8| (0..each).map(|_| admit(slots, *last)).collect::<Vec<_>>();
        let begun = clients.iter().flat_map(fill).map(|slot| (Arc::clone(&slot), slot.begin(page).unwrap()));
        begun.collect()
    }

    #[test]
    fn client_with_most_waiting_connections_loses_its_oldest() {
        let slots = Slots::new(4);
        let kubelet = admit(&slots, 1);
        let attacker: Vec<_> = (0..3).map(|_| admit(&slots, 2)).collect();
        let scraper = admit(&slots, 3);
        assert!(attacker[0].is_evicted() && !attacker[1].is_evicted() && !kubelet.is_evicted());
        let more: Vec<_> = (0..100).map(|_| admit(&slots, 2)).collect();
        assert!(!kubelet.is_evicted() && !scraper.is_evicted() && !more[99].is_evicted());
        assert_eq!(slots.all().by_id.len(), 4);
    }

    #[test]
    fn connection_with_a_page_in_progress_is_not_evicted() {
        let slots = Slots::new(1);
        let busy = admit(&slots, 1);
        let held = busy.begin(Page::Metrics).unwrap();
        let (second, third) = (admit(&slots, 1), admit(&slots, 1));
        assert!(!busy.is_evicted() && second.is_evicted() && !third.is_evicted());
        drop(held);
        assert!(busy.flushed());
        let fourth = admit(&slots, 1);
        assert!(third.is_evicted() && busy.is_evicted() && !fourth.is_evicted());
    }

    #[test]
    fn page_holds_its_slot_until_its_body_is_written() {
        let slots = Slots::new(100);
        // The last reader's client already has a slot, and no other client has more.
        let readers: Vec<_> = [0, 1, 2, 3, 0].map(|last| admit(&slots, last)).into();
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
        let mine: Vec<_> = (0..3).map(|_| admit(&slots, 1)).collect();
        let _held: Vec<_> = mine[..2].iter().map(|slot| slot.begin(Page::Metrics).unwrap()).collect();
        assert!(mine[2].begin(Page::Metrics).is_none());
        assert!(admit(&slots, 2).begin(Page::Metrics).is_some());
    }

    #[test]
    fn client_with_fewer_responses_takes_the_oldest_of_the_client_with_the_most() {
        // In both cases, the clients together fill all slots of the page.
        for (page, clients) in [(Page::Metrics, &[1, 2][..]), (Page::DrainWait, &[1, 2, 3, 4])] {
            let slots = Slots::new(100);
            let held = fill(&slots, page, clients);
            let kubelet = admit(&slots, 9);
            let begun = kubelet.begin(page).unwrap();
            let evicted: Vec<usize> = (0..held.len()).filter(|at| held[*at].0.is_evicted()).collect();
            assert_eq!(evicted, [0], "{page:?}");
            assert!(held[0].1.is_evicted() && !begun.is_evicted());
            assert!(held[0].0.begin(page).is_none(), "its connection is closed");
        }
    }

    #[test]
    fn many_clients_with_one_response_each_leave_slots_for_others() {
        let slots = Slots::new(100);
        let clients: Vec<u8> = (1..=64).collect();
        let held = fill(&slots, Page::DrainWait, &clients);
        assert!(admit(&slots, 64).begin(Page::DrainWait).is_none(), "no other client has more");
        assert!(admit(&slots, 65).begin(Page::DrainWait).is_some());
        assert!(held[0].0.is_evicted() && !held[1].0.is_evicted());
    }

    #[test]
    fn trusted_process_takes_slots_and_loses_none_to_others() {
        let slots = Slots::new(100);
        let local = || slots.admit(ip(100), true);
        let held = fill(&slots, Page::Metrics, &[1, 2, 3, 4]);
        let own = [local(), local()];
        let begun = own.each_ref().map(|slot| slot.begin(Page::Metrics).unwrap());
        assert_eq!(held.iter().filter(|(slot, _)| slot.is_evicted()).count(), 2);
        assert!(local().begin(Page::Metrics).is_none(), "its own maximum");
        let others: Vec<_> = (5..20).map(|last| admit(&slots, last)).collect();
        assert!(others.iter().all(|other| other.begin(Page::Metrics).is_some()));
        assert!(begun.iter().all(|begun| !begun.is_evicted()));
    }

    #[test]
    fn page_holds_its_slot_after_its_connection_closes() {
        let slots = Slots::new(100);
        let slot = admit(&slots, 1);
        let held = slot.begin(Page::Config).unwrap();
        drop(slot);
        assert_eq!(slots.all().by_id.len(), 1);
        drop(held);
        assert_eq!(slots.all().by_id.len(), 0);
    }
}
