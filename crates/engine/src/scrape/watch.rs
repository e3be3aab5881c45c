//! What is known of one engine, and of the attempts to read its page. Times come in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use crate::scrape::Settings;
use crate::scrape::page::Page;
use crate::scrape::state::State;
use crate::scrape::state::Tracker;

/// States that are kept: an hour of them at five seconds each, for streams that began long before they ended.
const MOST_STATES: usize = 720;

/// A state is of the moment until it is older than this many intervals: the page after it may be late, and one may fail
/// without a trace (a thread that got no time).
const INTERVALS: u32 = 3;

/// Waits between two tries double with each failure, up to this; never shorter than the interval.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Why a page was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// There was no connection.
    Connect,
    /// It took too long.
    Timeout,
    /// The connection broke, or what came was no HTTP.
    Broken,
    /// The status was not 200: the server has no such page, or does not show it.
    Status,
    /// The page is over the cap.
    TooLarge,
    /// It holds no samples.
    NotMetrics,
    /// It is JSON: perhaps a page that reading empties (trtllm-serve's /metrics), and left alone from then on.
    Json,
    /// It has none of the names that are known.
    Strange,
}

impl Failure {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Failure; 8] = [
        Failure::Connect,
        Failure::Timeout,
        Failure::Broken,
        Failure::Status,
        Failure::TooLarge,
        Failure::NotMetrics,
        Failure::Json,
        Failure::Strange,
    ];

    /// The value of the label `reason`.
    pub fn as_str(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::Timeout => "timeout",
            Failure::Broken => "broken",
            Failure::Status => "status",
            Failure::TooLarge => "too_large",
            Failure::NotMetrics => "not_metrics",
            Failure::Json => "json",
            Failure::Strange => "unknown_names",
        }
    }
}

/// The figures of one engine at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// The state of the moment; `None` when the last attempt failed, or the state is too old.
    pub state: Option<Arc<State>>,
    /// Pages that were asked for.
    pub attempts: u64,
    /// Those that were not read, in the order of [`Failure::ALL`].
    pub failures: [u64; Failure::ALL.len()],
    /// How long the last attempt took.
    pub duration: Option<Duration>,
    /// Time since the last page that was read.
    pub age: Option<Duration>,
}

/// Takes what came of each attempt; asked by the exporters.
#[derive(Debug)]
pub struct Watch {
    /// A state that is older says nothing of the moment.
    longest: Duration,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tracker: Tracker,
    /// In the order of their times; `None` from when a page could not be read.
    states: VecDeque<(Instant, Option<Arc<State>>)>,
    attempts: u64,
    failures: [u64; Failure::ALL.len()],
    in_a_row: u32,
    duration: Option<Duration>,
    read: Option<Instant>,
}

impl Watch {
    /// Nothing is known yet.
    pub fn new(settings: &Settings) -> Watch {
        Watch { longest: settings.interval * INTERVALS + settings.timeout, inner: Mutex::default() }
    }

    /// An attempt ended: the page and when its answer began, or why there is none and when that was known.
    pub fn note(&self, at: Instant, took: Duration, result: Result<&Page, Failure>) {
        let mut inner = self.inner();
        inner.attempts += 1;
        inner.duration = Some(took);
        match result {
            Ok(page) => {
                inner.in_a_row = 0;
                inner.read = Some(at);
                let state = Arc::new(inner.tracker.take(page));
                inner.push(at, Some(state));
            }
            Err(failure) => {
                inner.in_a_row = inner.in_a_row.saturating_add(1);
                if let Some(count) = inner.failures.get_mut(failure as usize) {
                    *count += 1;
                }
                inner.push(at, None);
            }
        }
    }

    /// The state that was of the moment then, and how old it was.
    pub fn at(&self, moment: Instant) -> Option<(Arc<State>, Duration)> {
        self.find(&self.inner(), moment)
    }

    /// Everything of this moment.
    pub fn figures(&self, now: Instant) -> Figures {
        let inner = self.inner();
        Figures {
            state: self.find(&inner, now).map(|(state, _)| state),
            attempts: inner.attempts,
            failures: inner.failures,
            duration: inner.duration,
            age: inner.read.map(|read| now.saturating_duration_since(read)),
        }
    }

    /// Time until the next attempt; `jitter` is a random number from 0 to 1.
    pub fn pause(&self, settings: &Settings, jitter: f64) -> Duration {
        let longest = LONGEST_PAUSE.max(settings.interval);
        let doubled = settings.interval.saturating_mul(1 << self.inner().in_a_row.saturating_sub(1).min(16));
        doubled.min(longest).mul_f64(0.9 + 0.2 * jitter)
    }

    fn find(&self, inner: &Inner, moment: Instant) -> Option<(Arc<State>, Duration)> {
        let before = inner.states.partition_point(|(at, _)| *at <= moment);
        let (at, state) = inner.states.get(before.checked_sub(1)?)?;
        let age = moment.saturating_duration_since(*at);
        state.clone().filter(|_| age <= self.longest).map(|state| (state, age))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn push(&mut self, at: Instant, state: Option<Arc<State>>) {
        let same = state.is_none() && self.states.back().is_none_or(|(_, last)| last.is_none());
        if same {
            return;
        }
        if self.states.len() == MOST_STATES {
            self.states.pop_front();
        }
        self.states.push_back((at, state));
    }
}
