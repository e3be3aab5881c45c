//! Graceful shutdown: stops accepting without cutting off clients that are connecting, lets open requests finish, then
//! closes the remaining connections.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokometer_observe::input::Activity;

use crate::relay::slots::Slots;

/// Listeners close within 0.1 s; this limit keeps a hung thread from delaying the shutdown.
const CLOSING: Duration = Duration::from_secs(1);

/// During a drain, a connection without an upstream connection is dropped after this time, so it does not delay pod
/// termination.
const UNJOINED: Duration = Duration::from_secs(1);

/// Connections are evicted when less than one in this many is left below the maximum.
const SPARE: usize = 16;

/// Progress of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving; no drain has begun.
    Running,
    /// The listeners are closing: clients that have begun to connect are served, new clients are not.
    Closing,
    /// No new connections; open connections are closed when idle.
    Draining,
    /// The grace period is over: all connections are closed.
    Forced,
}

/// Handle to a relay's drain, shared by the listeners, the connections and the code that ends the process.
///
/// A connection costs one slot (32 bytes) here and two atomic loads per wake-up.
#[derive(Clone, Debug, Default)]
pub struct Drain {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    phase: AtomicU8,
    /// Number of evictions so far; wraps.
    evictions: AtomicU32,
    began: Instant,
    /// The last phase that the connections were notified of.
    notified: AtomicU8,
    /// Locked only by data path threads: a low-priority thread that holds the lock would delay them.
    connections: Mutex<Slots>,
    /// Number of open connections, readable without the lock.
    open: AtomicUsize,
    /// Number of open listeners.
    listening: AtomicUsize,
    /// Notified when the phase changes, the last connection ends, or the last listener closes.
    changed: Notify,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            phase: AtomicU8::default(),
            evictions: AtomicU32::default(),
            began: Instant::now(),
            notified: AtomicU8::default(),
            connections: Mutex::default(),
            open: AtomicUsize::default(),
            listening: AtomicUsize::default(),
            changed: Notify::default(),
        }
    }
}

impl Shared {
    /// Milliseconds since the start; wraps after 49 days.
    fn now(&self) -> u32 {
        self.began.elapsed().as_millis() as u32
    }
}

impl Drain {
    /// A drain that has not begun.
    pub fn new() -> Drain {
        Drain::default()
    }

    /// Closes the listeners, then begins the drain. In this order, connections whose first request is in flight are not
    /// mistaken for idle connections.
    pub async fn close_and_begin(&self) {
        self.advance(Phase::Closing);
        timeout(CLOSING, self.until(|| self.shared.listening.load(Ordering::Acquire) == 0)).await.ok();
        self.begin();
    }

    /// Stops the listeners and closes idle connections, now and as they become idle. Does not block.
    pub fn begin(&self) {
        self.advance(Phase::Draining);
    }

