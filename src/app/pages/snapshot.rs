//! Builds the snapshot of the live page from its parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::admin::Snapshots;
use crate::app::data_path::Handles;
use crate::app::monitors::ListenerStates;
use tokometer_engine::scrape;
use tokometer_engine::scrape::Engines;
use tokometer_operator::rules;
use tokometer_proxy::relay;
use tokometer_telemetry::backlog::Backlog;
use tokometer_telemetry::live::snapshot::{Engine, Objective, Recent, Snapshot};
use tokometer_telemetry::live::{InFlight, View};
use tokometer_telemetry::slo;
use tokometer_telemetry::slo::{Counts, Evaluator, Window};

/// The sources of a snapshot.
pub(in crate::app) struct Sources {
    pub(in crate::app) started: Instant,
    pub(in crate::app) in_flight: Arc<InFlight>,
    pub(in crate::app) evaluator: Arc<Evaluator>,
    pub(in crate::app) backlog: Arc<Backlog>,
    pub(in crate::app) window: Arc<Window>,
    pub(in crate::app) engines: Engines,
    pub(in crate::app) handles: Handles,
    pub(in crate::app) listener_states: Arc<ListenerStates>,
}

impl Sources {
    /// Returns a function that makes snapshots as JSON.
    pub(in crate::app) fn snapshots(self) -> Snapshots {
        let view = View::new(Arc::clone(&self.in_flight));
        // Only string keys and finite numbers: serialization cannot fail.
        Arc::new(move || serde_json::to_vec(&self.snapshot(&view, Instant::now())).unwrap_or_default())
    }

    fn snapshot(&self, view: &View, now: Instant) -> Snapshot {
        self.backlog.settle();
        let mut snapshot = view.look(now);
        let engines = self.engines.measurements(now);
        for (at, listener) in snapshot.listeners.iter_mut().enumerate() {
            listener.engine = self.handles.observers.engine(at).map(str::to_owned);
            let status = self.listener_states.status(at);
            listener.listening = status.map_or("", |status| status.listening.as_str()).to_owned();
            listener.own = engines.get(at).and_then(|fields| own(fields.as_ref()?));
        }
        let made = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            made_unix_ms: u64::try_from(made.as_millis()).unwrap_or(u64::MAX),
            uptime_seconds: seconds(now.saturating_duration_since(self.started)),
            draining: self.handles.relay.drain().phase() != relay::Phase::Running,
            reading: self.evaluator.settings().reading,
            objectives: self.objectives(now),
            ..snapshot
        }
    }

    fn objectives(&self, now: Instant) -> Vec<Objective> {
        let settings = self.evaluator.settings();
        let evaluated = self.evaluator.evaluated();
        let all = slo::sums(&evaluated);
        let (over, lately) = self.window.lately(now, evaluated);
        let reported = |objective: &slo::Objective| {
            let of = |sums: &BTreeMap<String, Counts>| sums.get(&objective.name).cloned().unwrap_or_default();
            let (all, lately, target) = (of(&all), of(&lately), objective.target);
            let alarming = rules::fast_threshold(objective, settings.rules.period_days);
            let state = lately.state(target, alarming, u64::from(settings.rules.min_bad_events));
            let thresholds = objective.goal.thresholds().into_iter();
            Objective {
                name: objective.name.clone(),
                kind: objective.goal.word().to_owned(),
                target,
                thresholds: thresholds.map(|(name, value)| (name.to_owned(), value)).collect(),
                good: all.good,
                bad: all.all_bad(),
                state: state.as_str().to_owned(),
                recent: Recent {
                    window_seconds: seconds(over),
                    good: lately.good,
                    bad: lately.all_bad(),
                    burn_rate: lately.burn_rate(target),
                    reasons: lately
                        .bad
                        .iter()
                        .filter(|(_, n)| **n > 0)
                        .map(|(reason, n)| (reason.as_str().to_owned(), *n))
                        .collect(),
                },
            }
        };
        settings.objectives.iter().map(reported).collect()
    }
}

/// The engine's own metrics; `None` if they are not current.
fn own(fields: &scrape::Measurements) -> Option<Engine> {
    let state = fields.state.as_ref()?;
    // Engines may report NaN or infinity, which JSON cannot represent.
    let number = |value: Option<f64>| value.filter(|value| value.is_finite());
    Some(Engine {
        age_seconds: fields.age.map(seconds),
        running: number(state.running),
        waiting: number(state.waiting),
        kv_usage: number(state.kv_usage),
        cache_ratio: number(state.cache_ratio.map(|ratio| ratio.value)),
        preemptions: number(state.preemptions),
        queue_seconds: number(state.queue_mean),
    })
}

/// The time in seconds, rounded to milliseconds.
fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}
