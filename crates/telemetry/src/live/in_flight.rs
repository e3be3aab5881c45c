//! A sink that tracks the requests in flight, and the metrics of these requests.

use std::cmp::Reverse;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokometer_decode::Work;
use tokometer_observe::measure::{Labels, Live, Opening, Phase, Record, Sink, Watches, cadence};

use crate::live::recent::{Finished, Kept, Recent};
use crate::live::requests::{Doing, Listener, Open, Requests};
use crate::live::totals::{History, Sample, Totals};
use crate::live::watch::{RequestWatch, has_no_watch};
use crate::live::wedge::{Bounds, Evidence, Reach, Signs, State, Verdict};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};

/// Settings for requests in flight, wedge detection and kept finished requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Maximum number of requests watched at the same time. Further requests are measured but not shown in flight.
    pub max_in_flight: usize,
    /// Maximum memory of finished requests, bytes. 0 keeps none.
    pub recent_bytes: usize,
    /// A stream is stalled if its next token takes longer than this and longer than the stream's cadence explains.
    pub stall: Duration,
    /// When the engine counts as wedged.
    pub bounds: Bounds,
    /// For each listener, the index of the first listener with the same server. Listeners beyond the end of the list
    /// each have their own server.
    pub servers: Vec<usize>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_in_flight: 65_536,
            recent_bytes: 4 * 1024 * 1024,
            stall: Duration::from_secs(1),
            bounds: Bounds::default(),
            servers: Vec::new(),
        }
    }
}

/// Metrics of one listener's requests in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Requests by phase.
    pub phases: [Phases; Phase::ALL.len()],
    /// Streams that have waited for their next token longer than the stall threshold and longer than their cadence
    /// explains. Streams blocked on the client are excluded.
    pub stalled: u64,
    /// Requests blocked on the client.
    pub blocked: u64,
    /// State of the engine, from the requests of all listeners with the same server.
    pub verdict: Verdict,
}

/// The requests in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// Number of requests.
    pub requests: u64,
    /// Sum of the requests' ages, each from the request's first byte.
    pub ages: Duration,
    /// Age of the oldest request.
    pub oldest: Duration,
    /// Longest current wait of a request for its next token.
    pub waited: Duration,
}

/// Returns evidence about a listener's engine from sources other than the traffic. Called for health probes, so it must
/// be fast.
pub type SignsSource = Box<dyn Fn(usize, Instant) -> Signs + Send + Sync>;

/// Tracks every request in flight and keeps recently finished ones.
pub struct InFlight {
    requests: Arc<Requests>,
    /// `None` when finished requests are not kept.
    recent: Option<Arc<Recent>>,
    totals: Arc<Totals>,
    history: History,
    settings: ArcSwap<Settings>,
    overdue: OnceLock<Box<Overdue>>,
    signs_source: OnceLock<SignsSource>,
}

/// Returns for how long the data path has not run, as of the given moment.
type Overdue = dyn Fn(Instant) -> Duration + Send + Sync;

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("settings", &self.settings.load()).finish_non_exhaustive()
    }
}

impl InFlight {
    /// Starts tracking the requests of listeners with these names. `epoch` must be earlier than every reported time.
    ///
    /// # Errors
    /// When the thread that keeps finished requests cannot be started.
    pub fn start(settings: Settings, listeners: &[String], epoch: Instant) -> std::io::Result<Arc<InFlight>> {
        let requests = Arc::new(Requests::new(settings.max_in_flight, listeners, &settings.servers, epoch));
        let recent = Recent::start(settings.recent_bytes)?;
        let totals = Arc::new(Totals::default());
        let history = History::new(epoch, totals.sample());
        Ok(Arc::new(InFlight {
            requests,
            recent,
            totals,
            history,
            settings: ArcSwap::from_pointee(settings),
            overdue: OnceLock::new(),
            signs_source: OnceLock::new(),
        }))
    }

    /// Sets the source of evidence about the engines. Only the first call has an effect.
    pub fn set_signs_source(&self, source: SignsSource) {
        self.signs_source.set(source).ok();
    }

    /// Applies new wedge bounds and a new stall threshold. Other settings need a restart.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Sets the source of the data path's delay. While a data path thread does not run, requests are evaluated as of
    /// the thread's last run: unread tokens must not count as silence of the engine. Only the first call has an effect.
    pub fn set_overdue(&self, overdue: impl Fn(Instant) -> Duration + Send + Sync + 'static) {
        self.overdue.set(Box::new(overdue)).ok();
    }

    /// The moment up to which the data path has read its input.
    fn read_until(&self, now: Instant) -> Instant {
        let overdue = self.overdue.get().map_or(Duration::ZERO, |overdue| overdue(now));
        now.checked_sub(overdue).unwrap_or(now)
    }

    /// Names of the listeners.
    pub fn listeners(&self) -> impl Iterator<Item = &str> {
        self.requests.listeners.iter().map(|listener| &*listener.name)
    }

    /// Metrics of each listener at `now`.
    pub fn stats(&self, now: Instant) -> Vec<Stats> {
        self.survey(now, 0).0
    }

    /// The `most` oldest requests in flight, oldest first.
    pub fn open(&self, now: Instant, most: usize) -> Vec<Open> {
        self.survey(now, most).1
    }

