//! Isolates the faults of observers.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Instant;

use crate::relay::entrance::Relay;
use crate::relay::stats::Stats;
use tokometer_observe::input::Close;
use tokometer_observe::input::Connection;
use tokometer_observe::input::Direction;
use tokometer_observe::input::Observer;

/// The observer of one connection. A panic in it ends the observer, not the connection.
///
/// Dropping it without a call to `closed` (the runtime stops) records `Close::Drained`.
pub(crate) struct Guard {
    relay: Arc<Relay>,
    listener: u32,
    ended: bool,
    costly: bool,
    observer: Option<Box<dyn Observer>>,
}

impl Guard {
    /// Creates the observer of this connection.
    pub(crate) fn new(relay: Arc<Relay>, connection: &Connection) -> Guard {
        let observer =
            contain(relay.stats_of(connection.listener), &relay, || relay.observe().accepted(connection)).flatten();
        Guard { relay, listener: connection.listener as u32, ended: false, costly: false, observer }
    }

    pub(crate) fn relay(&self) -> &Arc<Relay> {
        &self.relay
    }

    /// The counters of the connection's listener.
    pub(crate) fn stats(&self) -> &Stats {
        self.relay.stats_of(self.listener as usize)
    }

    pub(crate) fn seen(&mut self, direction: Direction, bytes: &[u8], at: Instant) {
        let costly = self.call(|observer| {
            observer.seen(direction, bytes, at);
            observer.is_costly()
        });
        self.costly = costly.unwrap_or(false);
    }

    /// See [`Observer::is_costly`].
    pub(crate) fn is_costly(&self) -> bool {
        self.costly
    }

    pub(crate) fn finished(&mut self, direction: Direction, at: Instant) {
        self.call(|observer| observer.finished(direction, at));
    }

    pub(crate) fn waits(&mut self, direction: Direction, since: Instant) {
        self.call(|observer| observer.waits(direction, since));
    }

    pub(crate) fn blocked(&mut self, direction: Direction, since: Instant, until: Instant) {
        self.call(|observer| observer.blocked(direction, since, until));
    }

    /// The last call; also drops the observer.
    pub(crate) fn closed(&mut self, close: Close, at: Instant) {
        if !std::mem::replace(&mut self.ended, true) {
            self.stats().count_ended();
        }
        self.call(|observer| observer.closed(close, at));
        self.dismiss();
    }

    /// `None` without an observer.
    pub(crate) fn idle(&mut self) -> Option<bool> {
        self.call(|observer| observer.idle())
    }

    fn call<R>(&mut self, call: impl FnOnce(&mut dyn Observer) -> R) -> Option<R> {
        let observer = self.observer.as_mut()?;
        let result = contain(self.relay.stats_of(self.listener as usize), &self.relay, || call(observer.as_mut()));
        if result.is_none() {
            self.dismiss();
        }
        result
    }

    fn dismiss(&mut self) {
        if let Some(observer) = self.observer.take() {
            contain(self.stats(), &self.relay, || drop(observer));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.closed(Close::Drained, Instant::now());
    }
}

/// Runs observer code; `None` if it panicked, which is counted.
fn contain<R>(stats: &Stats, relay: &Relay, call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(payload) => {
            // Dropping the payload may panic as well; leaking a few bytes costs less than the connection.
            std::mem::forget(payload);
            stats.count_observer_panic();
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| relay.observe().panicked())) {
                std::mem::forget(payload);
            }
            None
        }
    }
}
