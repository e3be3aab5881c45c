//! Requests in flight: a sink that watches them, and metrics read from them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::export::Collect;
use crate::export::Points;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::live::recent::Kept;
use crate::live::recent::Recent;
use crate::live::request::Activity;
use crate::live::request::Progress;
use crate::live::request::Request;
use crate::live::request::RequestWatch;
use crate::live::requests::Requests;
use crate::live::totals::History;
use crate::live::totals::Sample;
use crate::live::totals::Totals;
use crate::live::wedge::Bounds;
use crate::live::wedge::Evidence;
use crate::live::wedge::State;
use crate::live::wedge::Verdict;
use tokometer_observe::measure::Detach;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Live;
use tokometer_observe::measure::Message;
use tokometer_observe::measure::Opening;
use tokometer_observe::measure::Phase;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::UncountedText;
use tokometer_observe::measure::Unread;
use tokometer_observe::measure::Watches;

/// Settings of the requests in flight, of wedge detection and of the finished requests that are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Maximum number of requests watched at a time. Further requests are measured but not shown in flight.
    pub max_in_flight: usize,
    /// Maximum memory of finished requests, bytes. 0 keeps none.
    pub recent_bytes: usize,
    /// Number of slowest requests to keep per measure, regardless of newer requests.
    pub slowest: usize,
    /// Maximum age of the slowest requests.
    pub slowest_age: Duration,
    /// A stream is stalled when its next token takes longer than this.
    pub stall: Duration,
    /// When the engine counts as wedged.
    pub bounds: Bounds,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_in_flight: 65_536,
            recent_bytes: 4 * 1024 * 1024,
            slowest: 16,
            slowest_age: Duration::from_secs(3600),
            stall: Duration::from_secs(1),
            bounds: Bounds::default(),
        }
    }
}

/// Requests in flight of one listener.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Requests without a token yet, and requests with tokens.
    pub phases: [Phases; 2],
    /// Streams whose next token takes longer than the stall threshold, without those blocked on the client.
    pub stalled: u64,
    /// State of the engine.
    pub verdict: Verdict,
}

/// The requests in one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// Number of requests.
    pub requests: u64,
    /// Sum of their ages, from the first byte of each request.
    pub ages: Duration,
    /// Age of the oldest request.
    pub oldest: Duration,
    /// Longest current wait for a next token.
    pub waited: Duration,
}

/// A request in flight at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// Index of the listener.
    pub listener: usize,
    /// Route name as in the configuration.
    pub route: &'static str,
    /// `model` of the request.
    pub model: Option<Box<str>>,
    /// Connection number in this process.
    pub connection: u64,
    /// Request number on its connection, from 0.
    pub sequence: u64,
    /// State: `requesting`, `prefill`, `decode`, `whole` (non-streamed response), `blocked` (blocked on the client),
    /// `ending` (refused, or the end marker has arrived), `session` (a conversation in which the engine may be silent).
    pub doing: &'static str,
    /// Time since the first byte of the request.
    pub age: Duration,
    /// Time waited for the next token; `None` when none is expected.
    pub waited: Option<Duration>,
    /// From the last byte of the request to the first token.
    pub first_token: Option<Duration>,
    /// Time since the first token.
    pub decoding: Option<Duration>,
    /// Tokens so far, a lower bound.
    pub tokens: u64,
    /// `max_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// Size of the request body in bytes.
    pub request_bytes: u64,
}

/// Tracks every request in flight and keeps recently finished ones.
pub struct InFlight {
    requests: Arc<Requests>,
    recent: Recent,
    totals: Arc<Totals>,
    history: History,
    settings: ArcSwap<Settings>,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("settings", &self.settings.load()).finish_non_exhaustive()
    }
}

