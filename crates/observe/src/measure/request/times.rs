//! Times of one request, relative to its first byte.

use std::hint::black_box;
use std::time::Duration;

use crate::measure::{Count, EngineValues, QueueSource, QueueTime, RequestTimes, TokenCounts};
use tokometer_decode::EngineTiming;

/// Marks an unknown time.
const NEVER: u64 = u64::MAX;

/// A duration in nanoseconds, at most 584 years.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER).min(NEVER - 1)
}

/// Time of an event, if it happened. Half the size of an `Option<Duration>`, because every open stream stores several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Since(u64);

impl Since {
    /// The event has not happened.
    const NEVER: Since = Since(NEVER);

    /// The event happened at `time`.
    pub(super) fn at(time: Duration) -> Since {
        Since(nanos(time))
    }

    /// The event happened after this many nanoseconds.
    pub(super) fn at_nanos(nanos: u64) -> Since {
        Since(nanos)
    }

    /// The time in nanoseconds, if the event happened.
    pub(super) fn nanos(self) -> Option<u64> {
        self.is_known().then_some(self.0)
    }

    /// The time, if the event happened.
    pub(super) fn get(self) -> Option<Duration> {
        self.nanos().map(Duration::from_nanos)
    }

    /// True if the event happened.
    pub(super) fn is_known(self) -> bool {
        self != Since::NEVER
    }

    /// Sets the time unless already set.
    pub(super) fn first(&mut self, time: Duration) {
        if !self.is_known() {
            *self = Since::at(time);
        }
    }
}

impl Default for Since {
    fn default() -> Since {
        Since::NEVER
    }
}

impl From<Option<Duration>> for Since {
    fn from(time: Option<Duration>) -> Since {
        time.map_or(Since::NEVER, Since::at)
    }
}

/// Moments of one request, and the times that the engine reported.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Last byte of the request.
    pub(super) requested: Since,
    /// Final response headers complete.
    pub(super) headers: Since,
    pub(super) first_event: Since,
    pub(super) first_token: Since,
    pub(super) first_visible: Since,
    pub(super) last_token: Since,
    /// Queue time from the response headers.
    pub(super) header_queue: Since,
    /// Boxed: most responses report no times before their last event.
    engine: Option<Box<EngineTiming>>,
    /// Boxed: most clients are never slow.
    pub(super) blocked: Option<Box<Blocked>>,
}

impl Times {
    /// Prefetches the memory that the next event needs.
    pub(super) fn warm(&self) {
        black_box((self.first_event, self.last_token, self.blocked.is_some()));
    }

    /// A token-bearing event arrived.
    pub(super) fn token(&mut self, at: Duration) {
        self.first_token.first(at);
        self.last_token = Since::at(at);
        if let Some(blocked) = &mut self.blocked {
            blocked.token();
        }
    }

    /// Sets the engine-reported times. Keeps the earlier value of each time that `timing` lacks.
    pub(super) fn engine(&mut self, timing: EngineTiming) {
        let kept = self.engine.get_or_insert_default();
        **kept = timing.or(**kept);
    }

    /// Adds time during which delivery was blocked on the client.
    pub(super) fn blocked(&mut self, from: Duration, to: Duration) {
        self.blocked.get_or_insert_default().add(from, to, self.first_token.is_known());
    }

    /// The latest known moment.
    pub(super) fn latest(&self) -> Duration {
        let blocked = self.blocked.as_ref().map(|blocked| blocked.end());
        let known = [self.requested, self.headers, self.first_event, self.last_token].map(Since::get);
        known.into_iter().chain([blocked]).flatten().max().unwrap_or_default()
    }

    /// The moments of a request that ended at `ended`.
    pub(super) fn values(&self, ended: Duration) -> RequestTimes {
        RequestTimes {
            requested: self.requested.get(),
            headers: self.headers.get(),
            first_event: self.first_event.get(),
            first_token: self.first_token.get(),
            first_visible: self.first_visible.get(),
            last_token: self.last_token.get(),
            ended,
            closed: ended,
        }
    }

