//! Which exchanges' spans are kept.

use std::time::Duration;

use crate::export::Sampler;
use crate::export::Traces;
use crate::export::trace::Ids;
use crate::measure::Record;

/// Parent-based and root sampling at the end of an exchange, and keeping of what failed or was slow.
#[derive(Debug)]
pub(crate) struct Decision {
    sampler: Sampler,
    parent_based: bool,
    keep_failed: bool,
    keep_first_token_over: Option<Duration>,
}

impl Decision {
    pub(crate) fn new(traces: &Traces) -> Decision {
        Decision {
            sampler: traces.sampler,
            parent_based: traces.parent_based,
            keep_failed: traces.keep_failed,
            keep_first_token_over: traces.keep_first_token_over,
        }
    }

    /// The ids of the exchange's span, if it is kept.
    pub(crate) fn decide(&self, record: &Record) -> Option<Ids> {
        let trace_id = record.trace.map_or_else(|| fastrand::u128(1..), |caller| caller.trace_id);
        let sampled = match record.trace {
            Some(caller) if self.parent_based => caller.sampled,
            _ => self.root(trace_id),
        };
        let kept = sampled || self.failed(record) || self.slow(record);
        kept.then(|| Ids { trace_id, span_id: fastrand::u64(1..), parent: record.trace.map(|caller| caller.span_id) })
    }

    /// `TraceIdRatioBased` compares the 63 bits on which the OpenTelemetry SDKs agree, so that every service with the
    /// same share keeps the same traces.
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

    fn failed(&self, record: &Record) -> bool {
        self.keep_failed && !record.outcome.is_ok()
    }

    /// The first token took too long; where none came, the wait did.
    fn slow(&self, record: &Record) -> bool {
        let first = record.since_requested(Some(record.first_token.unwrap_or(record.ended)));
        self.keep_first_token_over.zip(first).is_some_and(|(most, first)| first > most)
    }
}
