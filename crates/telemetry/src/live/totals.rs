//! Totals since the start: tokens, outcomes, and times to first token. The data path counts them in atomics, so that
//! taking a sample never makes it wait.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::live::buckets::Buckets;
use crate::live::buckets::Scale;
use tokometer_observe::measure::Gap;
use tokometer_observe::measure::Live;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Record;

/// The counters.
#[derive(Debug)]
pub(super) struct Totals {
    tokens: AtomicU64,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    first_token: Buckets,
    rate: Buckets,
    /// Of the rates, lower bounds.
    at_least: AtomicU64,
}

/// Counter values at one moment. Bucket counts wrap.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) tokens: u64,
    pub(super) outcomes: [u64; Outcome::ALL.len()],
    pub(super) first_token: Box<[u32]>,
    pub(super) rate: Box<[u32]>,
    pub(super) at_least: u64,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            tokens: AtomicU64::new(0),
            outcomes: Default::default(),
            first_token: Buckets::new(Scale::SECONDS),
            rate: Buckets::new(Scale::TOKENS_PER_SECOND),
            at_least: AtomicU64::new(0),
        }
    }
}

impl Totals {
    /// Counts a finished request. Must match what the exporters count, so that the live page and /metrics agree.
    pub(super) fn ended(&self, record: &Record) {
        if !record.labels.route.is_read() {
            return;
        }
        let at = Outcome::ALL.iter().position(|outcome| *outcome == record.outcome);
        if let Some(count) = at.and_then(|at| self.outcomes.get(at)) {
            count.fetch_add(1, Relaxed);
        }
        if record.labels.streaming == Some(true)
            && let Some(first) = record.since_requested(record.first_token)
        {
            self.first_token.add(first.as_secs_f64());
        }
        if let Some(rate) = record.decode_rate.or(record.decode_rate_at_least) {
            self.rate.add(rate);
            self.at_least.fetch_add(u64::from(record.decode_rate.is_none()), Relaxed);
        }
    }

    /// Current counter values.
    pub(super) fn sample(&self) -> Sample {
        Sample {
            tokens: self.tokens.load(Relaxed),
            outcomes: self.outcomes.each_ref().map(|count| count.load(Relaxed)),
            first_token: self.first_token.counts(),
            rate: self.rate.counts(),
            at_least: self.at_least.load(Relaxed),
        }
    }

    /// Counts the tokens of one stream and forwards every call to `next`.
    pub(super) fn before(self: &Arc<Self>, next: Option<Arc<dyn Live>>) -> Arc<dyn Live> {
        Arc::new(Counted { totals: Arc::clone(self), next })
    }
}

struct Counted {
    totals: Arc<Totals>,
    next: Option<Arc<dyn Live>>,
}

impl Live for Counted {
    fn progress(&self, gaps: &[Gap], tokens: u64) {
        self.totals.tokens.fetch_add(tokens, Relaxed);
        if let Some(next) = &self.next {
            next.progress(gaps, tokens);
        }
    }

    fn stalled(&self) {
        if let Some(next) = &self.next {
            next.stalled();
        }
    }

    fn reconcile(&self, tokens: u64) {
        self.totals.tokens.fetch_add(tokens, Relaxed);
        if let Some(next) = &self.next {
            next.reconcile(tokens);
        }
    }
}
