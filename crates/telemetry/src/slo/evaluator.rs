//! Evaluates every request against the SLO objectives: a sink that counts good and bad requests.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokometer_decode::Route;
use tokometer_observe::measure::{Count, CountSource, Labels, Models, Record, Sink, Targets};

use crate::live::{InFlight, Open, Reach, State as EngineState};
use crate::slo::lost::{Demand, Down, Uptime};
use crate::slo::verdict::{concerns, longest_wait, verdict};
use crate::slo::{Exclusion, Goal, Objective, Reason, Settings, Verdict};
use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};

/// Maximum time to wait for the record of a request that is no longer in flight. The record normally arrives at once,
/// unless its thread waits for a CPU. If there is none after this time, none will arrive.
const RECORD_WAIT: Duration = Duration::from_secs(60);

/// Maximum number of notes on overdue requests. Further requests are evaluated when they end.
const MAX_NOTES: usize = 100_000;

/// Connection number, and request number on that connection.
type RequestId = (u64, u64);

/// Model label; `None` until a response has named a model.
pub(super) type Model = Option<Arc<str>>;

/// Evaluates each request once per objective whose scope covers the request.
#[derive(Debug)]
pub struct Evaluator {
    models: Models,
    /// Earlier than every request.
    epoch: Instant,
    /// Never locked by the data path.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    settings: Arc<Settings>,
    /// Counts by objective, in the order of the settings.
    counts: Vec<BTreeMap<Model, Tally>>,
    /// The servers, by listener.
    uptimes: Vec<Uptime>,
    /// Notes on overdue requests; at most [`MAX_NOTES`].
    notes: HashMap<RequestId, Note>,
}

/// Counts of one objective and model, and what outages are compared with.
#[derive(Debug)]
struct Tally {
    counts: Counts,
    /// By listener; empty for objectives that do not count lost requests.
    demands: Vec<Demand>,
}

impl Tally {
    fn zero(goal: &Goal) -> Tally {
        Tally { counts: Counts::zero(goal), demands: Vec::new() }
    }
}

/// Counts of one objective and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluated {
    /// Name of the objective.
    pub objective: String,
    /// The model; `None` until a response has named a model.
    pub model: Model,
    /// The counts.
    pub counts: Counts,
}

/// Requests evaluated so far. All counters are exported as zero from the start, so that `rate()` includes the first
/// request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Good requests.
    pub good: u64,
    /// Bad requests by reason; only reasons possible for the goal.
    pub bad: BTreeMap<Reason, u64>,
    /// Excluded requests by cause; only causes possible for the goal.
    pub excluded: BTreeMap<Exclusion, u64>,
    /// Output tokens of good requests by source: counts from different sources are never in one series. Empty except
    /// for [`Goal::Goodput`].
    pub good_tokens: BTreeMap<CountSource, u64>,
}

impl Counts {
    fn zero(goal: &Goal) -> Counts {
        let sources = CountSource::ALL.into_iter().filter(|_| matches!(goal, Goal::Goodput));
        Counts {
            good: 0,
            bad: Reason::of(goal).map(|reason| (reason, 0)).collect(),
            excluded: Exclusion::of(goal).map(|why| (why, 0)).collect(),
            good_tokens: sources.map(|source| (source, 0)).collect(),
        }
    }

    /// Counts a verdict, and the output tokens if it is good.
    fn add(&mut self, verdict: Verdict, output: Option<Count>) {
        match verdict {
            Verdict::Good => {
                self.good += 1;
                if let Some(output) = output
                    && let Some(tokens) = self.good_tokens.get_mut(&output.source)
                {
                    *tokens += output.tokens;
                }
            }
            Verdict::Bad(reason) => *self.bad.entry(reason).or_default() += 1,
            Verdict::Excluded(why) => *self.excluded.entry(why).or_default() += 1,
        }
    }

    /// Total bad requests.
    pub fn all_bad(&self) -> u64 {
        self.bad.values().sum()
    }
}

/// The values of a request in flight that the evaluation needs.
#[derive(Clone, Copy, Debug)]
pub struct Pending<'a> {
    /// Connection number in this process, as in the record.
    pub connection: u64,
    /// Request number on its connection.
    pub sequence: u64,
    /// Route of the request.
    pub route: Route,
    /// `model` of the request.
    pub request_model: Option<&'a str>,
    /// Time since the last byte of the request, for a complete request whose stream has no token yet. `None` for other
    /// requests.
    pub waited: Option<Duration>,
    /// Size of the request body in bytes.
    pub request_bytes: u64,
    /// The SLO targets in the request itself.
    pub targets: Option<&'a Targets>,
}

