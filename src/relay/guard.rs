//! An observer whose faults stay its own.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::time::Instant;

use crate::relay::observer::Close;
use crate::relay::observer::Direction;
use crate::relay::observer::Observe;
use crate::relay::observer::Observer;
use crate::relay::stats::Stats;

/// The observer of one connection. A panic in it ends the observer, not the connection.
pub(crate) struct Guard {
    observer: Option<Box<dyn Observer>>,
}

impl Guard {
    pub(crate) fn new(observer: Option<Box<dyn Observer>>) -> Guard {
        Guard { observer }
    }

    pub(crate) fn seen(&mut self, faults: Faults<'_>, direction: Direction, bytes: &[u8], at: Instant) {
        self.call(faults, |observer| observer.seen(direction, bytes, at));
    }

    pub(crate) fn finished(&mut self, faults: Faults<'_>, direction: Direction, at: Instant) {
        self.call(faults, |observer| observer.finished(direction, at));
    }

    pub(crate) fn blocked(&mut self, faults: Faults<'_>, direction: Direction, since: Instant, until: Instant) {
        self.call(faults, |observer| observer.blocked(direction, since, until));
    }

    /// The last call; also drops the observer.
    pub(crate) fn closed(&mut self, faults: Faults<'_>, close: Close, at: Instant) {
        self.call(faults, |observer| observer.closed(close, at));
        if let Some(observer) = self.observer.take() {
            faults.contain(|| drop(observer));
        }
    }

    /// `None` when nobody watches.
    pub(crate) fn idle(&mut self, faults: Faults<'_>) -> Option<bool> {
        self.call(faults, |observer| observer.idle())
    }

    fn call<R>(&mut self, faults: Faults<'_>, call: impl FnOnce(&mut dyn Observer) -> R) -> Option<R> {
        let observer = self.observer.as_mut()?;
        let result = faults.contain(|| call(observer.as_mut()));
        if result.is_none() {
            let observer = self.observer.take();
            faults.contain(|| drop(observer));
        }
        result
    }
}

/// Where panics of observers are counted.
#[derive(Clone, Copy)]
pub(crate) struct Faults<'a> {
    pub(crate) observe: &'a dyn Observe,
    pub(crate) stats: &'a Stats,
}

impl Faults<'_> {
    /// Runs foreign code; `None` if it panicked.
    pub(crate) fn contain<R>(self, call: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(call)) {
            Ok(result) => Some(result),
            Err(payload) => {
                // A payload may panic in its own drop; a few leaked bytes are cheaper than the connection.
                std::mem::forget(payload);
                self.stats.count_observer_panic();
                if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.observe.panicked())) {
                    std::mem::forget(payload);
                }
                None
            }
        }
    }
}
