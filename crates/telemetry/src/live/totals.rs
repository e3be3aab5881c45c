//! Totals since the start, and last-minute rates and distributions, from samples taken once per second. The data path
//! counts in atomics, so it never waits for a sample.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::live::histogram;
use crate::live::histogram::{Buckets, Scale};
use crate::live::snapshot::{Distribution, Rates, Second};
use tokometer_observe::measure::{Gap, Live, Outcome, Record};

/// Counters since the start.
#[derive(Debug)]
pub(super) struct Totals {
    tokens: AtomicU64,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    first_token: Buckets,
    rate: Buckets,
    /// Number of rates that are lower bounds.
    at_least: AtomicU64,
}

/// Counter values at one moment. Bucket counts wrap at 32 bits.
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
        self.tokens.fetch_add(record.late_tokens(), Relaxed);
        if record.labels.streaming == Some(true)
            && let Some(first) = record.time_to_first_token()
        {
            self.first_token.add(first.as_secs_f64());
        }
        if let Some(rate) = record.rate.exact.or(record.rate.at_least)
            && record.request.choices == 1
            && !record.is_client_limited()
        {
            self.rate.add(rate);
            self.at_least.fetch_add(u64::from(record.rate.exact.is_none()), Relaxed);
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
}

impl Live for Totals {
    fn progress(&self, _gaps: &[Gap], tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
    }

    fn stalled(&self) {}

    fn reconcile(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Relaxed);
    }
}

/// Length of the per-second history, and window of the distributions.
const SECONDS: usize = 60;

/// Window of the token rate. It covers several batches of token counts, which the data path adds at least once per
/// second.
const TOKENS_OVER: Duration = Duration::from_secs(3);

/// Window of the request rates. It is longer than the window of the token rate, because requests end less often than
/// tokens arrive.
const ENDINGS_OVER: Duration = Duration::from_secs(10);

/// Samples of the last minute, taken once per second by the caller of `tick`.
#[derive(Debug)]
pub(super) struct History(Mutex<VecDeque<(Instant, Sample)>>);

impl History {
    /// Starts with a first sample.
    pub(super) fn new(start: Instant, sample: Sample) -> History {
        History(Mutex::new(VecDeque::from([(start, sample)])))
    }

    /// Adds a sample and drops the oldest one once the history is full.
    pub(super) fn note(&self, now: Instant, sample: Sample) {
        let mut samples = self.samples();
        if samples.len() > SECONDS {
            samples.pop_front();
        }
        samples.push_back((now, sample));
    }

    /// Rates at `now`; `totals` is the current sample.
    pub(super) fn rates(&self, now: Instant, totals: &Sample) -> Rates {
        let samples = self.samples();
        let since = |span| before(&samples, now, span);
        let (seconds, sample) = since(TOKENS_OVER);
        let tokens_per_second = per_second(totals.tokens.saturating_sub(sample.tokens), seconds);
        let (seconds, sample) = since(ENDINGS_OVER);
        let ended = ended(sample, totals);
        let failed = ended.iter().filter(|(outcome, n)| !outcome.is_ok() && *n > 0);
        Rates {
            tokens_per_second,
            requests_per_second: per_second(ended.iter().map(|(_, n)| n).sum(), seconds),
            failed_per_second: failed.map(|(o, n)| (o.as_str().to_owned(), per_second(*n, seconds))).collect(),
            history: samples.iter().zip(samples.iter().skip(1)).map(second).collect(),
        }
    }

    /// Distributions of the time to first token and of the decode rate at `now`; `totals` is the current sample.
    pub(super) fn distributions(&self, now: Instant, totals: &Sample) -> [Distribution; 2] {
        let samples = self.samples();
        let (seconds, first) = before(&samples, now, Duration::from_secs(SECONDS as u64));
        let of = |scale, before: &[u32], after: &[u32]| {
            let buckets = histogram::between(scale, before, after);
            let [p10, p50, p90, p99] = [0.1, 0.5, 0.9, 0.99].map(|share| histogram::quantile(&buckets, share));
            let count = buckets.iter().map(|(_, _, count)| count).sum();
            Distribution { window_seconds: seconds, count, at_least: 0, p10, p50, p90, p99, buckets }
        };
        let at_least = totals.at_least.saturating_sub(first.at_least);
        [
            of(Scale::SECONDS, &first.first_token, &totals.first_token),
            Distribution { at_least, ..of(Scale::TOKENS_PER_SECOND, &first.rate, &totals.rate) },
        ]
    }