impl InFlight {
    /// Starts tracking for listeners with these names. `epoch` must be earlier than every reported time.
    ///
    /// # Errors
    /// When the thread that keeps finished requests cannot be started.
    pub fn start(settings: Settings, listeners: &[String], epoch: Instant) -> std::io::Result<Arc<InFlight>> {
        let requests = Arc::new(Requests::new(settings.max_in_flight, listeners, epoch));
        let recent = Recent::start(&settings)?;
        let totals = Arc::new(Totals::default());
        let history = History::new(epoch, totals.sample());
        Ok(Arc::new(InFlight { requests, recent, totals, history, settings: ArcSwap::from_pointee(settings) }))
    }

    /// Applies new wedge bounds and a new stall threshold. Other settings need a restart.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// A sink that watches every opened request and forwards everything to `next`.
    pub fn before(self: &Arc<Self>, next: Arc<dyn Sink>) -> Arc<dyn Sink> {
        Arc::new(Watching { in_flight: Arc::clone(self), next })
    }

    /// Names of the listeners.
    pub fn listeners(&self) -> impl Iterator<Item = &str> {
        self.requests.listeners.iter().map(|listener| &*listener.name)
    }

    /// Engine state of each listener at `now`.
    pub fn verdicts(&self, now: Instant) -> Vec<Verdict> {
        self.stats(now).into_iter().map(|stats| stats.verdict).collect()
    }

    /// Metrics of each listener at `now`.
    pub fn stats(&self, now: Instant) -> Vec<Stats> {
        self.survey(now, 0).0
    }

    /// At most `most` requests in flight, oldest first.
    pub fn open(&self, now: Instant, most: usize) -> Vec<Open> {
        self.survey(now, most).1
    }

    /// Metrics of each listener and at most `most` requests, from a single read, so that both are consistent.
    pub(super) fn survey(&self, now: Instant, most: usize) -> (Vec<Stats>, Vec<Open>) {
        let (mut all, now, settings) = (self.requests.read(), self.requests.nanos(now), self.settings.load());
        let mut listeners = vec![(Evidence::default(), [Phases::default(); 2], 0); self.requests.listeners.len()];
        for (request, progress) in &all {
            if let Some((evidence, phases, stalled)) = listeners.get_mut(usize::from(request.listener)) {
                evidence.add(request, progress, now, &settings.bounds);
                let waited = waited(progress, now).unwrap_or_default();
                *stalled += u64::from(progress.activity() == Activity::Decoding && waited > settings.stall);
                let [waiting, streaming] = phases;
                let phase = if progress.first_token.is_none() { waiting } else { streaming };
                phase.add(since(request.started, now), waited);
            }
        }
        // Read after the requests: a request that has ended meanwhile has updated its listener before.
        let stats =
            listeners.into_iter().zip(&self.requests.listeners).map(|((evidence, phases, stalled), listener)| {
                let verdict = evidence.verdict(listener.silent_since(), now, &settings.bounds);
                Stats { phases, stalled, verdict }
            });
        let stats = stats.collect();
        if most > 0 {
            all.sort_unstable_by_key(|(request, _)| (request.started, request.connection, request.sequence));
        }
        (stats, all.iter().take(most).map(|(request, progress)| open(request, progress, now)).collect())
    }

    /// Requests that were not watched because the table was full.
    pub fn untracked(&self) -> u64 {
        self.requests.untracked()
    }

    /// The latest and the slowest finished requests.
    pub fn kept(&self, now: Instant) -> Kept {
        self.recent.kept(now)
    }

    /// The store of finished requests, for its own metrics.
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// Stores a sample of the totals, from which rates and distributions are computed. Call once per second, never on a
    /// data path thread.
    pub fn tick(&self, now: Instant) {
        self.history.note(now, self.totals.sample());
        self.requests.sweep();
    }

