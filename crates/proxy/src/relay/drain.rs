//! The orderly end: stop accepting without cutting off who has begun to connect, let open exchanges finish, then close what is
//! left.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio::time::timeout;

/// Listeners close in a tenth of a second; one whose thread hangs must not hold up the end.
const CLOSING: Duration = Duration::from_secs(1);

/// While a drain goes on, who has connected and is not joined to a server has no more time than this: it must not hold up the end of
/// the pod.
const UNJOINED: Duration = Duration::from_secs(1);

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving; no drain was begun.
    Running,
    /// The listeners close: who has begun to connect is served as ever, nobody else.
    Closing,
    /// No new connections; open ones end when they are idle.
    Draining,
    /// The grace period is over: every connection is closed.
    Forced,
}

/// A handle on the drain of a relay, shared by the listeners, the connections and whoever ends the process.
///
/// A connection costs one slot (16 bytes) here and one atomic load per wake-up.
#[derive(Clone)]
pub struct Drain {
    shared: Arc<Shared>,
}

struct Shared {
    phase: AtomicU8,
    connections: Mutex<Slots>,
    /// Connections that are open: read without the lock, which threads of a low priority must not hold.
    open: AtomicUsize,
    /// Listeners that are open.
    listening: AtomicUsize,
    /// The last connection has ended, or the last listener is closed.
    emptied: Notify,
    /// The phase has changed.
    moved: Notify,
    stopping: watch::Sender<bool>,
}

/// Wakers of open connections by slot; a freed slot is used again.
#[derive(Default)]
struct Slots {
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
}

impl Slots {
    fn open(&self) -> usize {
        self.wakers.len() - self.free.len()
    }
}

impl Default for Drain {
    fn default() -> Drain {
        Drain::new()
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").field("phase", &self.phase()).field("open", &self.open()).finish()
    }
}

impl Drain {
    /// A drain that was not begun.
    pub fn new() -> Drain {
        let shared = Shared {
            phase: AtomicU8::new(Phase::Running as u8),
            connections: Mutex::new(Slots::default()),
            open: AtomicUsize::new(0),
            listening: AtomicUsize::new(0),
            emptied: Notify::new(),
            moved: Notify::new(),
            stopping: watch::Sender::new(false),
        };
        Drain { shared: Arc::new(shared) }
    }

    /// Closes the listeners, and then begins. A connection that nobody has used yet is idle too: those whose first request is on
    /// its way are not taken for that.
    pub async fn close_and_begin(&self) {
        self.advance(Phase::Closing);
        timeout(CLOSING, self.until_emptied(|| self.shared.listening.load(Ordering::Acquire) == 0)).await.ok();
        self.begin();
    }

    /// Stops the listeners and closes connections that are idle, now and as they become idle.
    pub fn begin(&self) {
        self.advance(Phase::Draining);
    }

    /// Closes every connection that is left.
    pub fn force(&self) {
        self.advance(Phase::Forced);
    }