    fn samples(&self) -> MutexGuard<'_, VecDeque<(Instant, Sample)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of finished requests by outcome, without zero counts.
pub(super) fn by_outcome(totals: &Sample) -> BTreeMap<String, u64> {
    let all = Outcome::ALL.iter().zip(totals.outcomes);
    all.filter(|(_, n)| *n > 0).map(|(outcome, n)| (outcome.as_str().to_owned(), n)).collect()
}

/// The latest sample that is at least `span` old, otherwise the oldest sample, and its age in seconds.
fn before(samples: &VecDeque<(Instant, Sample)>, now: Instant, span: Duration) -> (f64, &Sample) {
    let old = |(at, _): &(Instant, Sample)| now.saturating_duration_since(*at) >= span;
    let at = samples.partition_point(old).saturating_sub(1);
    let (at, sample) = &samples[at];
    (now.saturating_duration_since(*at).as_secs_f64(), sample)
}

fn ended(before: &Sample, after: &Sample) -> Vec<(Outcome, u64)> {
    let counts = after.outcomes.iter().zip(before.outcomes).map(|(after, before)| after.saturating_sub(before));
    Outcome::ALL.into_iter().zip(counts).collect()
}

fn second((before, after): (&(Instant, Sample), &(Instant, Sample))) -> Second {
    let mut second = Second {
        seconds: after.0.saturating_duration_since(before.0).as_secs_f64(),
        tokens: after.1.tokens.saturating_sub(before.1.tokens),
        ..Second::default()
    };
    for (outcome, n) in ended(&before.1, &after.1) {
        match outcome {
            Outcome::Ok => second.ok += n,
            Outcome::ClientAbortBeforeFirstToken | Outcome::ClientAbortMidStream => second.aborted += n,
            // It is unknown whether these requests succeeded.
            Outcome::Unobserved => {}
            _ => second.failed += n,
        }
    }
    second
}

fn per_second(n: u64, seconds: f64) -> f64 {
    // The window is empty just after the start.
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::live::tests::record;
    use tokometer_observe::measure::{Count, CountSource};

    /// Totals sampled once per second.
    struct Stage {
        start: Instant,
        totals: Arc<Totals>,
        history: History,
    }

    impl Stage {
        fn new() -> Stage {
            let (start, totals) = (Instant::now(), Arc::new(Totals::default()));
            let history = History::new(start, totals.sample());
            Stage { start, totals, history }
        }

        fn at(&self, seconds: f64) -> Instant {
            self.start + Duration::from_secs_f64(seconds)
        }

        fn tick(&self, seconds: u64) {
            self.history.note(self.at(seconds as f64), self.totals.sample());
        }

        fn end(&self, outcome: Outcome, first: f64, rate: Option<f64>) {
            let record = record(self.start);
            let mut labels = (*record.labels).clone();
            labels.streaming = Some(true);
            self.totals.ended(&record.with(|r| {
                r.outcome = outcome;
                r.labels = Arc::new(labels);
                r.times.first_token = Some(Duration::from_secs_f64(first));
                r.rate.exact = rate;
                r.rate.at_least = rate.is_none().then_some(1.0);
            }));
        }
    }

    #[test]
    fn tokens_include_those_counted_after_the_end() {
        let stage = Stage::new();
        stage.totals.progress(&[], 5);
        let count = |tokens| Some(Count { tokens, source: CountSource::EngineSpan });
        let ended = |live_tokens, tokens| {
            let output_tokens = count(tokens);
            stage.totals.ended(&record(stage.start).with(|r| {
                r.tokens.live = live_tokens;
                r.tokens.output = output_tokens;
            }));
            stage.totals.sample().tokens
        };
        assert_eq!(ended(Some(5), 8), 8);
        assert_eq!((ended(Some(5), 4), ended(None, 7)), (8, 8), "nothing is taken away or counted twice");
    }

    #[test]
    fn rates_cover_the_last_seconds_history_has_one_entry_each() {
        let stage = Stage::new();
        let live = &stage.totals;
        for second in 1..=20 {
            live.progress(&[], 100);
            stage.end(Outcome::Ok, 0.1, None);
            if second > 15 {
                live.reconcile(20);
                stage.end(Outcome::Http5xx, 0.1, None);
                stage.end(Outcome::ClientAbortMidStream, 0.1, None);
            }
            stage.tick(second);
        }
        let rates = stage.history.rates(stage.at(20.0), &stage.totals.sample());
        assert_eq!((rates.tokens_per_second, rates.requests_per_second), (120.0, 2.0));
        let failed: Vec<_> = rates.failed_per_second.iter().map(|(word, n)| (word.as_str(), *n)).collect();
        assert_eq!(failed, [("client_abort_mid_stream", 0.5), ("http_5xx", 0.5)]);
        let quiet = Second { seconds: 1.0, tokens: 100, ok: 1, aborted: 0, failed: 0 };
        let busy = Second { tokens: 120, aborted: 1, failed: 1, ..quiet };
        assert_eq!((rates.history.len(), rates.history[0], rates.history[19]), (20, quiet, busy));
        // No tokens for three seconds.
        for second in 21..=23 {
            stage.tick(second);
        }
        assert_eq!(stage.history.rates(stage.at(23.0), &stage.totals.sample()).tokens_per_second, 0.0);
    }

    #[test]
    fn distributions_drop_requests_older_than_a_minute() {
        let stage = Stage::new();
        stage.end(Outcome::Ok, 5.0, Some(10.0));
        stage.tick(1);
        stage.end(Outcome::Ok, 0.5, None);
        let now = |seconds| stage.history.distributions(stage.at(seconds), &stage.totals.sample());
        let [first, rate] = now(1.5);
        assert_eq!((first.count, first.buckets.len(), first.window_seconds), (2, 2, 1.5));
        assert_eq!((rate.count, rate.at_least), (2, 1));
        for second in 2..=200 {
            stage.tick(second);
            assert!(stage.history.samples().len() <= SECONDS + 1);
        }
        let [first, rate] = now(200.0);
        assert_eq!((first.count, first.p50, first.window_seconds, rate.count), (0, None, 60.0, 0));
        stage.end(Outcome::Ok, 0.5, Some(50.0));
        let [first, rate] = now(200.5);
        let (p50, rate) = (first.p50.unwrap(), rate.p50.unwrap());
        assert!((0.42..0.6).contains(&p50) && (42.0..60.0).contains(&rate), "{p50} {rate}");
    }

    #[test]
    fn rates_are_finite_just_after_the_start() {
        let stage = Stage::new();
        stage.end(Outcome::Ok, 0.5, Some(50.0));
        let rates = stage.history.rates(stage.start, &stage.totals.sample());
        assert_eq!((rates.requests_per_second, rates.history.len()), (0.0, 0));
    }
}
