//! State shared by all connections of a process; admits connections and isolates their observers' faults.

use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};

use crate::relay::drain::{Drain, Phase, Ticket};
use crate::relay::lag::{Delays, Lags, lateness};
use crate::relay::settings::Settings;
use crate::relay::stats::unreached::Unreached;
use crate::relay::stats::{Evicted, Full, Stats};
use crate::relay::stream::Stream;
use crate::relay::stream::tcp_info::ClientNetwork;
use tokometer_observe::input::{Activity, Close, Connection, Direction, NetworkSource, Observe, Observer, TraceParent};
use tokometer_wire::budget::Budget;

/// Maximum descriptors per connection: the client, the server, and the reset watch (`reset`).
pub const DESCRIPTORS_PER_CONNECTION: usize = 3;

/// The data path of a process: settings, observers, drain and counters.
pub struct Relay {
    settings: ArcSwap<Settings>,
    observe: Arc<dyn Observe>,
    drain: Drain,
    stats: Vec<Stats>,
    lags: Lags,
    /// Maximum number of connections that the process has resources for, and the resource that limits it.
    capacity: ArcSwap<(usize, Full)>,
    /// Bytes waiting for their receivers, on all connections.
    waiting: AtomicUsize,
    last_id: AtomicU64,
    /// Called with the number of a listener whose server refused a connection.
    refused: OnceLock<Box<dyn Fn(usize) + Send + Sync>>,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("settings", &self.settings).field("drain", &self.drain).finish_non_exhaustive()
    }
}

impl Relay {
    /// Creates a relay for this many listeners (at least one). The relay reports connections to `observe`; `drain` ends
    /// it.
    pub fn new(settings: Settings, listeners: usize, observe: Arc<dyn Observe>, drain: Drain) -> Arc<Relay> {
        let settings = ArcSwap::from_pointee(settings);
        let stats = (0..listeners.max(1)).map(|_| Stats::default()).collect();
        let (lags, last_id, capacity) =
            (Lags::default(), AtomicU64::new(0), ArcSwap::from_pointee((usize::MAX, Full::Descriptors)));
        let waiting = AtomicUsize::new(0);
        Arc::new(Relay { settings, observe, drain, stats, lags, capacity, waiting, last_id, refused: OnceLock::new() })
    }

    /// The settings of newly accepted connections.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// Applies these settings to connections accepted from now on; open connections keep their old settings.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// The drain that ends the relay.
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// The counters, by listener.
    pub fn stats(&self) -> &[Stats] {
        &self.stats
    }

    /// The counters of this listener.
    pub fn stats_of(&self, listener: usize) -> &Stats {
        &self.stats[listener.min(self.stats.len() - 1)]
    }

    /// Sets a function that is called with the listener's number each time the listener's server refuses a connection.
    /// The function must not block. Only the first call has an effect.
    pub fn on_refused(&self, notify: impl Fn(usize) + Send + Sync + 'static) {
        self.refused.set(Box::new(notify)).ok();
    }

    /// Counts a connection, or a request in rewrite mode, for which this listener's server could not be reached.
    pub fn note_unreached(&self, listener: usize, why: Unreached) {
        self.stats_of(listener).unreached(why).add(1);
        if why == Unreached::Refused
            && let Some(notify) = self.refused.get()
        {
            notify(listener);
        }
    }

    /// Maximum timer lag over all data path threads. The lag of a thread is the last measured lag, or the time for
    /// which its timer is overdue if that is longer. `None` before the first timer fired.
    pub fn lag(&self) -> Option<Duration> {
        self.lags.greatest(Instant::now())
    }

    /// The longest time for which a data path thread has not run; zero while all threads run. Data that arrived in this
    /// time has not been read.
    pub fn overdue(&self, now: Instant) -> Duration {
        self.lags.overdue(now)
    }

    /// Timer delays of each data path thread since the last call.
    pub fn take_delays(&self) -> Vec<Delays> {
        self.lags.take()
    }

    /// The lag measurements of the data path's threads.
    pub(crate) fn lags(&self) -> &Lags {
        &self.lags
    }

    /// Bytes waiting for their receivers, on all connections.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts bytes as waiting until the returned value is dropped.
    pub(crate) fn wait_with(self: &Arc<Relay>, bytes: usize) -> Waiting {
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        Waiting { relay: Arc::clone(self), bytes }
    }

    /// Sets the maximum number of open connections, and the resource that limits it. Near the maximum, connections
    /// without a request in progress are closed; above it, new connections are refused.
    pub fn limit_connections(&self, capacity: usize, why: Full) {
        self.capacity.store(Arc::new((capacity, why)));
    }