    /// Closes all remaining connections. Does not block.
    pub fn force(&self) {
        self.advance(Phase::Forced);
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        match self.shared.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Closing,
            2 => Phase::Draining,
            _ => Phase::Forced,
        }
    }

    /// Open connections, including those whose upstream connection is still being established.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Acquire)
    }

    /// Resolves when no connection is open.
    pub async fn emptied(&self) {
        self.until(|| self.open() == 0).await;
    }

    /// Resolves when the drain has reached this phase or a later one.
    pub async fn reached(&self, phase: Phase) {
        self.until(|| self.phase() >= phase).await;
    }

    /// Waits until `is` returns true, checking at each change.
    async fn until(&self, is: impl Fn() -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // Registers before checking, so that a change in between is not missed.
            changed.as_mut().enable();
            if is() {
                return;
            }
            changed.await;
        }
    }

    /// Runs `work` for a connection that has no upstream connection yet. Returns `None` after `limit`, or [`UNJOINED`]
    /// after a drain begins.
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

    /// Counts a listener as open until the returned value is dropped.
    pub(crate) fn listen(&self) -> Listening {
        self.shared.listening.fetch_add(1, Ordering::AcqRel);
        Listening { drain: self.clone() }
    }

    /// Counts a connection as open until the ticket is dropped; `None` when `max` connections are open. Near the
    /// maximum, asks another connection to close, if one waits for its client.
    pub(crate) fn enter(&self, max: usize, client: Option<IpAddr>) -> Option<Ticket> {
        let now = self.shared.now();
        let mut slots = self.slots();
        // The connections below the maximum bridge the time until the evicted connections have closed.
        let evicted = (slots.kept() >= max - max / SPARE).then(|| slots.evict(now)).flatten();
        let slot = (slots.open() < max).then(|| slots.add(client, Some(now)));
        self.shared.open.store(slots.open(), Ordering::Release);
        // Read before the lock is released, so that the connection's own eviction is counted later.
        let seen = self.shared.evictions.load(Ordering::Relaxed);
        drop(slots);
        if let Some(waker) = evicted {
            self.shared.evictions.fetch_add(1, Ordering::Release);
            waker.into_iter().for_each(Waker::wake);
        }
        slot.map(|slot| Ticket { drain: self.clone(), slot, seen, activity: Activity::Incomplete })
    }

    /// Counts other work as an open connection, so that the drain waits until the returned value is dropped.
    pub fn hold(&self) -> Hold {
        let mut slots = self.slots();
        let slot = slots.add(None, None);
        self.shared.open.store(slots.open(), Ordering::Release);
        drop(slots);
        Hold { _ticket: Ticket { drain: self.clone(), slot, seen: 0, activity: Activity::InProgress } }
    }

    fn advance(&self, phase: Phase) {
        self.shared.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.shared.changed.notify_waiters();
    }

    /// Wakes the connections at each phase change, until the drain is forced. Every data path thread runs this
    /// function, and the first thread to notice a change wakes all connections. A hung thread thus causes no delay.
    pub(crate) async fn notify_connections(self) {
        let mut last = Phase::Running;
        while last < Phase::Forced {
            self.until(|| self.phase() > last).await;
            last = self.phase();
            if self.shared.notified.fetch_max(last as u8, Ordering::AcqRel) < last as u8 {
                let wakers = self.slots().wakers();
                wakers.into_iter().for_each(Waker::wake);
            }
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // No code panics while it holds the lock, so the slots are consistent even if the lock is poisoned.
        self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.drain.shared.changed.notify_waiters();
        }
    }
}

/// Work that a drain waits for.
#[derive(Debug)]
pub struct Hold {
    _ticket: Ticket,
}

/// One open connection.
#[derive(Debug)]
pub(crate) struct Ticket {
    drain: Drain,
    slot: u32,
    /// Number of evictions at the last check.
    seen: u32,
    /// The last activity.
    activity: Activity,
}

impl Ticket {
    /// Registers the waker for phase changes and evictions. Read [`Ticket::phase`] afterwards, because a change before
    /// this call does not wake it.
    pub(crate) fn wake(&self, waker: &Waker) {
        self.drain.slots().set_waker(self.slot, waker.clone());
    }

    pub(crate) fn phase(&self) -> Phase {
        self.drain.phase()
    }

    /// Sets what the connection waits for. A connection that waits for its client may be evicted.
    pub(crate) fn set_activity(&mut self, activity: Activity) {
        if std::mem::replace(&mut self.activity, activity) != activity {
            self.drain.slots().set(self.slot, activity, self.drain.shared.now());
        }
    }

    /// Records that the client of an incomplete request has sent a large part of it.
    pub(crate) fn progress(&self) {
        self.drain.slots().set(self.slot, self.activity, self.drain.shared.now());
    }

    /// True if the connection must close to make room for others. Set the current activity before.
    pub(crate) fn is_evicted(&mut self) -> bool {
        let evictions = self.drain.shared.evictions.load(Ordering::Acquire);
        std::mem::replace(&mut self.seen, evictions) != evictions && self.drain.slots().is_evicted(self.slot)
    }

