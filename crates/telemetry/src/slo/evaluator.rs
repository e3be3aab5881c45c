//! Evaluates every request against the SLO objectives: a sink that counts good and bad requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::RwLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use crate::export::Collect;
use crate::export::Points;
use crate::export::table::Id;
use crate::export::table::Key;
use arc_swap::ArcSwap;
use tokometer_observe::measure::Count;
use tokometer_observe::measure::CountSource;
use tokometer_observe::measure::Labels;
use tokometer_observe::measure::Models;
use tokometer_observe::measure::Opening;
use tokometer_observe::measure::Record;
use tokometer_observe::measure::Sink;
use tokometer_observe::measure::Watches;

use crate::slo::Exclusion;
use crate::slo::Goal;
use crate::slo::Objective;
use crate::slo::Reason;
use crate::slo::Settings;
use crate::slo::Verdict;
use crate::slo::Wait;
use crate::slo::Waiting;
use crate::slo::verdict::concerns;
use crate::slo::verdict::longest_wait;
use crate::slo::verdict::verdict;
use crate::slo::waiting::MOST;
use crate::slo::waiting::OpenRequests;
use crate::slo::waiting::RequestId;

/// Maximum time to wait for the record of a closed request. It normally arrives at once, unless its thread waits for a
/// CPU; after this time the connection was no longer observed and no record will arrive.
const RECORD_COMES: Duration = Duration::from_secs(60);

/// Objective kind and model.
type TallyKey = (&'static str, Option<Arc<str>>);

/// Evaluates requests, each once per objective whose scope covers it.
#[derive(Debug)]
pub struct Evaluator {
    settings: ArcSwap<Settings>,
    models: Models,
    /// Keyed by objective name, so that a lookup does not copy the name.
    tallies: RwLock<HashMap<String, HashMap<TallyKey, Arc<Tally>>>>,
    open: Arc<OpenRequests>,
    /// On overdue requests; at most [`MOST`].
    notes: Mutex<HashMap<RequestId, Note>>,
    /// Number of notes: at zero, a record takes no lock.
    noted: AtomicUsize,
}

/// Counts of one objective and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluated {
    /// Name of the objective.
    pub objective: String,
    /// The model; `None` until a server has named one.
    pub model: Option<Arc<str>>,
    /// The counts.
    pub counts: Counts,
}

/// Counter values at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Good requests.
    pub good: u64,
    /// Bad requests by reason; only reasons possible for the goal.
    pub bad: Vec<(Reason, u64)>,
    /// Excluded requests by cause; only causes possible for the goal.
    pub excluded: Vec<(Exclusion, u64)>,
    /// Output tokens of good requests; empty except for [`Goal::Goodput`].
    pub good_tokens: Vec<(CountSource, u64)>,
}

impl Counts {
    /// Total bad requests.
    pub fn all_bad(&self) -> u64 {
        self.bad.iter().map(|(_, n)| n).sum()
    }
}

/// Evaluated requests so far. All counters are exported as zero from the start, so that `rate` sees the first event.
#[derive(Debug, Default)]
struct Tally {
    good: AtomicU64,
    bad: [AtomicU64; Reason::ALL.len()],
    excluded: [AtomicU64; Exclusion::ALL.len()],
    /// By source: counts from different sources are never in one series.
    tokens: [AtomicU64; CountSource::ALL.len()],
}

