//! Network measurements between the server's host and the client.

use std::time::{Duration, Instant};

use tokometer_observe::input::Network;

/// Half of the window for the minimum round-trip time (Linux: `tcp_min_rtt_wlen`, 300 s in total).
const HALF_WINDOW: Duration = Duration::from_secs(150);

/// Measures the network of one connection, from the bytes sent to the client and the client's acknowledgements.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// End of the bytes whose round trip is being measured, and when they were sent.
    timed: Option<(u32, Instant)>,
    rtt: Minimum,
    retransmits: u64,
    /// When the client's window became zero.
    closed_since: Option<Instant>,
    closed: Duration,
    changed: bool,
}

impl Meter {
    /// Records new bytes, up to this sequence number, sent to the client. One round trip is measured at a time.
    pub(super) fn sent(&mut self, end: u32, at: Instant) {
        self.timed.get_or_insert((end, at));
    }

    /// Records a retransmission. The expected acknowledgement may now belong to either copy (Karn's algorithm, RFC
    /// 6298, section 3).
    pub(super) fn sent_again(&mut self, with_data: bool) {
        self.timed = None;
        if with_data {
            self.retransmits += 1;
            self.changed = true;
        }
    }

    /// Records that the client has received all bytes before this sequence number.
    pub(super) fn acknowledged(&mut self, before: u32, at: Instant) {
        if let Some((end, sent)) = self.timed
            && before.wrapping_sub(end) as i32 >= 0
        {
            self.timed = None;
            self.changed |= self.rtt.add(at.saturating_duration_since(sent), at);
        }
    }

    /// Records the receive window that the client announced, and returns the change.
    pub(super) fn window(&mut self, window: u16, at: Instant) -> Window {
        match (self.closed_since, window) {
            (None, 0) => {
                self.closed_since = Some(at);
                self.changed = true;
                Window::Closed
            }
            (Some(since), 1..) => {
                self.closed_since = None;
                self.closed += at.saturating_duration_since(since);
                self.changed = true;
                Window::Opened(since)
            }
            _ => Window::Unchanged,
        }
    }

    /// The totals until `at`, if they have changed since the last call.
    pub(super) fn changes(&mut self, at: Instant) -> Option<Network> {
        if !std::mem::take(&mut self.changed) && self.closed_since.is_none() {
            return None;
        }
        let closed = self.closed_since.map_or(Duration::ZERO, |since| at.saturating_duration_since(since));
        Some(Network {
            rtt: self.rtt.value(),
            retransmits: Some(self.retransmits),
            zero_window: Some(self.closed + closed),
        })
    }

    /// When the client's window became zero; `None` while it is open.
    pub(super) fn closed_since(&self) -> Option<Instant> {
        self.closed_since
    }

    /// Makes [`Meter::changes`] return the totals again, for a new observer.
    pub(super) fn repeat(&mut self) {
        self.changed = true;
    }
}

/// A change of the client's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// The window became zero.
    Closed,
    /// The window is no longer zero; it was zero since this instant.
    Opened(Instant),
    /// No change between zero and nonzero.
    Unchanged,
}

/// A minimum over the last 150 to 300 seconds.
#[derive(Debug, Default)]
struct Minimum {
    since: Option<Instant>,
    this: Option<Duration>,
    last: Option<Duration>,
}

impl Minimum {
    /// Adds a value. True if the minimum has changed.
    fn add(&mut self, value: Duration, at: Instant) -> bool {
        let before = self.value();
        let since = *self.since.get_or_insert(at);
        let age = at.saturating_duration_since(since);
        if age >= HALF_WINDOW {
            self.last = self.this.take().filter(|_| age < 2 * HALF_WINDOW);
            self.since = Some(at);
        }
        self.this = Some(self.this.map_or(value, |this| this.min(value)));
        before != self.value()
    }

    fn value(&self) -> Option<Duration> {
        self.this.into_iter().chain(self.last).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rtt_is_the_minimum_of_unambiguous_samples() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        meter.sent(100, start);
        meter.sent(200, start + MS);
        meter.acknowledged(99, start + 2 * MS);
        assert_eq!(meter.changes(start), None);
        meter.acknowledged(100, start + 5 * MS);
        assert_eq!(meter.changes(start).unwrap().rtt, Some(5 * MS));
        // The round trip of a segment that was sent twice is ambiguous and ignored.
        meter.sent(300, start + 6 * MS);
        meter.sent_again(true);
        meter.acknowledged(300, start + 7 * MS);
        let network = meter.changes(start).unwrap();
        assert_eq!((network.rtt, network.retransmits), (Some(5 * MS), Some(1)));
        // Across the wraparound of sequence numbers.
        meter.sent(u32::MAX, start + 8 * MS);
        meter.acknowledged(3, start + 11 * MS);
        assert_eq!(meter.changes(start).unwrap().rtt, Some(3 * MS));
    }

    #[test]
    fn rtt_forgets_samples_older_than_five_minutes() {
        let (mut minimum, start) = (Minimum::default(), Instant::now());
        minimum.add(MS, start);
        minimum.add(9 * MS, start + HALF_WINDOW);
        assert_eq!(minimum.value(), Some(MS));
        minimum.add(8 * MS, start + 2 * HALF_WINDOW);
        assert_eq!(minimum.value(), Some(8 * MS));
        minimum.add(20 * MS, start + 5 * HALF_WINDOW);
        assert_eq!(minimum.value(), Some(20 * MS));
    }

    #[test]
    fn zero_window_time_includes_the_current_one() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        assert_eq!(meter.window(0, start), Window::Closed);
        assert_eq!(meter.window(0, start + MS), Window::Unchanged);
        assert_eq!(meter.changes(start + 2 * MS).unwrap().zero_window, Some(2 * MS));
        assert_eq!(meter.window(7, start + 4 * MS), Window::Opened(start));
        meter.window(0, start + 6 * MS);
        meter.window(1, start + 7 * MS);
        assert_eq!(meter.changes(start + 9 * MS).unwrap().zero_window, Some(5 * MS));
        assert_eq!(meter.changes(start + 9 * MS), None);
    }
}
