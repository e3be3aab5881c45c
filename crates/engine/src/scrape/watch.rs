//! State of one engine, and statistics of the attempts to read its page. All times are passed in.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokometer_metrics::closed_enum;

use crate::scrape::Settings;
use crate::scrape::state::{Page, State, Tracker};

/// Maximum number of kept states: one hour at the default interval. When a stream ends, the state at its start is
/// looked up.
const MAX_STATES: usize = 720;

/// A state is current for this many intervals, because the next page may be late, or the thread may miss an attempt for
/// lack of CPU time, which is not recorded as a failure.
const INTERVALS: u32 = 3;

/// Maximum pause between attempts, unless the interval is longer. The pause doubles with each consecutive failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

closed_enum! {
    /// Why a page could not be read.
    pub enum Failure {
        /// The connection failed.
        Connect = "connect",
        /// The time limit was exceeded.
        Timeout = "timeout",
        /// The connection broke, or the response was not HTTP.
        Broken = "broken",
        /// The status was not 200: the server has no such page, or does not expose it.
        Status = "status",
        /// The page exceeds the maximum size.
        TooLarge = "too_large",
        /// The page has no samples.
        NotMetrics = "not_metrics",
        /// The page is JSON, and reading it may empty it (trtllm-serve's /metrics), so it is not read again soon.
        Json = "json",
        /// The page has no known names.
        UnknownNames = "unknown_names",
    }
}

/// State and scrape statistics of one engine at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// The current state; `None` when the last attempt failed, or the state is too old.
    pub state: Option<Arc<State>>,
    /// State of each data-parallel rank on the page, by rank; empty without `state`, and if the page has no ranks.
    pub ranks: Arc<[(u16, State)]>,
    /// Attempts to read the page.
    pub attempts: u64,
    /// Failed attempts, in the order of [`Failure::ALL`].
    pub failures: [u64; Failure::ALL.len()],
    /// Duration of the last attempt.
    pub duration: Option<Duration>,
    /// Time since the last page that was read successfully.
    pub age: Option<Duration>,
    /// Name and version of the engine, if it reports one.
    pub version: Option<(&'static str, Arc<str>)>,
}

/// Stores the results of scraping one engine's metrics page, for the exporters.
#[derive(Debug)]
pub struct Watch {
    /// Maximum age of a current state.
    longest: Duration,
    inner: Mutex<Inner>,
    /// Separate, because `inner` is locked while a page is evaluated. The whole engine comes first; its data-parallel
    /// ranks follow if there are several.
    stills: Mutex<Vec<(Option<u16>, Still)>>,
}

/// A period in which the engine, or one rank, reported running requests while its iteration count did not increase.
#[derive(Clone, Copy, Debug)]
struct Still {
    iterations: f64,
    since: Instant,
    until: Instant,
}

/// How long the iteration count has not increased while requests were reported as running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stillness {
    /// For the whole engine; `None` if the count increases or is unknown.
    pub engine: Option<Duration>,
    /// The data-parallel rank with the longest such period, and the period; `None` if the page has fewer than two
    /// ranks.
    pub rank: Option<(u16, Duration)>,
}

#[derive(Debug, Default)]
struct Inner {
    tracker: Tracker,
    /// In chronological order. `None`: from this time on, no page could be read.
    states: VecDeque<(Instant, Option<Arc<State>>)>,
    /// The ranks on the last page.
    ranks: Arc<[(u16, State)]>,
    attempts: u64,
    failures: [u64; Failure::ALL.len()],
    in_a_row: u32,
    duration: Option<Duration>,
    read: Option<Instant>,
    version: Option<(&'static str, Arc<str>)>,
}

impl Watch {
    /// Starts without any state.
    pub fn new(settings: &Settings) -> Watch {
        let longest = settings.interval * INTERVALS + settings.timeout;
        Watch { longest, inner: Mutex::default(), stills: Mutex::default() }
    }

