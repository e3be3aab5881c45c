//! Counters of a tap, for exporters.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Counter, Points};
use tokometer_observe::input::Direction;

/// Totals since the start of the tap, unless noted otherwise. Written by the capturing thread, read by any.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets passed to the tap.
    pub packets: Counter,
    /// TCP segments from or to one of the servers, without duplicates.
    pub segments: Counter,
    /// Packets that were captured a second time (loopback, several interfaces).
    pub duplicates: Counter,
    /// Packets whose headers are invalid or truncated by the snapshot length.
    pub malformed: Counter,
    /// Fragments of IP packets. They are not reassembled; their bytes become gaps.
    pub fragments: Counter,
    /// Segments whose payload was truncated by the snapshot length.
    pub truncated: Counter,
    /// Segments that arrived while an earlier segment was missing.
    pub out_of_order: Counter,
    /// Segments without any new byte: retransmissions.
    pub retransmitted: Counter,
    /// Connections whose beginning was captured.
    pub opened: Counter,
    /// Connections that were in progress when they were first captured.
    pub attached: Counter,
    /// Connections, in progress or after a gap, whose observation began at a request.
    pub synchronised: Counter,
    /// Connections that ended, were evicted, or were open when the capture ended.
    pub ended: Counter,
    /// Segments that their receiver ignores.
    pub ignored: Counter,
    /// Segments of connections that are not followed because too many connections are open.
    pub shed: Counter,
    /// Connections that carry TLS: they cannot be observed.
    pub tls: Counter,
    /// Gaps in the captured bytes of a connection that cannot be filled.
    pub gaps: Counter,
    /// Packets that the kernel reported as dropped, see [`Tap::lost`](crate::Tap::lost).
    pub kernel_drops: Counter,
    /// Number of times the kernel's ring became full; packets are then dropped.
    pub ring_full: Counter,
    /// Maximum share of the ring that waited to be processed in the last 30 to 60 s.
    pub ring_used: Peak,
    /// Observers that panicked and were dropped.
    pub observer_panics: Counter,
    /// Payload bytes captured while their connection could not be observed.
    pub unobserved_bytes: Counter,
    /// Connections that currently wait for a request at which observation can begin.
    pub unsynchronised: Gauge,
    /// Bytes that currently wait for an earlier segment.
    pub reassembly_bytes: Gauge,
    request_bytes: Counter,
    response_bytes: Counter,
}

/// A value that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Records that one part of the value changed from `before` to `after`.
    pub(crate) fn change(&self, before: u64, after: u64) {
        if before != after {
            self.0.fetch_add(after.wrapping_sub(before), Relaxed);
        }
    }
}

/// The maximum of a value in the last 30 to 60 s. Written by one thread.
#[derive(Debug, Default)]
pub struct Peak {
    /// Time of the first value.
    since: OnceLock<Instant>,
    /// Number of the current half minute since `since`.
    half: AtomicU64,
    this: AtomicU64,
    last: AtomicU64,
}

/// Time over which a maximum is collected.
const HALF_MINUTE: Duration = Duration::from_secs(30);

impl Peak {
    /// The maximum; `None` before the first value.
    pub fn get(&self) -> Option<f64> {
        let value = |of: &AtomicU64| f64::from_bits(of.load(Relaxed));
        self.since.get().map(|_| value(&self.this).max(value(&self.last)))
    }

    /// Adds a value, which must not be negative.
    pub(crate) fn put(&self, value: f64, at: Instant) {
        let since = *self.since.get_or_init(|| at);
        let half = at.saturating_duration_since(since).as_secs() / HALF_MINUTE.as_secs();
        let before = self.half.swap(half, Relaxed);
        if half != before {
            let this = self.this.swap(0, Relaxed);
            self.last.store(if half == before + 1 { this } else { 0 }, Relaxed);
        }
        // The bit patterns of nonnegative numbers have the same order as the numbers.
        self.this.fetch_max(value.to_bits(), Relaxed);
    }
}

impl Stats {
    /// Connections open now.
    pub fn open(&self) -> u64 {
        let ended = self.ended.get();
        (self.opened.get() + self.attached.get()).saturating_sub(ended)
    }

    /// Payload bytes passed to observers in this direction.
    pub fn bytes(&self, direction: Direction) -> &Counter {
        match direction {
            Direction::Request => &self.request_bytes,
            Direction::Response => &self.response_bytes,
        }
    }
}

impl Collect for Stats {
    fn collect(&self, points: &mut Points<'_>) {
        points.put(Id::CapturePackets, &[], &self.packets);
        points.put(Id::CaptureLost, &[], &self.kernel_drops);
        let unread = [("malformed", &self.malformed), ("fragment", &self.fragments), ("truncated", &self.truncated)];
        points.put_each(Id::CaptureUnread, Key::Reason, unread.map(|(why, n)| (why, n)));
        points.put(Id::CaptureSegments, &[], &self.segments);
        let irregular = [
            ("duplicate", &self.duplicates),
            ("out_of_order", &self.out_of_order),
            ("retransmitted", &self.retransmitted),
            ("ignored", &self.ignored),
            ("shed", &self.shed),
        ];
        points.put_each(Id::CaptureIrregular, Key::Kind, irregular.map(|(kind, n)| (kind, n)));
        let connections = [
            ("opened", &self.opened),
            ("attached", &self.attached),
            ("synchronised", &self.synchronised),
            ("tls", &self.tls),
        ];
        points.put_each(Id::CaptureConnections, Key::Kind, connections.map(|(kind, n)| (kind, n)));
        points.put(Id::CaptureOpen, &[], self.open());
        points.put(Id::CaptureUnsynchronised, &[], self.unsynchronised.get());
        points.put(Id::CaptureGaps, &[], &self.gaps);
        let io = [("request", Direction::Request), ("response", Direction::Response)];
        points.put_each(Id::CaptureIo, Key::Direction, io.map(|(word, of)| (word, self.bytes(of))));
        points.put(Id::CaptureUnobserved, &[], &self.unobserved_bytes);
        points.put(Id::CaptureReassembly, &[], self.reassembly_bytes.get());
        points.put(Id::CaptureRingFull, &[], &self.ring_full);
        points.put(Id::CaptureRingUsed, &[], self.ring_used.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_the_maximum_of_the_last_minute() {
        let (peak, begin) = (Peak::default(), Instant::now());
        assert_eq!(peak.get(), None);
        let after = |seconds, value| {
            peak.put(value, begin + Duration::from_secs(seconds));
            peak.get()
        };
        assert_eq!(after(0, 0.5), Some(0.5));
        assert_eq!(after(29, 0.25), Some(0.5));
        assert_eq!(after(31, 0.125), Some(0.5));
        assert_eq!(after(61, 0.0), Some(0.125));
        assert_eq!(after(200, 0.0625), Some(0.0625));
    }
}