    /// What the engine reported. `began_with_headers`: the engine sends the response headers when work begins.
    pub(super) fn engine_values(&self, began_with_headers: bool, tokens: &TokenCounts) -> EngineValues {
        EngineValues {
            queue: self.queue(began_with_headers, tokens),
            timing: self.engine.as_deref().copied().unwrap_or_default(),
            span: None,
        }
    }

    /// The queue time from the best available source; `None` if no source reports it.
    fn queue(&self, began_with_headers: bool, tokens: &TokenCounts) -> Option<QueueTime> {
        let time = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).ok();
        let timing = self.engine.as_deref();
        // A part cannot exceed the whole. It is not compared with observed times, because a server that replays recorded
        // responses may send them faster than the recorded server.
        let in_band =
            |timing: &EngineTiming| timing.queue_ms.filter(|queue| timing.total_ms.is_none_or(|total| *queue <= total));
        if let Some(ms) = timing.and_then(in_band) {
            return Some(QueueTime { value: time(ms)?, source: QueueSource::InBand });
        }
        if let Some(value) = self.header_queue.get() {
            return Some(QueueTime { value, source: QueueSource::ResponseHeader });
        }
        let count = |count: Option<Count>| count.map_or(0, |count| count.tokens);
        let computed = count(tokens.input).saturating_sub(tokens.cached.unwrap_or(0));
        if let Some(ms) = timing.and_then(|timing| timing.unreported_ms(computed, count(tokens.output))) {
            return Some(QueueTime { value: time(ms)?, source: QueueSource::Remainder });
        }
        let mut began = self.headers.get().filter(|_| began_with_headers)?;
        // Headers read together with the first token were sent late or waited in a socket. Work began earlier, by the
        // prompt time; if that is not reported, the queue time is unknown.
        if self.first_token == self.headers {
            began = began.saturating_sub(timing.and_then(|timing| time(timing.prompt_ms?))?);
        }
        let value = began.saturating_sub(self.requested.get()?);
        Some(QueueTime { value, source: QueueSource::HeaderTiming })
    }
}

/// Maximum number of stored intervals. Later intervals are only added to the sums.
const KEPT: usize = 8;

/// Time during which delivery of a response was blocked on the client (backpressure), by phase of the response. The
/// sums include every interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Before the first token; all blocked time if no token was seen.
    pub waiting: Duration,
    /// Between the first and the last token.
    pub decoding: Duration,
    /// After the last token.
    pub finishing: Duration,
    /// Start and end of the first 8 intervals, relative to the first byte of the request.
    pub intervals: Vec<(Duration, Duration)>,
}

impl Blocked {
    /// Total blocked time.
    pub fn total(&self) -> Duration {
        self.waiting + self.decoding + self.finishing
    }

    /// Lower bound of the end of the last interval, which may not be stored.
    pub(super) fn end(&self) -> Duration {
        self.intervals.last().map_or(Duration::ZERO, |(_, to)| *to).max(self.total())
    }

    /// Adds the interval from `from` to `to`. `begun`: the first token has arrived.
    pub(super) fn add(&mut self, from: Duration, to: Duration, begun: bool) {
        let more = to.saturating_sub(from);
        if begun {
            // Moved to `decoding` if another token arrives.
            self.finishing += more;
        } else {
            self.waiting += more;
        }
        if self.intervals.len() < KEPT && !more.is_zero() {
            self.intervals.push((from, to));
        }
    }

    /// Another token arrived: blocked time since the previous token counts as decoding.
    pub(super) fn token(&mut self) {
        self.decoding += std::mem::take(&mut self.finishing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_and_the_first_one_is_kept() {
        let mut since = Since::NEVER;
        assert_eq!(since.get(), None);
        since.first(Duration::from_nanos(7));
        since.first(Duration::from_nanos(9));
        assert_eq!(since.get(), Some(Duration::from_nanos(7)));
        assert_eq!(Since::at(Duration::ZERO).get(), Some(Duration::ZERO));
        assert_eq!(Since::from(None), Since::NEVER);
    }

    #[test]
    fn overlong_times_saturate_instead_of_being_none() {
        for time in [Duration::MAX, Duration::from_nanos(u64::MAX), Duration::from_nanos(u64::MAX - 1)] {
            assert_eq!(Since::from(Some(time)).get(), Some(Duration::from_nanos(u64::MAX - 1)));
        }
    }
}
