//! The feed of the live page: one snapshot for all watchers.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

/// Makes a JSON snapshot of the current state. Called on a thread that may block.
pub type Snapshots = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Interval between snapshots, and maximum age of a cached snapshot for single requests.
const PERIOD: Duration = Duration::from_secs(1);

/// Snapshots queued per watcher, in addition to the one being sent. Further snapshots are skipped.
const WAITING: usize = 1;

/// Reconnect delay of the browser, in milliseconds.
const RETRY_MS: u32 = 1000;

/// Makes snapshots periodically while there are watchers, and on request.
pub(super) struct Feed {
    make: Snapshots,
    /// Locked while a snapshot is made, so that concurrent requests share the snapshot.
    latest: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    watchers: Mutex<Watchers>,
    stopped: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Watchers {
    all: Vec<mpsc::Sender<Bytes>>,
    /// True while a task sends snapshots to the watchers.
    is_sending: bool,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("watchers", &self.watchers()).finish_non_exhaustive()
    }
}

/// The function that makes snapshots panicked.
#[derive(Debug)]
pub(super) struct SnapshotError;

impl Feed {
    /// A feed of the snapshots that `make` returns. It ends when `stopped` becomes true.
    pub(super) fn new(make: Snapshots, stopped: watch::Receiver<bool>) -> Arc<Feed> {
        Arc::new(Feed { make, latest: tokio::sync::Mutex::default(), watchers: Mutex::default(), stopped })
    }

    /// A snapshot at most one second old, as JSON.
    pub(super) async fn latest(&self) -> Result<Bytes, SnapshotError> {
        self.younger_than(PERIOD).await
    }

    async fn younger_than(&self, most: Duration) -> Result<Bytes, SnapshotError> {
        let mut latest = self.latest.lock().await;
        if let Some((made, snapshot)) = &*latest
            && made.elapsed() < most
        {
            return Ok(snapshot.clone());
        }
        let (at, make) = (Instant::now(), Arc::clone(&self.make));
        // On another thread, so that a slow snapshot does not delay probes.
        let Ok(snapshot) = tokio::task::spawn_blocking(move || make()).await else {
            tracing::error!("The function that makes snapshots for the live page panicked.");
            return Err(SnapshotError);
        };
        let snapshot = Bytes::from(snapshot);
        *latest = Some((at, snapshot.clone()));
        Ok(snapshot)
    }

    /// Adds a watcher, which gets a snapshot immediately and then one per second; `None` if the server is stopping.
    pub(super) async fn watch(self: &Arc<Self>) -> Result<Option<Events>, SnapshotError> {
        if *self.stopped.borrow() {
            return Ok(None);
        }
        let first = event(&self.latest().await?, true);
        let (sender, events) = mpsc::channel(WAITING);
        // Cannot fail: the channel has capacity for one snapshot.
        sender.try_send(first).ok();
        let mut watchers = self.watchers();
        watchers.all.retain(|watcher| !watcher.is_closed());
        watchers.all.push(sender);
        if !std::mem::replace(&mut watchers.is_sending, true) {
            tokio::spawn(Arc::clone(self).send_all());
        }
        Ok(Some(Events(events)))
    }

    /// Sends a snapshot to all watchers once a second, until no watcher is left or the server stops.
    async fn send_all(self: Arc<Self>) {
        let mut stopped = self.stopped.clone();
        let mut ticks = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // An error means that the server was dropped.
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
            if self.watchers().remove_closed() {
                return;
            }
            // A snapshot just made for a single request can be reused.
            let Ok(snapshot) = self.younger_than(PERIOD / 2).await else { continue };
            let event = event(&snapshot, false);
            // A watcher that is still receiving the previous snapshot skips this one.
            self.watchers().all.retain(|watcher| {
                !matches!(watcher.try_send(event.clone()), Err(mpsc::error::TrySendError::Closed(_)))
            });
        }
        // Dropping the senders ends the watchers' responses.
        self.watchers().all.clear();
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchers {
    /// Removes closed watchers; true if none is left. The task then ends, and the next watcher starts a new one.
    fn remove_closed(&mut self) -> bool {
        self.all.retain(|watcher| !watcher.is_closed());
        self.is_sending = !self.all.is_empty();
        !self.is_sending
    }
}

/// The event stream of one watcher.
#[derive(Debug)]
pub(super) struct Events(mpsc::Receiver<Bytes>);

impl Events {
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(cx)
    }
}

/// A server-sent event (HTML Standard, section 9.2). One `data` line suffices: the JSON contains no line breaks.
fn event(snapshot: &Bytes, first: bool) -> Bytes {
    let mut event = Vec::with_capacity(snapshot.len() + 64);
    if first {
        event.extend_from_slice(format!("retry: {RETRY_MS}\n").as_bytes());
    }
    event.extend_from_slice(b"event: snapshot\ndata: ");
    event.extend_from_slice(snapshot);
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}
