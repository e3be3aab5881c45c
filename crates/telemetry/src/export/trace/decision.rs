//! Decides which requests' spans are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::export::collect::telemetry::{Keep, Telemetry};
use crate::export::trace::Ids;
use crate::export::{Sampler, Traces};
use tokometer_observe::measure::Record;

/// Parent-based and root sampling at the end of a request. The settings can additionally keep requests that failed,
/// stalled, were slow or missed an objective.
#[derive(Debug)]
pub(crate) struct Decision {
    settings: Traces,
    rate: Rate,
    telemetry: Arc<Telemetry>,
}

impl Decision {
    pub(crate) fn new(traces: &Traces, telemetry: Arc<Telemetry>) -> Decision {
        Decision { rate: Rate::new(traces.keep_per_second, Instant::now()), settings: traces.clone(), telemetry }
    }

    /// The IDs of the request's span; `None` if the span is dropped. `ended` is the end of the request.
    pub(crate) fn decide(&self, record: &Record, breaks_objective: impl Fn() -> bool, ended: Instant) -> Option<Ids> {
        let trace_id = record.server_trace().map_or_else(|| fastrand::u128(1..), |trace| trace.trace_id);
        let sampled = match record.request.trace {
            Some(caller) if self.settings.parent_based => caller.sampled,
            _ => self.root(trace_id),
        };
        let kept = if sampled { None } else { Some(self.keep(record, breaks_objective, ended)?) };
        let parent = record.request.trace.map(|caller| caller.span_id);
        // The engine received this span ID in the traceparent header, and uses it as the parent of its own spans.
        let span_id = record.request.sent_trace.map_or_else(|| fastrand::u64(1..), |sent| sent.span_id);
        Some(Ids { trace_id, span_id, parent, kept })
    }

    /// True if the configured root sampler keeps the trace. The ratio sampler compares the same 63 bits as
    /// `TraceIdRatioBased` in the OpenTelemetry SDKs, so all services with the same ratio keep the same traces.
    fn root(&self, trace_id: u128) -> bool {
        match self.settings.sampler {
            Sampler::AlwaysOn => true,
            Sampler::AlwaysOff => false,
            Sampler::Ratio(share) => {
                let bound = (share.clamp(0.0, 1.0) * (1u64 << 63) as f64) as u64;
                ((trace_id as u64) >> 1) < bound
            }
        }
    }

    /// The reason to keep an unsampled trace; `None` if there is no reason, or the limit per second is reached.
    fn keep(&self, record: &Record, breaks_objective: impl Fn() -> bool, ended: Instant) -> Option<Keep> {
        if !self.settings.keep_unsampled && record.request.trace.is_some_and(|caller| !caller.sampled) {
            return None;
        }
        let why = Keep::ALL.into_iter().find(|why| self.applies(*why, record, &breaks_objective))?;
        let (count, kept) = match self.rate.take(ended) {
            true => (&self.telemetry.traces_kept[why as usize], Some(why)),
            false => (&self.telemetry.traces_capped, None),
        };
        count.fetch_add(1, Ordering::Relaxed);
        kept
    }

    fn applies(&self, why: Keep, record: &Record, breaks_objective: impl Fn() -> bool) -> bool {
        match why {
            Keep::Failed => self.settings.keep_failed && !record.outcome.is_ok(),
            Keep::Objective => breaks_objective(),
            Keep::Stalled => self.settings.keep_stalled && record.gaps.stalls.is_some_and(|stalls| stalls > 0),
            Keep::Slow => {
                // Without a token, the wait lasted until the end of the request.
                let first = record.since_requested(Some(record.times.first_token.unwrap_or(record.times.ended)));
                self.settings.keep_first_token_over.zip(first).is_some_and(|(most, first)| first > most)
            }
        }
    }
}

const SECOND: u64 = 1_000_000_000;

/// A rate limit per second. After a second without items, one second's quota can be used in a single burst.
///
/// The generic cell rate algorithm (ITU-T I.371), with one atomic and no lock. The limit also holds if calls pass
/// late or unordered times.
#[derive(Debug)]
struct Rate {
    start: Instant,
    /// Nanoseconds per item; `None` without a limit.
    each: Option<u64>,
    /// Time at which all items so far would have passed at the steady rate, in nanoseconds after `start`.
    due: AtomicU64,
}

impl Rate {
    /// A limit of `per_second`; `None` for no limit.
    fn new(per_second: Option<u64>, start: Instant) -> Rate {
        let each = per_second.map(|n| (SECOND / n.max(1)).max(1));
        Rate { start, each, due: AtomicU64::new(0) }
    }

    /// Takes one item at time `at` if the limit allows it.
    fn take(&self, at: Instant) -> bool {
        let Some(each) = self.each else { return true };
        let now = u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        let next = |due: u64| {
            let due = due.max(now).saturating_add(each);
            (due <= now.saturating_add(SECOND)).then_some(due)
        };
        self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn taken(rate: &Rate, at: Instant, attempts: usize) -> usize {
        (0..attempts).filter(|_| rate.take(at)).count()
    }

    #[test]
    fn each_second_allows_the_cap_and_no_more_accumulate() {
        let start = Instant::now();
        let rate = Rate::new(Some(10), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(taken(&rate, at(0), 100), 10);
        assert_eq!(taken(&rate, at(99), 100), 0);
        assert_eq!(taken(&rate, at(350), 100), 3);
        assert_eq!(taken(&rate, at(1350), 100), 10);
        assert_eq!(taken(&rate, at(100_000), 100), 10);
    }

    #[test]
    fn times_out_of_order_let_no_more_pass() {
        let start = Instant::now();
        let rate = Rate::new(Some(4), start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(taken(&rate, at(5000), 9), 4);
        assert_eq!(taken(&rate, at(0), 9), 0);
        assert_eq!(taken(&rate, at(5250), 9), 1);
    }

    #[test]
    fn no_cap_and_the_maximum_cap_let_all_pass() {
        let start = Instant::now();
        assert_eq!(taken(&Rate::new(None, start), start, 100_000), 100_000);
        assert_eq!(taken(&Rate::new(Some(u64::MAX), start), start, 1000), 1000);
    }
}
