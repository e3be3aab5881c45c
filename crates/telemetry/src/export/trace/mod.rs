//! Traces: the sampling decision, IDs and spans of a request, all created after the end of the request.

mod decision;
mod spans;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::KeyValue;

use crate::export::collect::telemetry::{Keep, Telemetry};
use crate::export::otlp::{Layout, SpanQueue};
use crate::export::series::distribution::Exemplar;
use crate::export::{Semconv, Settings};
use tokometer_engine::scrape::State;
use tokometer_metrics::Servers;
use tokometer_observe::measure::Record;

use decision::Decision;

/// The IDs of a request's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// Span ID of the caller.
    pub(crate) parent: Option<u64>,
    /// Why the span is kept although the sampler would have dropped it.
    pub(crate) kept: Option<Keep>,
}

/// One moment on the monotonic clock and on the wall clock. All times of a request are converted with the same anchor,
/// so its spans stay consistent even if the wall clock is adjusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anchor {
    instant: Instant,
    system: SystemTime,
}

impl Anchor {
    pub(crate) fn now() -> Anchor {
        Anchor { instant: Instant::now(), system: SystemTime::now() }
    }

    /// The wall-clock time of this moment.
    pub(crate) fn at(&self, moment: Instant) -> SystemTime {
        match moment.checked_duration_since(self.instant) {
            Some(after) => self.system + after,
            None => self.system - self.instant.duration_since(moment),
        }
    }
}

/// Evaluates the objectives of an ended request; true if the request missed one of them.
type Evaluator = Box<dyn Fn(&Record) -> bool + Send + Sync>;

/// Returns the state of a listener's engine at a given moment, and the age of that state.
type EngineState = Box<dyn Fn(usize, Instant) -> Option<(Arc<State>, Duration)> + Send + Sync>;

/// Decides which requests get spans, and creates the spans.
pub(crate) struct Tracer {
    decision: Decision,
    /// Called while a request is recorded, so it must return quickly.
    pub(crate) evaluate: OnceLock<Evaluator>,
    pub(crate) engine_state: Arc<OnceLock<EngineState>>,
    servers: Servers,
    semconv: Semconv,
    queue: Option<SpanQueue>,
}

impl Tracer {
    pub(crate) fn new(
        settings: &Settings,
        servers: Servers,
        queue: Option<SpanQueue>,
        telemetry: Arc<Telemetry>,
    ) -> Tracer {
        Tracer {
            decision: Decision::new(&settings.traces, telemetry),
            evaluate: OnceLock::new(),
            engine_state: Arc::default(),
            servers,
            semconv: settings.semconv,
            queue,
        }
    }

    /// Queues the request's spans if they are kept, and returns an exemplar that refers to them. Without a trace
    /// exporter, the exemplar refers to the caller's span if it is sampled. `None` otherwise: an exemplar must not
    /// refer to a trace that is not stored.
    pub(crate) fn trace(&self, record: &Arc<Record>) -> Option<Exemplar> {
        let ended = record.started + record.times.ended;
        let anchor = Anchor::now();
        let at = anchor.at(ended);
        let Some(queue) = &self.queue else {
            let caller = record.request.trace.filter(|caller| caller.sampled)?;
            return Some(exemplar(caller.trace_id, caller.span_id, at));
        };
        // Requests that are not parsed, such as health checks, get a span only if the caller sent a traceparent.
        // Without the span, the caller's trace would have a gap.
        if !record.labels.route.is_read() && record.request.trace.is_none() {
            return None;
        }
        let breaks_objective = || self.evaluate.get().is_some_and(|evaluate| evaluate(record));
        let ids = self.decision.decide(record, breaks_objective, ended)?;
        let layout = || -> Layout {
            let (record, servers, semconv) = (Arc::clone(record), self.servers.clone(), self.semconv);
            let engine_state = Arc::clone(&self.engine_state);
            Box::new(move || {
                let mut all = spans::spans(&record, ids, anchor, servers.of(record.labels.listener), semconv);
                if let (Some(span), Some(state)) = (all.first_mut(), engine_state.get()) {
                    span.attributes.extend(engine_at_first_token(&record, state));
                }
                all
            })
        };
        queue.push(spans::count(record), layout).then(|| exemplar(ids.trace_id, ids.span_id, at))
    }
}

fn exemplar(trace_id: u128, span_id: u64, at: SystemTime) -> Exemplar {
    Exemplar { trace_id, span_id, value: 0.0, at }
}

/// The engine's state at the request's first token, which can explain a slow request (for example, a full KV cache).
/// The attributes have the names of the corresponding metrics.
fn engine_at_first_token(record: &Record, engine_state: &EngineState) -> Vec<KeyValue> {
    let moment = record.started + record.times.first_token.unwrap_or(record.times.ended);
    // Requests that are not parsed, such as health checks, have no tokens.
    let state = record.labels.route.is_read().then(|| engine_state(record.labels.listener, moment)).flatten();
    let Some((state, age)) = state else { return Vec::new() };
    let count = |value: Option<f64>| value.map(|value| opentelemetry::Value::from(value.round() as i64));
    let attributes = [
        ("tokometer.engine.requests.running", count(state.running)),
        ("tokometer.engine.requests.waiting", count(state.waiting)),
        ("tokometer.engine.kv_cache.usage", state.kv_usage.map(opentelemetry::Value::from)),
        ("tokometer.engine.preemptions", count(state.preemptions)),
        ("tokometer.engine.state.age", Some(age.as_secs_f64().into())),
    ];
    attributes.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_around_the_anchor_have_their_wall_times() {
        let anchor = Anchor { instant: Instant::now() + Duration::from_secs(10), system: SystemTime::UNIX_EPOCH };
        let second = Duration::from_secs(1);
        assert_eq!(anchor.at(anchor.instant + second), SystemTime::UNIX_EPOCH + second);
        assert_eq!(anchor.at(anchor.instant - second), SystemTime::UNIX_EPOCH - second);
    }
}