    /// Records an attempt. `at`: when the response of the page started, or when the failure was detected.
    pub fn note(&self, at: Instant, took: Duration, result: Result<&Page, Failure>) {
        let mut inner = self.inner();
        inner.attempts += 1;
        inner.duration = Some(took);
        match result {
            Ok(page) => {
                inner.in_a_row = 0;
                inner.read = Some(at);
                let mut parts = vec![(None, inner.tracker.take(page))];
                parts.extend(inner.tracker.take_ranks(page).into_iter().map(|(rank, state)| (Some(rank), state)));
                self.note_iterations(&mut parts, at);
                let mut parts = parts.into_iter();
                let state = parts.next().map(|(_, state)| Arc::new(state));
                inner.ranks = parts.filter_map(|(rank, state)| Some((rank?, state))).collect();
                inner.push(at, state);
            }
            Err(failure) => {
                inner.in_a_row = inner.in_a_row.saturating_add(1);
                if let Some(count) = inner.failures.get_mut(failure as usize) {
                    *count += 1;
                }
                inner.push(at, None);
                let mut stills = self.stills();
                match failure {
                    // A frozen server does not respond at all, so the periods continue.
                    Failure::Timeout => stills.iter_mut().for_each(|(_, still)| still.until = at),
                    _ => stills.clear(),
                }
            }
        }
    }

    /// Records the version of the engine whose page was read.
    pub fn set_version(&self, engine: &'static str, version: Option<Arc<str>>) {
        self.inner().version = version.map(|version| (engine, version));
    }

    /// Sets [`State::stopped`] of the engine and its ranks.
    fn note_iterations(&self, parts: &mut [(Option<u16>, State)], at: Instant) {
        // With a single rank, the rank is the whole engine.
        let several = parts.len() > 2;
        let mut stills = self.stills();
        let noted = |(part, state): &mut (Option<u16>, State)| {
            let iterations = state.iterations?;
            let running = state.running.is_some_and(|running| running > 0.0);
            let before = stills.iter().find(|(own, still)| own == part && still.iterations == iterations);
            let since = before.filter(|_| running).map_or(at, |(_, still)| still.since);
            state.stopped = Some(at.saturating_duration_since(since).as_secs_f64());
            (running && (several || part.is_none())).then_some((*part, Still { iterations, since, until: at }))
        };
        *stills = parts.iter_mut().filter_map(noted).collect();
    }

    /// How long the engine and its ranks have made no iteration ([`Stillness`]).
    pub fn still(&self, now: Instant) -> Stillness {
        let longest = self.longest.max(LONGEST_PAUSE);
        let stills = self.stills();
        let current = stills.iter().filter(|(_, still)| now.saturating_duration_since(still.until) <= longest);
        let periods = current.map(|(part, still)| (*part, still.until.saturating_duration_since(still.since)));
        let mut stillness = Stillness::default();
        for (part, period) in periods.filter(|(_, period)| !period.is_zero()) {
            match part {
                None => stillness.engine = Some(period),
                Some(rank) if stillness.rank.is_none_or(|(_, other)| period > other) => {
                    stillness.rank = Some((rank, period));
                }
                Some(_) => {}
            }
        }
        stillness
    }

    /// The state that was current at `moment`, and its age then.
    pub fn at(&self, moment: Instant) -> Option<(Arc<State>, Duration)> {
        self.find(&self.inner(), moment)
    }

    /// Statistics at this moment.
    pub fn measurements(&self, now: Instant) -> Measurements {
        let inner = self.inner();
        let state = self.find(&inner, now).map(|(state, _)| state);
        Measurements {
            ranks: state.as_ref().map(|_| Arc::clone(&inner.ranks)).unwrap_or_default(),
            state,
            attempts: inner.attempts,
            failures: inner.failures,
            duration: inner.duration,
            version: inner.version.clone(),
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

    fn stills(&self) -> MutexGuard<'_, Vec<(Option<u16>, Still)>> {
        self.stills.lock().unwrap_or_else(PoisonError::into_inner)
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
        if self.states.len() == MAX_STATES {
            self.states.pop_front();
        }
        self.states.push_back((at, state));
    }
}