    pub(super) fn totals(&self) -> Sample {
        self.totals.sample()
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    fn watch(&self, opening: &Opening) -> Watches {
        let watch = RequestWatch::open(&self.requests, self.recent.queue(), opening);
        watch.map_or_else(Watches::default, Watches::of)
    }
}

impl Phases {
    fn add(&mut self, age: Duration, waited: Duration) {
        self.requests += 1;
        self.ages = self.ages.saturating_add(age);
        self.oldest = self.oldest.max(age);
        self.waited = self.waited.max(waited);
    }
}

fn since(then: u64, now: u64) -> Duration {
    Duration::from_nanos(now.saturating_sub(then))
}

/// Time waited for the next token; `None` when none is expected.
fn waited(progress: &Progress, now: u64) -> Option<Duration> {
    let waits = !matches!(progress.activity(), Activity::NotPending | Activity::Blocked);
    waits.then(|| since(progress.waits_since(), now))
}

fn open(request: &Request, progress: &Progress, now: u64) -> Open {
    let details = request.details();
    let first = progress.first_token.zip(progress.requested);
    Open {
        listener: usize::from(request.listener),
        route: request.route.name(),
        model: details.and_then(|details| details.model.clone()),
        connection: request.connection,
        sequence: request.sequence,
        doing: match progress.activity() {
            Activity::NotPending if request.is_session() => "session",
            Activity::NotPending if progress.requested.is_none() => "requesting",
            Activity::NotPending => "ending",
            Activity::Blocked => "blocked",
            Activity::Prefilling => "prefill",
            Activity::Decoding => "decode",
            Activity::Whole => "whole",
        },
        age: since(request.started, now),
        waited: waited(progress, now),
        first_token: first.map(|(token, requested)| since(requested, token)),
        decoding: progress.first_token.map(|first| since(first, now)),
        tokens: progress.tokens,
        max_tokens: details.and_then(|details| details.max_tokens),
        request_bytes: details.map_or(0, |details| details.bytes),
    }
}

impl Collect for InFlight {
    fn collect(&self, points: &mut Points<'_>) {
        for (listener, stats) in self.stats(Instant::now()).into_iter().enumerate() {
            for (word, phase) in ["waiting_first_token", "streaming"].into_iter().zip(stats.phases) {
                let word = [(Key::Phase, word.into())];
                let number = u32::try_from(phase.requests).unwrap_or(u32::MAX);
                // Without requests there is no age.
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
            points.put_at(listener, Id::InFlightBlocked, &[], verdict.client_blocked);
            points.put_at(listener, Id::EngineSilence, &[], verdict.silent);
            points.put_at(listener, Id::EngineSilenceBound, &[], verdict.rule.map(|_| verdict.bound));
            points.put_at(listener, Id::EngineWedged, &[], verdict.state == State::Wedged);
        }
        let (recent, bytes) = self.recent.held();
        points.put(Id::InFlightUntracked, &[], self.untracked());
        points.put(Id::RecentRequests, &[], recent);
        points.put(Id::RecentMemory, &[], bytes);
        points.put(Id::RecentDropped, &[], self.recent.dropped());
    }
}

/// Sink that watches requests and forwards every call.
struct Watching {
    in_flight: Arc<InFlight>,
    next: Arc<dyn Sink>,
}

impl Sink for Watching {
    fn in_flight(&self, listener: usize, phase: Phase, delta: i64) {
        self.next.in_flight(listener, phase, delta);
    }

    fn live(&self, labels: &Labels) -> Option<Arc<dyn Live>> {
        Some(self.in_flight.totals.before(self.next.live(labels)))
    }

    fn opened(&self, opening: &Opening) -> Watches {
        self.in_flight.watch(opening).and(self.next.opened(opening))
    }

    fn record(&self, record: &Arc<Record>) {
        self.in_flight.totals.ended(record);
        self.next.record(record);
    }

    fn record_with_text(&self, record: &Arc<Record>, text: &mut Option<UncountedText>) {
        self.in_flight.totals.ended(record);
        self.next.record_with_text(record, text);
    }

    fn detached(&self, listener: usize, why: Detach) {
        self.next.detached(listener, why);
    }

    fn unread(&self, listener: usize, of: Message, why: Unread) {
        self.next.unread(listener, of, why);
    }
}