    /// Runs `work` for a connection that has not sent a request; `None` if the connection is evicted.
    pub(crate) async fn unless_evicted<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut entered = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut entered, true) {
                self.wake(cx.waker());
            }
            if self.is_evicted() { Poll::Ready(None) } else { work.as_mut().poll(cx).map(Some) }
        })
        .await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut slots = self.drain.slots();
        slots.remove(self.slot);
        let open = slots.open();
        self.drain.shared.open.store(open, Ordering::Release);
        drop(slots);
        if open == 0 {
            self.drain.shared.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::{Context, Poll, Wake};

    use super::*;

    #[test]
    fn dropped_ticket_frees_its_slot_for_reuse() {
        let drain = Drain::new();
        let enter = || drain.enter(2, None);
        let first = enter().unwrap();
        let second = enter().unwrap();
        assert_eq!(drain.open(), 2);
        assert!(enter().is_none(), "the maximum is two");
        drop(first);
        assert_eq!(drain.open(), 1);
        let third = enter().unwrap();
        assert_eq!((third.slot, drain.open()), (0, 2));
        drop((second, third));
        assert_eq!(drain.open(), 0);
    }

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_phase_wakes_the_connections_once_from_a_thread_of_the_data_path() {
        let drain = Drain::new();
        let woken = Arc::new(Woken::default());
        let ticket = drain.enter(1, None).unwrap();
        ticket.wake(&Arc::clone(&woken).into());
        let mut threads = [(); 2].map(|()| Box::pin(drain.clone().notify_connections()));
        let mut run = || threads.each_mut().map(|thread| thread.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        assert!(run().iter().all(Poll::is_pending));
        drain.begin();
        assert_eq!(woken.0.load(Ordering::Relaxed), 0, "the thread that begins a drain may have a low priority");
        assert!(run().iter().all(Poll::is_pending));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        drain.force();
        assert!(run().iter().all(Poll::is_ready));
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn beginning_a_drain_does_not_wait_for_the_data_path() {
        let drain = Drain::new();
        let held = drain.slots();
        let (begun, begins) = std::sync::mpsc::channel();
        let other = drain.clone();
        std::thread::spawn(move || {
            other.begin();
            begun.send(other.phase()).ok();
        });
        assert_eq!(begins.recv_timeout(Duration::from_secs(60)), Ok(Phase::Draining));
        drop(held);
    }

    #[test]
    fn drain_phase_never_decreases() {
        let drain = Drain::new();
        assert_eq!(drain.phase(), Phase::Running);
        drain.force();
        drain.begin();
        assert_eq!(drain.phase(), Phase::Forced);
    }

    #[tokio::test]
    async fn draining_begins_after_the_last_listener_closes() {
        let drain = Drain::new();
        let (first, second) = (drain.listen(), drain.listen());
        let mut begun = std::pin::pin!(drain.close_and_begin());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(begun.as_mut().poll(&mut cx).is_pending());
        assert_eq!(drain.phase(), Phase::Closing, "the listeners are notified");
        drop(first);
        assert!(begun.as_mut().poll(&mut cx).is_pending());
        assert_eq!(drain.phase(), Phase::Closing);
        drop(second);
        begun.await;
        assert_eq!(drain.phase(), Phase::Draining);
    }

    #[tokio::test]
    async fn drain_waits_for_held_work() {
        let drain = Drain::new();
        let hold = drain.hold();
        drain.begin();
        let mut emptied = std::pin::pin!(drain.emptied());
        assert!(emptied.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(hold);
        emptied.await;
    }

    #[tokio::test]
    async fn hanging_listener_does_not_block_the_drain() {
        let drain = Drain::new();
        let _hangs = drain.listen();
        drain.close_and_begin().await;
        assert_eq!(drain.phase(), Phase::Draining);
    }
}
