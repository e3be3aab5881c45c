//! Measurements shared by all clients.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::load::summary::{End, Percentiles, Summary};

/// State of a run in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Time since the run began.
    pub elapsed: Duration,
    /// Requests open now.
    pub open: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Ended requests that failed.
    pub failed: u64,
    /// Events with tokens so far.
    pub token_events: u64,
    /// Median time to first token so far, in milliseconds.
    pub time_to_first_token_ms: f64,
}

#[derive(Debug)]
struct State {
    open: u64,
    /// The summary without the distributions.
    summary: Summary,
    /// In microseconds, like the next three.
    headers: Histogram<u64>,
    first_token: Histogram<u64>,
    gaps: Histogram<u64>,
    durations: Histogram<u64>,
    /// In thousandths of a token per second.
    rates: Histogram<u64>,
    /// In nanoseconds.
    transit: Histogram<u64>,
}

/// Measurements of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) end: End,
    pub(crate) status: Option<u16>,
    /// Token count from usage.
    pub(crate) usage: Option<u64>,
    pub(crate) token_events: u64,
    pub(crate) sent: Option<Instant>,
    pub(crate) headers: Option<Instant>,
    pub(crate) first: Option<Instant>,
    pub(crate) last: Option<Instant>,
}

/// Measurements of all clients.
#[derive(Debug)]
pub(crate) struct Recorder {
    started: Instant,
    state: Mutex<State>,
}

fn histogram(highest: u64) -> Histogram<u64> {
    // Three significant digits; values above `highest` count as `highest`.
    Histogram::new_with_bounds(1, highest, 3).expect("the constant bounds are valid for hdrhistogram")
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

impl Recorder {
    pub(crate) fn new(started: Instant) -> Recorder {
        const HOUR_US: u64 = 3_600_000_000;
        let state = State {
            open: 0,
            summary: Summary::default(),
            headers: histogram(HOUR_US),
            first_token: histogram(HOUR_US),
            gaps: histogram(HOUR_US),
            durations: histogram(HOUR_US),
            rates: histogram(10_000_000_000),
            transit: histogram(60_000_000_000),
        };
        Recorder { started, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic of a client cannot leave the counters in an invalid state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the warm-up is over.
    pub(crate) fn is_warm(&self, warm_up: Duration) -> bool {
        warm_up.is_zero() || self.started.elapsed() >= warm_up
    }

    pub(crate) fn begin(&self) {
        self.state().open += 1;
    }

    /// Records one read: bytes, token events, the gap before them and their transit time.
    pub(crate) fn read(&self, bytes: usize, token_events: u64, gap: Option<Duration>, transit: Option<Duration>) {
        let mut state = self.state();
        state.summary.bytes += bytes as u64;
        state.summary.token_events += token_events;
        if let Some(gap) = gap {
            state.gaps.saturating_record(micros(gap));
        }
        if let Some(transit) = transit {
            state.transit.saturating_record(transit.as_nanos() as u64);
        }
    }

    /// Records the end of a request; its times count only if `timed`, that is, outside the warm-up.
    pub(crate) fn end(&self, outcome: Outcome, timed: bool) {
        let now = Instant::now();
        let mut state = self.state();
        state.open = state.open.saturating_sub(1);
        if outcome.end == End::Unfinished && outcome.sent.is_none() {
            // The run ended before anything was sent, so the server did not receive this request.
            return;
        }
        state.summary.requests += 1;
        *state.summary.ends.entry(outcome.end).or_default() += 1;
        if let Some(status) = outcome.status {
            *state.summary.statuses.entry(status).or_default() += 1;
        }
        state.summary.tokens += outcome.usage.unwrap_or(outcome.token_events);
        state.summary.tokens_from_usage += outcome.usage.unwrap_or(0);
        let Some(sent) = outcome.sent.filter(|_| timed) else { return };
        if let Some(headers) = outcome.headers {
            state.headers.saturating_record(micros(headers - sent));
        }
        if let Some(first) = outcome.first {
            state.first_token.saturating_record(micros(first - sent));
        }
        if outcome.end == End::Complete {
            state.durations.saturating_record(micros(now - sent));
        }
        if let (Some(first), Some(last)) = (outcome.first, outcome.last) {
            let span = (last - first).as_secs_f64();
            let tokens = outcome.usage.unwrap_or(outcome.token_events);
            if span > 0.0 && tokens > 1 {
                state.rates.saturating_record(((tokens - 1) as f64 / span * 1e3) as u64);
            }
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        let state = self.state();
        let well = state.summary.count(End::Complete) + state.summary.count(End::Aborted);
        Progress {
            elapsed: self.started.elapsed(),
            open: state.open,
            ended: state.summary.requests,
            failed: state.summary.requests - well,
            token_events: state.summary.token_events,
            time_to_first_token_ms: state.first_token.value_at_quantile(0.5) as f64 / 1e3,
        }
    }

    pub(crate) fn summary(&self, wall: Duration) -> Summary {
        let state = self.state();
        Summary {
            seconds: wall.as_secs_f64(),
            time_to_headers_ms: Percentiles::of(&state.headers, 1e3),
            time_to_first_token_ms: Percentiles::of(&state.first_token, 1e3),
            inter_token_latency_ms: Percentiles::of(&state.gaps, 1e3),
            tokens_per_second: Percentiles::of(&state.rates, 1e3),
            duration_ms: Percentiles::of(&state.durations, 1e3),
            transit_us: Percentiles::of(&state.transit, 1e3),
            ..state.summary.clone()
        }
    }
}
