//! Counters of the data path, for the exporters.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use tokometer_observe::input::Direction;

/// Totals since the start of the process. Bytes are added every 256 KiB and when a connection ends, not per read.
#[derive(Debug, Default)]
pub struct Stats {
    accepted: AtomicU64,
    ended: AtomicU64,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    connect_failures: AtomicU64,
    connect_timeouts: AtomicU64,
    handshake_failures: AtomicU64,
    observer_panics: AtomicU64,
    refused: [AtomicU64; Full::ALL.len()],
}

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The process has no descriptors for more connections.
    Descriptors,
    /// `Settings::max_connections` are open.
    MaxConnections,
}

impl Full {
    /// All variants.
    pub const ALL: [Full; 2] = [Full::Descriptors, Full::MaxConnections];

    /// Name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Full::Descriptors => "descriptors",
            Full::MaxConnections => "max_connections",
        }
    }
}

/// Bytes per direction that are added to the totals at once, so that an event of a few hundred bytes needs no write to
/// shared memory.
pub(crate) const REPORT_BYTES: u64 = 256 * 1024;

impl Stats {
    /// Connections accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Connections open now.
    pub fn open(&self) -> u64 {
        // In this order, a connection that is accepted and ends in between is not subtracted without having been added.
        let ended = self.ended.load(Ordering::Relaxed);
        self.accepted().saturating_sub(ended)
    }

    /// Bytes relayed in this direction (plaintext if a side uses TLS).
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.bytes_of(direction).load(Ordering::Relaxed)
    }

    /// Connections for which the server could not be reached.
    pub fn connect_failures(&self) -> u64 {
        self.connect_failures.load(Ordering::Relaxed)
    }

    /// Connections that the server did not accept within the configured time.
    pub fn connect_timeouts(&self) -> u64 {
        self.connect_timeouts.load(Ordering::Relaxed)
    }

    /// Connections that ended in the TLS handshake with the client.
    pub fn handshake_failures(&self) -> u64 {
        self.handshake_failures.load(Ordering::Relaxed)
    }

    /// Observers that panicked and were dropped; their connections continued unobserved.
    pub fn observer_panics(&self) -> u64 {
        self.observer_panics.load(Ordering::Relaxed)
    }

    /// Connections refused because a maximum was reached.
    pub fn refused(&self, why: Full) -> u64 {
        self.refused[why as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count_refused(&self, why: Full) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_connect_timeout(&self) {
        self.connect_timeouts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_bytes(&self, direction: Direction, bytes: u64) {
        self.bytes_of(direction).fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_connect_failure(&self) {
        self.connect_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_handshake_failure(&self) {
        self.handshake_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_observer_panic(&self) {
        self.observer_panics.fetch_add(1, Ordering::Relaxed);
    }

    fn bytes_of(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::Request => &self.request_bytes,
            Direction::Response => &self.response_bytes,
        }
    }
}