impl Tally {
    /// Counts a verdict, and the output tokens if it is good.
    fn add(&self, verdict: Verdict, output: Option<Count>) {
        match verdict {
            Verdict::Good => {
                self.good.fetch_add(1, Ordering::Relaxed);
                if let Some(output) = output {
                    self.tokens[output.source as usize].fetch_add(output.tokens, Ordering::Relaxed);
                }
            }
            Verdict::Bad(reason) => {
                self.bad[reason as usize].fetch_add(1, Ordering::Relaxed);
            }
            Verdict::Excluded(why) => {
                self.excluded[why as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The counter values that are possible for this goal.
    fn counts(&self, goal: &Goal) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let bad = Reason::of(goal).map(|reason| (reason, read(&self.bad[reason as usize])));
        let excluded = Exclusion::of(goal).map(|why| (why, read(&self.excluded[why as usize])));
        let tokens = CountSource::ALL.iter().zip(&self.tokens).map(|(source, n)| (*source, read(n)));
        Counts {
            good: read(&self.good),
            bad: bad.collect(),
            excluded: excluded.collect(),
            good_tokens: if matches!(goal, Goal::Goodput) { tokens.collect() } else { Vec::new() },
        }
    }
}

/// Progress of evaluating a pending request. It takes two sweeps: the first notes the request, the second counts it. A
/// record that arrives in between removes the note, so each request is counted exactly once.
#[derive(Clone, Debug)]
enum Note {
    /// It has waited too long, and was open when this was noted.
    Late,
    /// Its misses are counted.
    Counted {
        /// The objectives that counted it.
        by: Vec<String>,
        /// When a sweep first found it closed.
        closed: Option<Instant>,
    },
}

impl Evaluator {
    /// Creates an evaluator with these objectives.
    pub fn new(settings: Settings) -> Evaluator {
        let models = Models::new(settings.max_models, &settings.models);
        let evaluate = Evaluator {
            settings: ArcSwap::from_pointee(settings),
            models,
            tallies: RwLock::default(),
            open: Arc::default(),
            notes: Mutex::default(),
            noted: AtomicUsize::new(0),
        };
        evaluate.create_known();
        evaluate
    }

    /// Replaces the settings. The counts of an objective with the same name and kind are kept.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
        self.create_known();
    }

    /// The current settings.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }

    /// The counts of the current objectives, sorted.
    pub fn evaluated(&self) -> Vec<Evaluated> {
        let settings = self.settings.load();
        let tallies = self.tallies.read().unwrap_or_else(PoisonError::into_inner);
        let mut evaluated = Vec::new();
        for Objective { name, goal, .. } in &settings.objectives {
            let of_this_kind = tallies.get(name).into_iter().flatten().filter(|((word, _), _)| *word == goal.word());
            evaluated.extend(of_this_kind.map(|((_, model), tally)| Evaluated {
                objective: name.clone(),
                model: model.clone(),
                counts: tally.counts(goal),
            }));
        }
        evaluated.sort_by(|a, b| (&a.objective, &a.model).cmp(&(&b.objective, &b.model)));
        evaluated
    }

    /// Runs [`Evaluator::sweep`] over the requests that are open now. Call about once per second, never on a data path
    /// thread.
    pub fn look(&self, now: Instant) {
        self.sweep(&self.open.at(now), now);
    }

    /// Counts pending requests whose first token is overdue. They are not evaluated again when they end.
    ///
    /// The number of prompt tokens is unknown before the end, so every byte counts as one token: a miss is counted only
    /// when it is certain.
    pub fn sweep(&self, waiting: &dyn Waiting, now: Instant) {
        let settings = self.settings.load();
        let mut late = HashMap::new();
        waiting.each(&mut |wait| {
            let model = self.models.led_to(&labels(wait));
            let named = model.as_deref().or(wait.request_model);
            let missed = settings.objectives.iter().filter(|objective| misses(objective, wait, named, &settings));
            let missed: Vec<&Objective> = missed.collect();
            if !missed.is_empty() && late.len() < MOST {
                late.insert((wait.connection, wait.sequence), (missed, model));
            }
        });
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.retain(|id, note| match note {
            Note::Late => late.contains_key(id),
            Note::Counted { closed, .. } if waiting.is_open(id.0, id.1) => {
                *closed = None;
                true
            }
            Note::Counted { closed, .. } => now.saturating_duration_since(*closed.get_or_insert(now)) < RECORD_COMES,
        });
        for (id, (missed, model)) in late {
            match notes.get(&id) {
                None if notes.len() < MOST => drop(notes.insert(id, Note::Late)),
                None | Some(Note::Counted { .. }) => {}
                Some(Note::Late) => {
                    for objective in &missed {
                        self.tally(objective, model.clone()).add(Verdict::Bad(Reason::NoFirstToken), None);
                    }
                    let by = missed.iter().map(|objective| objective.name.clone()).collect();
                    notes.insert(id, Note::Counted { by, closed: None });
                }
            }
        }
        self.noted.store(notes.len(), Ordering::Release);
    }

    /// Evaluates a finished request.
    pub fn evaluate(&self, record: &Record) {
        let settings = self.settings.load();
        if settings.objectives.is_empty() {
            return;
        }
        let model = self.models.of(record, |gone| self.remove(gone));
        let counted = self.take((record.connection, record.sequence));
        for objective in &settings.objectives {
            if counted.contains(&objective.name) || !concerns(objective, record, model.as_deref()) {
                continue;
            }
            let verdict = verdict(record, model.as_deref(), objective, &settings);
            self.tally(objective, model.clone()).add(verdict, record.output_tokens);
        }
    }

    /// True when the request is bad by any objective whose scope covers it, so that its trace is worth keeping. Counts
    /// nothing.
    pub fn is_broken_by(&self, record: &Record) -> bool {
        let settings = self.settings.load();
        let model = self.models.of(record, |gone| self.remove(gone));
        settings.objectives.iter().any(|objective| {
            concerns(objective, record, model.as_deref())
                && matches!(verdict(record, model.as_deref(), objective, &settings), Verdict::Bad(_))
        })
    }

    /// Removes the counts of a model evicted from the model list, unless an objective names it.
    fn remove(&self, gone: &str) {
        let settings = self.settings.load();
        let mut tallies = self.tallies.write().unwrap_or_else(PoisonError::into_inner);
        for (name, of_this) in tallies.iter_mut() {
            let objective = settings.objectives.iter().find(|objective| objective.name == *name);
            if !objective.is_some_and(|objective| objective.scope.models.iter().any(|model| model == gone)) {
                of_this.retain(|(_, model), _| model.as_deref() != Some(gone));
            }
        }
    }

    /// Removes the note of a request and returns the objectives that have counted it while it was pending.
    fn take(&self, id: RequestId) -> Vec<String> {
        if self.noted.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        match self.notes.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) {
            Some(Note::Counted { by, .. }) => by,
            Some(Note::Late) | None => Vec::new(),
        }
    }

    /// Creates the counters of every objective and known model at zero.
    fn create_known(&self) {
        let settings = self.settings.load();
        let labels = self.models.labels();
        for objective in &settings.objectives {
            if labels.is_empty() && objective.scope.models.is_empty() {
                self.tally(objective, None);
            }
            for label in &labels {
                if objective.scope.covers_model(label) {
                    self.tally(objective, Some(Arc::clone(label)));
                }
            }
            // A name without a `*` is known before any server reports it.
            for name in objective.scope.models.iter().filter(|name| !name.ends_with('*')) {
                self.tally(objective, Some(name.as_str().into()));
            }
        }
    }

    fn tally(&self, objective: &Objective, model: Option<Arc<str>>) -> Arc<Tally> {
        let key = (objective.goal.word(), model);
        let known = self.tallies.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(tally) = known.get(&objective.name).and_then(|of_this| of_this.get(&key)) {
            return Arc::clone(tally);
        }
        drop(known);
        let mut tallies = self.tallies.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(tallies.entry(objective.name.clone()).or_default().entry(key).or_default())
    }
}

fn labels(wait: &Wait<'_>) -> Labels {
    Labels { route: wait.route, request_model: wait.request_model.map(Into::into), ..Labels::default() }
}

/// True when the request is in the objective's scope, and its wait exceeds the limit for any prompt of that size.
fn misses(objective: &Objective, wait: &Wait<'_>, model: Option<&str>, settings: &Settings) -> bool {
    let about = |objective: &Objective| {
        let tenant = wait.targets.and_then(|targets| targets.tenant.as_deref());
        objective.scope.covers(wait.route, tenant) && objective.scope.covers_model(model.unwrap_or_default())
    };
    match objective.goal {
        Goal::FirstToken { base, per_1k_uncached } => {
            let limit = longest_wait(base, per_1k_uncached, wait.request_bytes, wait.targets, settings);
            about(objective) && wait.waited > limit
        }
        Goal::Goodput => {
            let first = |other: &&Objective| matches!(other.goal, Goal::FirstToken { .. });
            about(objective)
                && settings.objectives.iter().filter(first).any(|other| misses(other, wait, model, settings))
        }
        _ => false,
    }
}

impl Collect for Evaluator {
    fn collect(&self, points: &mut Points<'_>) {
        for Objective { name, goal, target, .. } in &self.settings.load().objectives {
            let slo = (Key::Slo, Arc::<str>::from(name.as_str()).into());
            points.put(Id::SloObjective, std::slice::from_ref(&slo), *target);
            for (threshold, value) in goal.thresholds() {
                points.put(Id::SloThreshold, &[slo.clone(), (Key::Threshold, threshold.into())], value);
            }
        }
        for Evaluated { objective, model, counts } in self.evaluated() {
            let known = [(Key::Slo, Arc::<str>::from(objective).into()), (Key::Model, model.into())];
            let mut put = |id, more: &[(Key, &'static str)], count: u64| {
                let more = more.iter().map(|(key, word)| (*key, (*word).into()));
                points.put(id, &known.iter().cloned().chain(more).collect::<Vec<_>>(), count);
            };
            put(Id::SloEvents, &[(Key::Verdict, "good")], counts.good);
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
    fn opened(&self, opening: &Opening) -> Watches {
        let settings = self.settings.load();
        let evaluated = settings.objectives.iter().any(|objective| matches!(objective.goal, Goal::FirstToken { .. }));
        if evaluated && opening.route.generates() { self.open.watch(opening) } else { Watches::default() }
    }

    fn record(&self, record: &Arc<Record>) {
        self.evaluate(record);
    }
}
