//! Counters of the data path, for the exporters.

pub(crate) mod rewrites;
pub(crate) mod unreached;

use crate::relay::stats::rewrites::Rewrites;
use crate::relay::stats::unreached::Unreached;
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Counter, Points, closed_enum};
use tokometer_observe::input::{Activity, Direction};

/// Totals of one listener. Bytes are added every 256 KiB and when a connection ends, not per read.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections that the server accepted.
    pub connected: Counter,
    /// Connections that ended during the TLS handshake with the client.
    pub handshake_failures: Counter,
    /// Observers that panicked and were dropped; their connections continued unobserved.
    pub observer_panics: Counter,
    /// Requests in rewrite mode.
    pub rewrites: Rewrites,
    pub(crate) ended: Counter,
    request_bytes: Counter,
    response_bytes: Counter,
    refused: [Counter; Full::ALL.len()],
    evicted: [Counter; Evicted::ALL.len()],
    unreached: [Counter; Unreached::ALL.len()],
}

closed_enum! {
    /// Why a connection was refused.
    pub enum Full {
        /// The process has no descriptors for more connections.
        Descriptors = "descriptors",
        /// The container has no memory for more connections.
        Memory = "memory",
        /// `Settings::max_connections` is reached.
        MaxConnections = "max_connections",
    }
}

closed_enum! {
    /// What a connection waited for that was closed to make room for another.
    pub enum Evicted {
        /// The rest of the first request, or of a TLS handshake.
        Incomplete = "incomplete",
        /// The next request.
        Idle = "idle",
    }
}

impl Evicted {
    pub(crate) fn of(activity: Activity) -> Evicted {
        if activity == Activity::Idle { Evicted::Idle } else { Evicted::Incomplete }
    }
}

/// Bytes per direction after which the totals are updated. Forwarding an event of a few hundred bytes then usually
/// needs no write to shared memory.
pub(crate) const REPORT_BYTES: u64 = 256 * 1024;

impl Stats {
    /// Connections open now.
    pub fn open(&self) -> u64 {
        // `ended` is read first: otherwise a connection that is accepted and ends in between would be subtracted
        // without being added.
        let ended = self.ended.get();
        self.accepted.get().saturating_sub(ended)
    }

    /// Bytes relayed in this direction (plaintext if a side uses TLS).
    pub fn bytes(&self, direction: Direction) -> &Counter {
        match direction {
            Direction::Request => &self.request_bytes,
            Direction::Response => &self.response_bytes,
        }
    }

    /// Connections refused because a maximum was reached.
    pub fn refused(&self, why: Full) -> &Counter {
        &self.refused[why as usize]
    }

    /// Connections closed to make room for others.
    pub fn evicted(&self, why: Evicted) -> &Counter {
        &self.evicted[why as usize]
    }

    /// Connections, and requests in rewrite mode, for which the server could not be reached.
    pub fn unreached(&self, why: Unreached) -> &Counter {
        &self.unreached[why as usize]
    }

    /// Adds the values of this listener.
    pub(crate) fn collect(&self, listener: usize, points: &mut Points<'_>) {
        let mut put = |id, key, word: &'static str, n: &Counter| points.put_at(listener, id, &[(key, word.into())], n);
        Full::ALL.into_iter().for_each(|why| put(Id::ConnectionsRefused, Key::Reason, why.as_str(), self.refused(why)));
        Evicted::ALL
            .into_iter()
            .for_each(|why| put(Id::ConnectionsEvicted, Key::Reason, why.as_str(), self.evicted(why)));
        Unreached::ALL
            .into_iter()
            .for_each(|why| put(Id::ConnectFailures, Key::Reason, why.as_str(), self.unreached(why)));
        put(Id::RelayIo, Key::Direction, "request", &self.request_bytes);
        put(Id::RelayIo, Key::Direction, "response", &self.response_bytes);
        for (rewrite, outcome, n) in self.rewrites.all().filter(|(.., n)| *n > 0) {
            let of = [(Key::Rewrite, rewrite.as_str().into()), (Key::Result, outcome.as_str().into())];
            points.put_at(listener, Id::RewriteRequests, &of, n);
        }
        points.put_at(listener, Id::ConnectionsOpened, &[], &self.accepted);
        points.put_at(listener, Id::HandshakeFailures, &[], &self.handshake_failures);
        points.put_at(listener, Id::ConnectionsOpen, &[], self.open());
    }
}