    /// Metrics of each listener and the `most` oldest requests in flight, oldest first. Both are from the same read, so
    /// they are consistent.
    pub(super) fn survey(&self, now: Instant, most: usize) -> (Vec<Stats>, Vec<Open>) {
        let (now, settings) = (self.read_until(now), self.settings.load());
        let mut listeners = vec![Sums::default(); self.requests.listeners.len()];
        let mut engines = vec![Evidence::default(); listeners.len()];
        let mut oldest: Vec<Open> = Vec::new();
        let by_age = |open: &Open| (Reverse(open.age), open.connection, open.sequence);
        self.requests.read(now, |open| {
            if let Some(sums) = listeners.get_mut(open.listener) {
                sums.add(&open, &settings);
            }
            if let Some(evidence) = engines.get_mut(self.requests.server(open.listener)) {
                evidence.add(&open);
            }
            if most > 0 {
                oldest.push(open);
            }
            if oldest.len() > 2 * most {
                oldest.select_nth_unstable_by_key(most, by_age);
                oldest.truncate(most);
            }
        });
        oldest.sort_unstable_by_key(by_age);
        oldest.truncate(most);
        // Read the listeners after the requests: a request that ended during the read has then already updated its
        // listener.
        let stats = listeners.into_iter().enumerate().map(|(at, sums)| {
            let silent_since = self.requests.engine(at).map_or(0, Listener::silent_since);
            let silent = Duration::from_nanos(self.requests.nanos(now).saturating_sub(silent_since));
            let signs = self.signs_source.get().map(|signs| signs(at, now)).unwrap_or_default();
            let evidence = engines.get(self.requests.server(at)).copied().unwrap_or_default();
            let verdict = evidence.verdict(silent, signs, &settings.bounds);
            Stats { phases: sums.phases, stalled: sums.stalled, blocked: sums.blocked, verdict }
        });
        (stats.collect(), oldest)
    }

    /// Number of requests that were not watched because too many were in flight or all shards were locked.
    pub fn untracked(&self) -> u64 {
        self.requests.untracked()
    }

    /// The latest and the slowest finished requests.
    pub fn kept(&self, now: Instant) -> Kept {
        self.recent.as_ref().map_or_else(Kept::default, |recent| recent.kept(now))
    }

    /// Stores a sample of the totals, for rates and distributions. Call once per second, never on a data path thread.
    pub fn tick(&self, now: Instant) {
        self.history.note(now, self.totals.sample());
    }

    /// Calls `each` with every request in flight, in any order.
    pub(crate) fn each(&self, now: Instant, each: impl FnMut(Open)) {
        self.requests.read(self.read_until(now), each);
    }

    pub(super) fn totals(&self) -> Sample {
        self.totals.sample()
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }
}

/// [`Stats`] of the requests read so far.
#[derive(Clone, Default)]
struct Sums {
    phases: [Phases; Phase::ALL.len()],
    stalled: u64,
    blocked: u64,
}

impl Sums {
    fn add(&mut self, open: &Open, settings: &Settings) {
        self.blocked += u64::from(open.doing == Doing::Blocked);
        let patience = cadence::patience(settings.stall, open.usual_gap);
        self.stalled += u64::from(open.doing == Doing::Decode && open.waited > Some(patience));
        let phase = &mut self.phases[open.phase as usize];
        phase.requests += 1;
        phase.ages = phase.ages.saturating_add(open.age);
        phase.oldest = phase.oldest.max(open.age);
        phase.waited = phase.waited.max(open.waited.unwrap_or_default());
    }
}

impl Collect for InFlight {
    fn collect(&self, points: &mut Points<'_>) {
        for (listener, stats) in self.stats(Instant::now()).into_iter().enumerate() {
            for (word, phase) in Phase::ALL.into_iter().zip(stats.phases) {
                let word = [(Key::Phase, word.as_str().into())];
                let number = u32::try_from(phase.requests).unwrap_or(u32::MAX);
                // Without requests, the ages are omitted.
                let times = [
                    (Id::InFlightMeanAge, phase.ages.checked_div(number)),
                    (Id::InFlightOldest, (number > 0).then_some(phase.oldest)),
                    (Id::InFlightWaited, (number > 0).then_some(phase.waited)),
                ];
                for (id, time) in times {
                    points.put_at(listener, id, &word, time);
                }
            }
            let verdict = stats.verdict;
            points.put_at(listener, Id::InFlightStalled, &[], stats.stalled);
            points.put_at(listener, Id::InFlightBlocked, &[], stats.blocked);
            points.put_at(listener, Id::EngineSilence, &[], verdict.silent);
            points.put_at(listener, Id::EngineSilenceBound, &[], verdict.rule.map(|_| verdict.bound));
            points.put_at(listener, Id::EngineWedged, &[], verdict.state == State::Wedged);
            let reachable = (verdict.signs.reach != Reach::Unknown).then_some(verdict.state != State::Unreachable);
            points.put_at(listener, Id::EngineReachable, &[], reachable);
        }
        let (recent, bytes) = self.recent.as_ref().map_or((0, 0), |recent| recent.held());
        points.put(Id::InFlightUntracked, &[], self.untracked());
        points.put(Id::RecentRequests, &[], recent);
        points.put(Id::RecentMemory, &[], bytes);
        points.put(Id::RecentDropped, &[], self.recent.as_ref().map_or(0, |recent| recent.dropped()));
    }
}

impl Sink for InFlight {
    fn live(&self, _labels: &Labels) -> Option<Arc<dyn Live>> {
        Some(Arc::clone(&self.totals) as Arc<dyn Live>)
    }

    fn opened(&self, opening: &Opening) -> Watches {
        let watch = RequestWatch::open(&self.requests, self.recent.clone(), opening);
        watch.map_or_else(Watches::default, Watches::of)
    }

    fn record(&self, record: &Arc<Record>) {
        self.totals.ended(record);
        let route = record.labels.route;
        if let Some(recent) = self.recent.as_ref().filter(|_| has_no_watch(record))
            && route.is_read()
            && route.work() != Work::Neither
        {
            recent.add(|| Finished { record: Arc::clone(record), line: None });
        }
    }
}
