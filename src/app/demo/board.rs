//! The live metrics of a demo.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;

use tokometer_observe::measure::Detach;
use tokometer_observe::measure::Gap;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Live;
use tokometer_observe::measure::Message;
use tokometer_observe::measure::Outcome;
use tokometer_observe::measure::Phase;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::Unread;

/// A sink that keeps the metrics shown by a demo.
#[derive(Debug, Default)]
pub(super) struct Board {
    waiting: AtomicI64,
    streaming: AtomicI64,
    tokens: Arc<AtomicU64>,
    gaps: Arc<Mutex<Distribution>>,
    ended: Mutex<Ended>,
}

/// Statistics of ended requests.
#[derive(Debug, Default)]
struct Ended {
    outcomes: BTreeMap<Outcome, u64>,
    first_token: Distribution,
    rate: Distribution,
}

/// A distribution of positive numbers, with three significant digits.
#[derive(Debug)]
pub(super) struct Distribution(Histogram<u32>);

/// Values are stored in thousandths.
const SCALE: f64 = 1000.0;

/// One hour in ms, or a million tokens per second.
const MOST: u64 = 3_600_000_000;

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution(Histogram::new_with_bounds(1, MOST, 3).expect("the bounds are valid for the histogram"))
    }
}

impl Distribution {
    fn add(&mut self, value: f64) {
        self.0.saturating_record(((value * SCALE) as u64).max(1));
    }

    /// The value at this quantile; `None` if the distribution is empty.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(share) as f64 / SCALE)
    }
}

/// A snapshot of the metrics.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// Requests without a token so far.
    pub(super) waiting: i64,
    /// Requests that are streaming tokens.
    pub(super) streaming: i64,
    /// Total tokens so far.
    pub(super) tokens: u64,
    /// Ended requests, by outcome.
    pub(super) outcomes: BTreeMap<Outcome, u64>,
    /// Time to first token, p50 and p99, milliseconds.
    pub(super) first_token: [Option<f64>; 2],
    /// Inter-token latency, p50 and p99, milliseconds.
    pub(super) gap: [Option<f64>; 2],
    /// Decode rate, p50 and p1 (slowest percent), tokens per second.
    pub(super) rate: [Option<f64>; 2],
}

impl Board {
    /// The current metrics.
    pub(super) fn figures(&self) -> Figures {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        Figures {
            waiting: self.waiting.load(Relaxed),
            streaming: self.streaming.load(Relaxed),
            tokens: self.tokens.load(Relaxed),
            outcomes: ended.outcomes.clone(),
            first_token: [0.5, 0.99].map(|q| ended.first_token.quantile(q)),
            gap: [0.5, 0.99].map(|q| gaps.quantile(q)),
            rate: [0.5, 0.01].map(|q| ended.rate.quantile(q)),
        }
    }
}

impl Sink for Board {
    fn in_flight(&self, _pair: usize, phase: Phase, delta: i64) {
        let gauge = match phase {
            Phase::WaitingFirstToken => &self.waiting,
            Phase::Streaming => &self.streaming,
        };
        gauge.fetch_add(delta, Relaxed);
    }

    fn live(&self, _labels: &Labels) -> Option<Arc<dyn Live>> {
        Some(Arc::new(Moving { tokens: Arc::clone(&self.tokens), gaps: Arc::clone(&self.gaps) }))
    }

    fn record(&self, record: &Arc<Record>) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended.outcomes.entry(record.outcome).or_default() += 1;
        if let Some(first) = record.since_requested(record.first_token) {
            ended.first_token.add(first.as_secs_f64() * 1e3);
        }
        if let Some(rate) = record.decode_rate {
            ended.rate.add(rate);
        }
    }

    fn detached(&self, _pair: usize, _why: Detach) {}

    fn unread(&self, _pair: usize, _of: Message, _why: Unread) {}
}

/// Updates the metrics while a stream runs.
struct Moving {
    tokens: Arc<AtomicU64>,
    gaps: Arc<Mutex<Distribution>>,
}

impl Live for Moving {
    fn progress(&self, gaps: &[Gap], tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
        let mut kept = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        for gap in gaps {
            let tokens = gap.tokens.unwrap_or(1).max(1);
            kept.add(gap.gap.as_secs_f64() * 1e3 / f64::from(tokens));
        }
    }

    fn stalled(&self) {}

    fn reconcile(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
    }
}
