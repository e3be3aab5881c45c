//! Calls with which clients abort requests, such as SGLang's `/abort_request`. An engine ends an aborted request as if it
//! had given up.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokometer_decode::Aborted;

/// Maximum number of remembered calls per listener: with 16 ids of 64 bytes each, 32 KiB.
const CALLS: usize = 32;

/// How long a call is remembered. Engines end an aborted request within their next steps.
const MEMORY: Duration = Duration::from_secs(60);

/// The latest calls on one listener.
#[derive(Debug, Default)]
pub(crate) struct Aborts(Mutex<VecDeque<Call>>);

#[derive(Debug)]
struct Call {
    /// Connection and sequence number of the call.
    id: (u64, u64),
    at: Instant,
    aborted: Aborted,
}

impl Aborts {
    /// Adds a call that was received completely.
    pub(crate) fn add(&self, id: (u64, u64), aborted: Aborted, at: Instant) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.truncate(CALLS - 1);
        calls.push_front(Call { id, at, aborted });
    }

    /// Removes a call that the server rejected.
    pub(crate) fn remove(&self, id: (u64, u64)) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|call| call.id != id);
    }

    /// True if a client aborted the request that began at `began`, ended at `ended` and has a response with this id.
    pub(crate) fn cover(&self, response: Option<&str>, began: Instant, ended: Instant) -> bool {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |call: &&Call| call.at >= began && ended.saturating_duration_since(call.at) <= MEMORY;
        calls.iter().filter(is_recent).any(|call| call.aborted.covers(response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_covers_requests_that_it_could_abort_until_it_is_forgotten() {
        let (aborts, began) = (Aborts::default(), Instant::now());
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let of = |id: &str| Aborted::Ids(vec![id.into()]);
        aborts.add((1, 0), of("a"), at(10));
        assert!(aborts.cover(Some("a"), began, at(11)) && !aborts.cover(Some("b"), began, at(11)));
        assert!(!aborts.cover(Some("a"), at(20), at(21)), "the request began later");
        assert!(!aborts.cover(Some("a"), began, at(71)), "too long ago");
        aborts.remove((1, 0));
        assert!(!aborts.cover(Some("a"), began, at(11)), "the server rejected the call");
        (0..100).for_each(|call| aborts.add((2, call), of(&call.to_string()), at(10)));
        assert_eq!(aborts.0.lock().unwrap().len(), CALLS);
        assert!(aborts.cover(Some("99"), began, at(11)) && !aborts.cover(Some("3"), began, at(11)));
    }
}