impl<'a> From<&'a Open> for Pending<'a> {
    fn from(open: &'a Open) -> Pending<'a> {
        Pending {
            connection: open.connection,
            sequence: open.sequence,
            route: open.route,
            request_model: open.model.as_deref(),
            waited: open.without_token.filter(|_| open.route.generates()),
            request_bytes: open.request_bytes,
            targets: open.targets.as_deref(),
        }
    }
}

/// Progress of counting an overdue request. This takes two sweeps: the first notes the request, the second counts it as
/// bad. A record that arrives in between removes the note, so each request is counted exactly once.
#[derive(Clone, Debug)]
enum Note {
    /// The first sweep found the request in flight and overdue.
    Late,
    /// The second sweep counted the request as bad for some objectives.
    Counted {
        /// Names of these objectives.
        by: Vec<String>,
        /// When a sweep first found that the request is no longer in flight.
        closed: Option<Instant>,
    },
}

impl State {
    /// Replaces the settings; keeps the counts of objectives with the same name and kind.
    fn set(&mut self, settings: Settings, models: &Models) {
        let key = |objective: &Objective| (objective.name.clone(), objective.goal.word());
        let old = std::mem::take(&mut self.counts);
        let mut old: HashMap<_, _> = self.settings.objectives.iter().map(key).zip(old).collect();
        let counts = settings.objectives.iter().map(|objective| old.remove(&key(objective)).unwrap_or_default());
        self.counts = counts.collect();
        self.settings = Arc::new(settings);
        let labels = models.labels();
        for (Objective { scope, goal, .. }, counts) in self.settings.objectives.iter().zip(&mut self.counts) {
            let known = labels.iter().filter(|label| scope.covers_model(label)).cloned();
            // A name without `*` is a complete model name, so its counters can start at zero before any response names
            // the model.
            let named = scope.models.iter().filter(|name| !name.ends_with('*')).map(|name| name.as_str().into());
            let none = (labels.is_empty() && scope.models.is_empty()).then_some(None);
            for model in known.chain(named).map(Some).chain(none) {
                counts.entry(model).or_insert_with(|| Tally::zero(goal));
            }
        }
    }

    fn add(&mut self, objective: usize, model: &Model, verdict: Verdict, output: Option<Count>) {
        if let Some(counts) = self.counts.get_mut(objective) {
            let goal = &self.settings.objectives[objective].goal;
            let tally = counts.entry(model.clone()).or_insert_with(|| Tally::zero(goal));
            tally.counts.add(verdict, output);
        }
    }
}

impl State {
    /// Notes an evaluated request, to estimate what a later outage costs.
    fn note(&mut self, objective: usize, model: &Model, record: &Record, epoch: Instant) {
        let listener = record.labels.listener;
        self.uptimes.resize_with(self.uptimes.len().max(listener + 1), Uptime::default);
        let Some(tally) = self.counts.get_mut(objective).and_then(|counts| counts.get_mut(model)) else { return };
        tally.demands.resize_with(self.uptimes.len(), Demand::default);
        if let (Some(demand), Some(uptime)) = (tally.demands.get_mut(listener), self.uptimes.get(listener)) {
            demand.note(uptime, epoch, record.started, record.started + record.times.ended);
        }
    }
}

/// True if the objective counts requests that clients could not send. Other objectives evaluate only responses.
fn counts_lost(goal: &Goal) -> bool {
    matches!(goal, Goal::Availability | Goal::Goodput)
}

impl Evaluator {
    /// Creates an evaluator with these objectives.
    pub fn new(settings: Settings) -> Evaluator {
        let models = Models::new(settings.max_models, &settings.models);
        let mut state = State {
            settings: Arc::new(Settings::none()),
            counts: Vec::new(),
            uptimes: Vec::new(),
            notes: HashMap::new(),
        };
        state.set(settings, &models);
        Evaluator { models, epoch: Instant::now(), state: Mutex::new(state) }
    }

    /// Replaces the settings. The counts of an objective with the same name and kind are kept.
    pub fn reload(&self, settings: Settings) {
        self.state().set(settings, &self.models);
    }

