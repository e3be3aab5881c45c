//! The feed of the live page: snapshots, made once for all who watch.

use std::fmt;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio::time::MissedTickBehavior;

/// Makes a snapshot of this moment as JSON. Called on a thread that may be kept waiting.
pub type Snapshots = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Between two snapshots, and how old the one may be that is given to who asks for one.
const PERIOD: Duration = Duration::from_secs(1);

/// Snapshots that may wait for a watcher: the one that it is reading and the next. Further ones it misses.
const WAITING: usize = 1;

/// How long a browser waits before it comes back, milliseconds.
const RETRY_MS: u32 = 1000;

/// Makes snapshots while somebody watches, and once in a while for who asks.
pub(in crate::admin) struct Feed {
    make: Snapshots,
    /// Held while one is made, so that those who ask meanwhile get the same.
    latest: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    watchers: Mutex<Watchers>,
    stopped: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct Watchers {
    all: Vec<mpsc::Sender<Bytes>>,
    /// Somebody tells them.
    told: bool,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("watchers", &self.watchers()).finish_non_exhaustive()
    }
}

/// No snapshot could be made: its maker panicked.
#[derive(Debug)]
pub(in crate::admin) struct Unmade;

impl Feed {
    /// Tells snapshots of `make` until `stopped`.
    pub(in crate::admin) fn new(make: Snapshots, stopped: watch::Receiver<bool>) -> Arc<Feed> {
        Arc::new(Feed { make, latest: tokio::sync::Mutex::default(), watchers: Mutex::default(), stopped })
    }

    /// A snapshot of the last second, as JSON.
    pub(in crate::admin) async fn latest(&self) -> Result<Bytes, Unmade> {
        self.younger_than(PERIOD).await
    }

    async fn younger_than(&self, most: Duration) -> Result<Bytes, Unmade> {
        let mut latest = self.latest.lock().await;
        if let Some((made, snapshot)) = &*latest
            && made.elapsed() < most
        {
            return Ok(snapshot.clone());
        }
        let (at, make) = (Instant::now(), Arc::clone(&self.make));
        // On another thread, so that a long one does not hold up the probes.
        let Ok(snapshot) = tokio::task::spawn_blocking(move || make()).await else {
            tracing::error!("The snapshot of the live page could not be made: a panic.");
            return Err(Unmade);
        };
        let snapshot = Bytes::from(snapshot);
        *latest = Some((at, snapshot.clone()));
        Ok(snapshot)
    }

    /// One more watcher, who gets a snapshot at once and one each second; `None` when the server stops.
    pub(in crate::admin) async fn watch(self: &Arc<Self>) -> Result<Option<Events>, Unmade> {
        if *self.stopped.borrow() {
            return Ok(None);
        }
        let first = event(&self.latest().await?, true);
        let (sender, events) = mpsc::channel(WAITING);
        // It has room for one.
        sender.try_send(first).ok();
        let mut watchers = self.watchers();
        watchers.all.retain(|watcher| !watcher.is_closed());
        watchers.all.push(sender);
        if !std::mem::replace(&mut watchers.told, true) {
            tokio::spawn(Arc::clone(self).tell());
        }
        Ok(Some(Events(events)))
    }

    /// Tells all watchers once a second, until none is left or the server stops.
    async fn tell(self: Arc<Self>) {
        let mut stopped = self.stopped.clone();
        let mut ticks = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // An error means that the server was dropped.
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
            if self.watchers().leave() {
                return;
            }
            // One for whoever asked just now is as good.
            let Ok(snapshot) = self.younger_than(PERIOD / 2).await else { continue };
            let event = event(&snapshot, false);
            // Who is still reading the one before misses this one.
            self.watchers().all.retain(|watcher| {
                !matches!(watcher.try_send(event.clone()), Err(mpsc::error::TrySendError::Closed(_)))
            });
        }
        // Their answers end with their senders.
        self.watchers().all.clear();
    }

    fn watchers(&self) -> MutexGuard<'_, Watchers> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchers {
    /// Forgets those that have left; true when nobody is left, so that nobody needs to be told.
    fn leave(&mut self) -> bool {
        self.all.retain(|watcher| !watcher.is_closed());
        self.told = !self.all.is_empty();
        !self.told
    }
}

/// The events for one watcher.
#[derive(Debug)]
pub(in crate::admin) struct Events(mpsc::Receiver<Bytes>);

impl Events {
    pub(in crate::admin) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(cx)
    }
}

/// A server-sent event (HTML Standard, section 9.2). JSON as it is written here has no line ends in it.
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