    /// Admits a connection to this listener. The connection counts as open until the returned value, or the
    /// `RelayedConnection` created from it, is dropped.
    ///
    /// # Errors
    /// When the maximum number of connections is open. This function counts the refusal; [`Relay::refuse`] responds to
    /// the client.
    pub(crate) fn accept(
        self: &Arc<Relay>,
        listener: usize,
        upstream: Arc<str>,
        peer: Option<SocketAddr>,
    ) -> Result<Accepted, Full> {
        let ticket = self.admit(listener, peer)?;
        let connection = self.connection(listener, upstream, peer);
        Ok(Accepted { guard: Guard::new(Arc::clone(self), &connection), ticket })
    }

    /// Admits a connection whose requests each have their own observer. The connection counts as open until the
    /// returned value is dropped.
    ///
    /// # Errors
    /// As [`Relay::accept`].
    pub(crate) fn admit_for_requests(
        self: &Arc<Relay>,
        listener: usize,
        peer: Option<SocketAddr>,
    ) -> Result<Admitted, Full> {
        let ticket = self.admit(listener, peer)?;
        Ok(Admitted { ticket, relay: Arc::clone(self), listener, requests: Arc::default() })
    }

    fn connection(&self, listener: usize, upstream: Arc<str>, peer: Option<SocketAddr>) -> Connection {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        Connection { id, peer, listener, upstream, accepted: Instant::now() }
    }

    fn admit(&self, listener: usize, peer: Option<SocketAddr>) -> Result<Ticket, Full> {
        let (capacity, limit) = **self.capacity.load();
        let (max, why) = match self.settings.load().max_connections {
            Some(max) if max <= capacity => (max, Full::MaxConnections),
            _ => (capacity, limit),
        };
        let Some(ticket) = self.drain.enter(max, peer.map(|peer| peer.ip())) else {
            self.stats_of(listener).refused(why).add(1);
            tracing::warn!(reason = why.as_str(), max, "The connection limit is reached: refusing new connections.");
            return Err(why);
        };
        self.stats_of(listener).accepted.add(1);
        Ok(ticket)
    }

    /// See [`Observe::reports_usage_on_request`].
    pub fn reports_usage_on_request(&self, method: &str, target: &str) -> bool {
        self.observe.reports_usage_on_request(method, target)
    }

    /// See [`Observe::budget`].
    pub fn budget(&self) -> Budget {
        self.observe.budget()
    }
}

impl Collect for Relay {
    fn collect(&self, points: &mut Points<'_>) {
        for (listener, stats) in self.stats.iter().enumerate() {
            stats.collect(listener, points);
        }
        points.put(Id::EventLoopLag, &[], self.lag());
        for Delays { thread, buckets } in self.take_delays() {
            let delays = buckets.into_iter().flat_map(|(delay, timers)| (0..timers).map(move |_| delay));
            let thread = [(Key::Thread, thread.into())];
            delays.for_each(|delay| points.put(Id::EventLoopDelay, &thread, delay));
        }
    }
}

/// Bytes waiting for their receiver.
#[derive(Debug)]
pub(crate) struct Waiting {
    relay: Arc<Relay>,
    bytes: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.relay.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A connection that is accepted but not yet connected to its server.
pub(crate) struct Accepted {
    pub(crate) guard: Guard,
    pub(crate) ticket: Ticket,
}

impl Accepted {
    /// Records that the connection ended before it was joined.
    pub(crate) fn end(mut self, close: Close) {
        self.guard.closed(close, Instant::now());
    }

    /// Records that the connection was closed to make room for others.
    pub(crate) fn evict(self) {
        self.guard.stats().evicted(Evicted::Incomplete).add(1);
        self.end(Close::Evicted);
    }
}

/// An open connection in rewrite mode.
pub(crate) struct Admitted {
    relay: Arc<Relay>,
    listener: usize,
    pub(crate) ticket: Ticket,
    /// The connection's requests.
    pub(crate) requests: Arc<OpenRequests>,
}

/// The requests of a connection in rewrite mode.
#[derive(Debug, Default)]
pub struct OpenRequests {
    /// Number of requests that have begun.
    begun: AtomicU32,
    /// Number of requests that have ended.
    ended: AtomicU32,
    /// Number of open requests that are complete, or whose response has begun.
    in_progress: AtomicU32,
}

/// One request; ends when it is dropped.
#[derive(Debug)]
pub struct OpenRequest {
    requests: Arc<OpenRequests>,
    in_progress: bool,
}

impl OpenRequests {
    /// Counts a request whose headers are complete.
    pub fn begin(self: &Arc<Self>) -> OpenRequest {
        self.begun.fetch_add(1, Ordering::Relaxed);
        OpenRequest { requests: Arc::clone(self), in_progress: false }
    }