    /// The current settings.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.state().settings)
    }

    /// The counts of the current objectives, sorted.
    pub fn evaluated(&self) -> Vec<Evaluated> {
        let state = self.state();
        let each = state.settings.objectives.iter().zip(&state.counts).flat_map(|(objective, counts)| {
            counts.iter().map(|(model, tally)| Evaluated {
                objective: objective.name.clone(),
                model: model.clone(),
                counts: tally.counts.clone(),
            })
        });
        let mut evaluated: Vec<Evaluated> = each.collect();
        evaluated.sort_by(|a, b| (&a.objective, &a.model).cmp(&(&b.objective, &b.model)));
        evaluated
    }

    /// Runs [`Evaluator::sweep`] over the requests in flight, and counts requests that outages cost. Call about once per
    /// second, never on a data path thread.
    pub fn look(&self, in_flight: &InFlight, now: Instant) {
        self.sweep(|visit| in_flight.each(now, |open| visit(&Pending::from(&open))), now);
        let down = in_flight.stats(now).into_iter().map(|stats| {
            let verdict = stats.verdict;
            let lasts = match (verdict.state, verdict.signs.reach) {
                (EngineState::Unreachable, Reach::Fails(time)) => Some(time),
                // The other ranks of a data-parallel engine still serve requests.
                (EngineState::Wedged, _) if verdict.rank.is_none() => Some(verdict.silent),
                _ => None,
            };
            lasts.map(|lasts| Down { lasts, waiting: 0 })
        });
        let mut down: Vec<Option<Down>> = down.collect();
        if down.iter().any(Option::is_some) {
            in_flight.each(now, |open| {
                if let Some(Some(down)) = down.get_mut(open.listener)
                    && open.age < down.lasts
                {
                    down.waiting += 1;
                }
            });
        }
        self.lose(&down, now);
    }

    /// Counts the requests that clients could not send during outages as bad. `down`: the outages by listener.
    pub fn lose(&self, down: &[Option<Down>], now: Instant) {
        let mut state = self.state();
        let State { settings, counts, uptimes, .. } = &mut *state;
        uptimes.resize_with(uptimes.len().max(down.len()), Uptime::default);
        for (uptime, down) in uptimes.iter_mut().zip(down) {
            uptime.set(down.as_ref(), now);
        }
        for (objective, tallies) in settings.objectives.iter().zip(counts) {
            if !counts_lost(&objective.goal) {
                continue;
            }
            for (listener, uptime) in uptimes.iter().enumerate() {
                let all = tallies.values_mut().filter_map(|tally| tally.demands.get_mut(listener));
                let all: f64 = all.map(|demand| demand.rate_before(uptime, self.epoch)).sum();
                let Some(Some(down)) = down.get(listener).filter(|_| all > 0.0) else { continue };
                for tally in tallies.values_mut() {
                    let Some(demand) = tally.demands.get_mut(listener) else { continue };
                    let share = demand.rate_before(uptime, self.epoch) / all;
                    let lost = demand.lose(share * down.waiting as f64, now);
                    *tally.counts.bad.entry(Reason::Lost).or_default() += lost;
                }
            }
        }
    }

    /// Counts a request in flight as bad for an objective once its first token is overdue. When the request ends, that
    /// objective does not evaluate it again. `each` calls its argument with every request in flight.
    ///
    /// The number of prompt tokens is unknown before the end, so every byte of the request counts as one token. With
    /// this upper bound, only requests that certainly miss the objective are counted.
    pub fn sweep(&self, each: impl FnOnce(&mut dyn FnMut(&Pending<'_>)), now: Instant) {
        let mut state = self.state();
        let settings = Arc::clone(&state.settings);
        let mut late = HashMap::new();
        let mut noted = HashSet::new();
        each(&mut |pending| {
            let id = (pending.connection, pending.sequence);
            if state.notes.contains_key(&id) {
                noted.insert(id);
            }
            if pending.waited.is_none() {
                return;
            }
            let model = self.models.led_to(&labels(pending));
            let named = model.as_deref().or(pending.request_model);
            let missed = settings.objectives.iter().enumerate();
            let missed = missed.filter(|(_, objective)| misses(objective, pending, named, &settings));
            let missed: Vec<usize> = missed.map(|(at, _)| at).collect();
            if !missed.is_empty() {
                late.insert(id, (missed, model));
            }
        });
        state.notes.retain(|id, note| match note {
            Note::Late => late.contains_key(id),
            Note::Counted { closed, .. } if noted.contains(id) => {
                *closed = None;
                true
            }
            Note::Counted { closed, .. } => now.saturating_duration_since(*closed.get_or_insert(now)) < RECORD_WAIT,
        });
        for (id, (missed, model)) in late {
            match state.notes.get(&id) {
                None if state.notes.len() < MAX_NOTES => drop(state.notes.insert(id, Note::Late)),
                None | Some(Note::Counted { .. }) => {}
                Some(Note::Late) => {
                    for objective in &missed {
                        state.add(*objective, &model, Verdict::Bad(Reason::LateFirstToken), None);
                    }
                    let by = missed.iter().map(|at| settings.objectives[*at].name.clone()).collect();
                    state.notes.insert(id, Note::Counted { by, closed: None });
                }
            }
        }
    }

    /// Evaluates a finished request.
    pub fn evaluate(&self, record: &Record) {
        let model = self.model(record);
        let mut state = self.state();
        let settings = Arc::clone(&state.settings);
        let counted = match state.notes.remove(&(record.connection, record.sequence)) {
            Some(Note::Counted { by, .. }) => by,
            Some(Note::Late) | None => Vec::new(),
        };
        for (at, objective) in settings.objectives.iter().enumerate() {
            let is_counted = counted.contains(&objective.name);
            if is_counted || concerns(objective, record, model.as_deref()) {
                let verdict = verdict(record, model.as_deref(), objective, &settings);
                if !is_counted {
                    state.add(at, &model, verdict, record.tokens.output);
                }
                if counts_lost(&objective.goal) && (is_counted || !matches!(verdict, Verdict::Excluded(_))) {
                    state.note(at, &model, record, self.epoch);
                }
            }
        }
    }

    /// True if the request misses any objective whose scope covers it, so that its trace is kept. Does not count the
    /// request.
    pub fn is_broken_by(&self, record: &Record) -> bool {
        let (settings, model) = (self.settings(), self.model(record));
        let model = model.as_deref();
        settings.objectives.iter().any(|objective| {
            concerns(objective, record, model)
                && matches!(verdict(record, model, objective, &settings), Verdict::Bad(_))
        })
    }

    /// The model under which the request is counted. If the model list evicts another model, removes the counts of that
    /// model, unless an objective names it.
    fn model(&self, record: &Record) -> Model {
        // The callback runs under the lock of the model list, so it must not lock `state`: other code locks the two in
        // the opposite order.
        let mut evicted = Vec::new();
        let model = self.models.of(record, |name| evicted.push(name.to_owned()));
        for name in evicted {
            let state = &mut *self.state();
            for (objective, counts) in state.settings.objectives.iter().zip(&mut state.counts) {
                if !objective.scope.models.contains(&name) {
                    counts.retain(|model, _| model.as_deref() != Some(&name));
                }
            }
        }
        model
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn labels(pending: &Pending<'_>) -> Labels {
    Labels { route: pending.route, request_model: pending.request_model.map(Into::into), ..Labels::default() }
}

/// True if the request is in the objective's scope, and its wait exceeds the limit for any prompt of this size.
fn misses(objective: &Objective, pending: &Pending<'_>, model: Option<&str>, settings: &Settings) -> bool {
    let tenant = pending.targets.and_then(|targets| targets.tenant.as_deref());
    let scope = &objective.scope;
    scope.covers(pending.route, tenant)
        && scope.covers_model(model.unwrap_or_default())
        && match objective.goal {
            Goal::FirstToken { base, per_1k_uncached } => {
                pending.waited > Some(longest_wait(base, per_1k_uncached, pending.request_bytes, pending.targets))
            }
            Goal::Goodput => {
                let first = |other: &&Objective| matches!(other.goal, Goal::FirstToken { .. });
                settings.objectives.iter().filter(first).any(|other| misses(other, pending, model, settings))
            }
            _ => false,
        }
}
impl Collect for Evaluator {
    fn collect(&self, points: &mut Points<'_>) {
        for Objective { name, goal, target, .. } in &self.settings().objectives {
            let slo = (Key::Slo, Arc::<str>::from(name.as_str()).into());
            points.put(Id::SloObjective, std::slice::from_ref(&slo), *target);
            for (threshold, value) in goal.thresholds() {
                points.put(Id::SloThreshold, &[slo.clone(), (Key::Threshold, threshold.into())], value);
            }
        }
        for Evaluated { objective, model, mut counts } in self.evaluated() {
            let known = [(Key::Slo, Arc::<str>::from(objective).into()), (Key::Model, model.into())];
            let mut put = |id, more: &[(Key, &'static str)], count: u64| {
                let more = more.iter().map(|(key, word)| (*key, (*word).into()));
                points.put(id, &known.iter().cloned().chain(more).collect::<Vec<_>>(), count);
            };
            put(Id::SloEvents, &[(Key::Verdict, "good")], counts.good);
            if let Some(lost) = counts.bad.remove(&Reason::Lost) {
                put(Id::SloLost, &[], lost);
            }
            for (reason, count) in counts.bad {
                put(Id::SloEvents, &[(Key::Verdict, "bad"), (Key::Reason, reason.as_str())], count);
            }
            for (reason, count) in counts.excluded {
                put(Id::SloExcluded, &[(Key::Reason, reason.as_str())], count);
            }
            for (source, count) in counts.good_tokens {
                put(Id::SloGoodTokens, &[(Key::Source, source.as_str())], count);
            }
        }
    }
}

impl Sink for Evaluator {
    fn record(&self, record: &Arc<Record>) {
        self.evaluate(record);
    }
}
