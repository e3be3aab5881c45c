//! Decides which requests' spans are kept.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use crate::export::Sampler;
use crate::export::Traces;
use crate::export::telemetry::Telemetry;
use crate::export::trace::Ids;
use crate::export::trace::Objectives;
use crate::export::trace::rate::Rate;
use tokometer_observe::measure::Record;

/// Why a trace is kept that the sampler would drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// The request failed.
    Failed,
    /// It broke an objective.
    Objective,
    /// Its tokens stalled.
    Stalled,
    /// Its first token took too long.
    Slow,
}

impl Keep {
    /// Every reason, in order of priority: the first that applies is recorded.
    pub(crate) const ALL: [Keep; 4] = [Keep::Failed, Keep::Objective, Keep::Stalled, Keep::Slow];

    /// The value of the label `reason`, and of the span's attribute.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Keep::Failed => "failed",
            Keep::Objective => "objective",
            Keep::Stalled => "stalled",
            Keep::Slow => "slow",
        }
    }
}

/// Parent-based and root sampling at the end of a request, plus keeping of failed and slow requests.
#[derive(Debug)]
pub(crate) struct Decision {
    sampler: Sampler,
    parent_based: bool,
    keep_failed: bool,
    keep_stalled: bool,
    keep_first_token_over: Option<Duration>,
    keep_unsampled: bool,
    rate: Rate,
    telemetry: Arc<Telemetry>,
}

impl Decision {
    pub(crate) fn new(traces: &Traces, telemetry: Arc<Telemetry>) -> Decision {
        Decision {
            sampler: traces.sampler,
            parent_based: traces.parent_based,
            keep_failed: traces.keep_failed,
            keep_stalled: traces.keep_stalled,
            keep_first_token_over: traces.keep_first_token_over,
            keep_unsampled: traces.keep_unsampled,
            rate: Rate::new(traces.keep_per_second, Instant::now()),
            telemetry,
        }
    }

    /// The ids of the request's span, if it is kept. `ended`: when the request ended.
    pub(crate) fn decide(&self, record: &Record, objectives: &Objectives, ended: Instant) -> Option<Ids> {
        let trace_id = record.trace.map_or_else(|| fastrand::u128(1..), |caller| caller.trace_id);
        let sampled = match record.trace {
            Some(caller) if self.parent_based => caller.sampled,
            _ => self.root(trace_id),
        };
        let kept = if sampled { None } else { Some(self.keep(record, objectives, ended)?) };
        let parent = record.trace.map(|caller| caller.span_id);
        Some(Ids { trace_id, span_id: fastrand::u64(1..), parent, kept })
    }

    /// `TraceIdRatioBased` compares the 63 bits on which the OpenTelemetry SDKs agree, so that all services with the
    /// same ratio keep the same traces.
    fn root(&self, trace_id: u128) -> bool {
        match self.sampler {
            Sampler::AlwaysOn => true,
            Sampler::AlwaysOff => false,
            Sampler::Ratio(share) if share >= 1.0 => true,
            Sampler::Ratio(share) => {
                let bound = (share.max(0.0) * (1u64 << 63) as f64) as u64;
                ((trace_id as u64) >> 1) < bound
            }
        }
    }

    /// Why an unsampled trace is kept nevertheless, as often as the cap allows.
    fn keep(&self, record: &Record, objectives: &Objectives, ended: Instant) -> Option<Keep> {
        if !self.keep_unsampled && record.trace.is_some_and(|caller| !caller.sampled) {
            return None;
        }
        let place = Keep::ALL.into_iter().position(|why| self.holds(why, record, objectives))?;
        if !self.rate.take(ended) {
            self.telemetry.traces_capped.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.telemetry.traces_kept.get(place)?.fetch_add(1, Ordering::Relaxed);
        Keep::ALL.get(place).copied()
    }

    fn holds(&self, why: Keep, record: &Record, objectives: &Objectives) -> bool {
        match why {
            Keep::Failed => self.keep_failed && !record.outcome.is_ok(),
            Keep::Objective => objectives.are_broken(record),
            Keep::Stalled => self.keep_stalled && record.stalls > 0,
            Keep::Slow => {
                // Without a token, the wait lasted until the end.
                let first = record.since_requested(Some(record.first_token.unwrap_or(record.ended)));
                self.keep_first_token_over.zip(first).is_some_and(|(most, first)| first > most)
            }
        }
    }
}