    /// How far the drain has come.
    pub fn phase(&self) -> Phase {
        match self.shared.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Closing,
            2 => Phase::Draining,
            _ => Phase::Forced,
        }
    }

    /// Open connections, those that are still being connected to the server among them.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }

    /// Resolves when no connection is open.
    pub async fn emptied(&self) {
        self.until_emptied(|| self.open() == 0).await;
    }

    async fn until_emptied(&self, is: impl Fn() -> bool) {
        until(&self.shared.emptied, is).await;
    }

    /// Resolves when the drain has come so far.
    pub async fn reached(&self, phase: Phase) {
        until(&self.shared.moved, || self.phase() >= phase).await;
    }

    /// The result of `work`, which is about a connection that is not joined to its server: if it comes within `limit`, and while a drain
    /// goes on within [`UNJOINED`].
    pub(crate) async fn in_time<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let drained = async {
            self.reached(Phase::Draining).await;
            sleep(UNJOINED).await;
        };
        tokio::select! {
            result = timeout(limit, work) => result.ok(),
            () = drained => None,
        }
    }

    /// Resolves when the grace period is over.
    pub async fn forced(&self) {
        self.reached(Phase::Forced).await;
    }

    /// Turns true when the listeners have to stop.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.shared.stopping.subscribe()
    }

    /// Counts a listener as open until what this gives is dropped.
    pub(crate) fn listen(&self) -> Listening {
        self.shared.listening.fetch_add(1, Ordering::AcqRel);
        Listening { drain: self.clone() }
    }

    /// Counts a connection as open until the ticket is dropped; `None` when `max` are open already.
    pub(crate) fn enter(&self, max: usize) -> Option<Ticket> {
        let mut slots = self.slots();
        if slots.open() >= max {
            return None;
        }
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                slots.wakers.push(None);
                (slots.wakers.len() - 1) as u32
            }
        };
        self.shared.open.store(slots.open(), Ordering::Release);
        Some(Ticket { drain: self.clone(), slot })
    }

    fn advance(&self, phase: Phase) {
        self.shared.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.shared.stopping.send_replace(true);
        self.shared.moved.notify_waiters();
        let wakers: Vec<Waker> = self.slots().wakers.iter().flatten().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Nothing here can panic half-way, so a poisoned lock still holds sound slots.
        self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until it is so, looking at each notice.
async fn until(notice: &Notify, is: impl Fn() -> bool) {
    loop {
        let mut noticed = std::pin::pin!(notice.notified());
        // Listens before it looks, so that a change in between is not missed.
        noticed.as_mut().enable();
        if is() {
            return;
        }
        noticed.await;
    }
}

/// One open listener.
#[derive(Debug)]
pub(crate) struct Listening {
    drain: Drain,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.drain.shared.listening.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drain.shared.emptied.notify_waiters();
        }
    }
}

/// One open connection.
#[derive(Debug)]
pub(crate) struct Ticket {
    drain: Drain,
    slot: u32,
}

impl Ticket {
    /// Has this task woken when the drain moves on. Look at [`Ticket::phase`] after, not before.
    pub(crate) fn wake(&self, waker: &Waker) {
        let mut slots = self.drain.slots();
        if let Some(slot) = slots.wakers.get_mut(self.slot as usize) {
            *slot = Some(waker.clone());
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.drain.phase()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut slots = self.drain.slots();
        if let Some(slot) = slots.wakers.get_mut(self.slot as usize) {
            *slot = None;
        }
        slots.free.push(self.slot);
        let open = slots.open();
        self.drain.shared.open.store(open, Ordering::Release);
        drop(slots);
        if open == 0 {
            self.drain.shared.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::Context;

    use super::*;

    #[test]
    fn a_ticket_counts_until_it_is_dropped_and_its_slot_is_used_again() {
        let drain = Drain::new();
        let first = drain.enter(2).unwrap();
        let second = drain.enter(2).unwrap();
        assert_eq!(drain.open(), 2);
        assert!(drain.enter(2).is_none(), "two are the maximum");
        drop(first);
        assert_eq!(drain.open(), 1);
        let third = drain.enter(2).unwrap();
        assert_eq!((third.slot, drain.open()), (0, 2));
        drop((second, third));
        assert_eq!(drain.open(), 0);
    }

    #[test]
    fn a_drain_never_goes_back() {
        let drain = Drain::new();
        assert_eq!(drain.phase(), Phase::Running);
        assert!(!*drain.stopping().borrow());
        drain.force();
        drain.begin();
        assert_eq!(drain.phase(), Phase::Forced);
        assert!(*drain.stopping().borrow());
    }

    #[tokio::test]
    async fn connections_are_not_asked_to_end_before_the_last_listener_is_closed() {
        let drain = Drain::new();
        let (first, second) = (drain.listen(), drain.listen());
        let mut begun = std::pin::pin!(drain.close_and_begin());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(begun.as_mut().poll(&mut cx).is_pending());
        assert!(*drain.stopping().borrow(), "the listeners are told");
        drop(first);
        assert!(begun.as_mut().poll(&mut cx).is_pending());
        assert_eq!(drain.phase(), Phase::Closing);
        drop(second);
        begun.await;
        assert_eq!(drain.phase(), Phase::Draining);
    }

    #[tokio::test]
    async fn a_listener_that_hangs_does_not_hold_up_the_end() {
        let drain = Drain::new();
        let _hangs = drain.listen();
        drain.close_and_begin().await;
        assert_eq!(drain.phase(), Phase::Draining);
    }
}