    // Relaxed: the thread of the connection makes all calls.
    fn activity(&self) -> Activity {
        let (begun, ended) = (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
        if self.in_progress.load(Ordering::Relaxed) > 0 {
            Activity::InProgress
        } else if begun == ended && begun > 0 {
            Activity::Idle
        } else {
            Activity::Incomplete
        }
    }
}

impl OpenRequest {
    /// The request is complete, or its response has begun.
    pub fn set_in_progress(&mut self) {
        if !std::mem::replace(&mut self.in_progress, true) {
            self.requests.in_progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The response is complete, but the request is not.
    pub fn set_incomplete(&mut self) {
        if std::mem::replace(&mut self.in_progress, false) {
            self.requests.in_progress.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.requests.ended.fetch_add(1, Ordering::Relaxed);
        self.set_incomplete();
    }
}

impl Admitted {
    /// Polls `serving` until it ends, the drain is forced or the connection is evicted. Spawn the returned future as
    /// its own task.
    pub(crate) async fn serve(mut self, serving: impl Future<Output = ()>) {
        let mut serving = pin!(serving);
        let mut entered = false;
        poll_fn(|cx| {
            if !std::mem::replace(&mut entered, true) {
                // Registering once is enough: the waker of a spawned task does not change.
                self.ticket.wake(cx.waker());
            }
            if self.ticket.phase() == Phase::Forced || serving.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let activity = self.requests.activity();
            self.ticket.set_activity(activity);
            if self.ticket.is_evicted() {
                self.relay.stats_of(self.listener).evicted(Evicted::of(activity)).add(1);
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.relay.stats_of(self.listener).ended.add(1);
    }
}

/// The observer of one connection. A panic in the observer ends only the observer, not the connection.
///
/// A guard dropped without a call to `closed` (when the runtime stops) records `Close::Drained`.
pub struct Guard {
    relay: Arc<Relay>,
    listener: u16,
    ended: bool,
    costly: bool,
    activity: Activity,
    /// The server has sent bytes.
    served: bool,
    /// The thread's total lateness at the last report to the observer, in milliseconds.
    known_ms: u32,
    observer: Option<Box<dyn Observer>>,
    /// Set until the first call creates the observer.
    new: Option<Box<Connection>>,
    /// Set while the client's socket is open and observed.
    network: Option<Arc<ClientNetwork>>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Guard {
    /// Creates the observer of this connection.
    pub(crate) fn new(relay: Arc<Relay>, connection: &Connection) -> Guard {
        let listener = connection.listener as u16;
        let known_ms = lateness(connection.accepted).before(connection.accepted);
        let observer = contain(&relay, listener, || relay.observe.accepted(connection)).flatten();
        Guard {
            relay,
            listener,
            ended: false,
            costly: false,
            activity: Activity::Incomplete,
            served: false,
            known_ms,
            observer,
            new: None,
            network: None,
        }
    }

    /// Creates the guard of one request in rewrite mode. The request is reported as a separate connection. The first
    /// call creates the observer.
    pub fn of_request(relay: &Arc<Relay>, listener: usize, upstream: Arc<str>, peer: Option<SocketAddr>) -> Guard {
        let connection = relay.connection(listener, upstream, peer);
        Guard {
            relay: Arc::clone(relay),
            listener: listener as u16,
            // The end of a request is not counted as the end of a connection.
            ended: true,
            costly: false,
            activity: Activity::Incomplete,
            served: false,
            known_ms: lateness(connection.accepted).before(connection.accepted),
            observer: None,
            new: Some(Box::new(connection)),
            network: None,
        }
    }

    pub(crate) fn relay(&self) -> &Arc<Relay> {
        &self.relay
    }

    /// The counters of the connection's listener.
    pub fn stats(&self) -> &Stats {
        self.relay.stats_of(usize::from(self.listener))
    }

    /// See [`Relay::note_unreached`].
    pub(crate) fn unreached(&self, why: Unreached) {
        self.relay.note_unreached(usize::from(self.listener), why);
    }

    /// Reports and returns this thread's lateness since the last report. Call it before the event at `at` is reported.
    pub(crate) fn late(&mut self, at: Instant) -> Duration {
        self.late_until(lateness(at).total_ms)
    }

    /// Reports and returns the thread's lateness since the last report. `total_ms` is the total lateness at the time of
    /// the event.
    pub fn late_until(&mut self, total_ms: u32) -> Duration {
        let by = Duration::from_millis(total_ms.wrapping_sub(self.known_ms).into());
        if !by.is_zero() {
            self.known_ms = total_ms;
            self.call(|observer| observer.late(by));
        }
        by
    }

    pub(crate) fn waited(&mut self, by: Duration, at: Instant) {
        self.call(|observer| observer.waited(by, at));
    }

    /// See [`Observer::seen`].
    pub fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let state = self.call(|observer| {
            observer.seen(direction, bytes, at);
            (observer.is_costly(), observer.activity())
        });
        self.served |= direction == Direction::Response;
        // Without an observer, a request may be in progress.
        (self.costly, self.activity) = state.unwrap_or((false, Activity::InProgress));
        if self.activity == Activity::Idle && !self.served {
            self.activity = Activity::Incomplete;
        }
    }

    /// What the connection waits for. A connection that was never served is not idle, but incomplete.
    pub(crate) fn activity(&self) -> Activity {
        self.activity
    }

    /// See [`Observer::is_costly`].
    pub(crate) fn is_costly(&self) -> bool {
        self.costly
    }

    /// See [`Observer::sent_trace`].
    pub fn sent_trace(&mut self, sent: TraceParent) {
        self.call(|observer| observer.sent_trace(sent));
    }

    /// See [`Observer::finished`].
    pub fn finished(&mut self, direction: Direction, at: Instant) {
        self.call(|observer| observer.finished(direction, at));
    }

    /// See [`Observer::waits`].
    pub fn waits(&mut self, direction: Direction, since: Instant) {
        self.call(|observer| observer.waits(direction, since));
    }

    /// See [`Observer::blocked`].
    pub fn blocked(&mut self, direction: Direction, since: Instant, until: Instant) {
        self.call(|observer| observer.blocked(direction, since, until));
    }

    /// Gives the observer access to the network values of the client's socket, until [`Guard::release_network`].
    pub(crate) fn watch_network(&mut self, client: &Stream) {
        let network = ClientNetwork::new(client.socket());
        let source = Arc::clone(&network);
        self.network = self.call(|observer| observer.network_source(source)).map(|()| network);
    }

    /// Reports the last network values, for requests that end with the connection. Call before the client's socket is
    /// closed.
    pub(crate) fn release_network(&mut self) {
        let Some(network) = self.network.take() else { return };
        if self.idle() == Some(false)
            && let Some(last) = network.network()
        {
            self.call(|observer| observer.network(&last));
        }
        network.release();
    }

    /// Makes the last call to the observer, then drops the observer.
    pub(crate) fn closed(&mut self, close: Close, at: Instant) {
        self.late(at);
        self.end(close, at);
    }

    /// Makes the last call to the observer, then drops the observer. Does not report the thread's lateness.
    pub fn end(&mut self, close: Close, at: Instant) {
        if !std::mem::replace(&mut self.ended, true) {
            self.stats().ended.add(1);
        }
        self.call(|observer| observer.closed(close, at));
        self.dismiss();
    }

    /// Whether the connection is idle; `None` without an observer.
    pub(crate) fn idle(&mut self) -> Option<bool> {
        self.call(|observer| observer.idle())
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut dyn Observer) -> R) -> Option<R> {
        if let Some(new) = self.new.take() {
            self.observer = contain(&self.relay, self.listener, || self.relay.observe.accepted(&new)).flatten();
        }
        let observer = self.observer.as_mut()?;
        let result = contain(&self.relay, self.listener, || call(observer.as_mut()));
        if result.is_none() {
            self.dismiss();
        }
        result
    }

    fn dismiss(&mut self) {
        if let Some(observer) = self.observer.take() {
            contain(&self.relay, self.listener, || drop(observer));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.closed(Close::Drained, Instant::now());
    }
}

/// Runs observer code; `None` if it panicked, which is counted.
fn contain<R>(relay: &Relay, listener: u16, call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Dropping the payload may panic too; leaking a few bytes is better than losing the connection.
            std::mem::forget(payload);
            relay.stats_of(usize::from(listener)).observer_panics.add(1);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| relay.observe.panicked())) {
                std::mem::forget(payload);
            }
            None
        }
    }
}
