//! Traces: the sampling decision, ids and spans of a request, all created when it has ended.

mod clock;
mod decision;
mod engine;
mod objectives;
mod rate;
mod spans;

use std::sync::Arc;
use std::time::SystemTime;

use crate::export::ProcessStats;
use crate::export::Semconv;
use crate::export::Settings;
use crate::export::distribution::Exemplar;
use crate::export::otlp::Layout;
use crate::export::otlp::SpanQueue;
use crate::export::telemetry::Telemetry;
use tokometer_observe::measure::Record;

use clock::Clock;
use decision::Decision;
use objectives::Objectives;

pub(crate) use decision::Keep;

/// The ids of a request's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// The caller's span.
    pub(crate) parent: Option<u64>,
    /// Why the span is kept although the sampler would have dropped it.
    pub(crate) kept: Option<Keep>,
}

/// Decides on spans and creates them.
pub(crate) struct Tracer {
    decision: Decision,
    objectives: Objectives,
    clock: Clock,
    servers: Arc<[(String, Option<u16>)]>,
    semconv: Semconv,
    queue: Option<SpanQueue>,
    process: Arc<dyn ProcessStats>,
}

impl Tracer {
    pub(crate) fn new(
        settings: &Settings,
        queue: Option<SpanQueue>,
        telemetry: Arc<Telemetry>,
        process: Arc<dyn ProcessStats>,
    ) -> Tracer {
        Tracer {
            decision: Decision::new(&settings.traces, telemetry),
            objectives: Objectives::default(),
            clock: Clock::new(),
            servers: settings.servers.as_slice().into(),
            semconv: settings.semconv,
            queue,
            process,
        }
    }

    /// Keeps the traces of requests for which `judge` reports a broken objective.
    pub(crate) fn keep_when(&self, judge: impl Fn(&Record) -> bool + Send + Sync + 'static) {
        self.objectives.set(Box::new(judge));
    }

    /// Queues the request's spans if they are kept, and returns its exemplar: it refers to our own span; without a
    /// trace exporter, to the caller's span if the caller samples it; else `None`, because an exemplar must not refer
    /// to a trace that nothing stores.
    pub(crate) fn trace(&self, record: &Record) -> Option<Exemplar> {
        let ended = record.started + record.ended;
        let anchor = self.clock.anchor(ended);
        let at = anchor.at(ended);
        let Some(queue) = &self.queue else {
            let caller = record.trace.filter(|caller| caller.sampled)?;
            return Some(exemplar(caller.trace_id, caller.span_id, at));
        };
        // Health checks and the like get a span only if the caller's trace would otherwise have a gap.
        if !record.labels.route.is_read() && record.trace.is_none() {
            return None;
        }
        let ids = self.decision.decide(record, &self.objectives, ended)?;
        let layout = || -> Layout {
            let (record, servers, semconv) = (record.clone(), Arc::clone(&self.servers), self.semconv);
            let process = Arc::clone(&self.process);
            Box::new(move || {
                let mut all = spans::spans(&record, ids, anchor, &servers, semconv);
                engine::join(&mut all, &record, &*process);
                all
            })
        };
        queue.push(spans::count(record), layout).then(|| exemplar(ids.trace_id, ids.span_id, at))
    }
}

fn exemplar(trace_id: u128, span_id: u64, at: SystemTime) -> Exemplar {
    Exemplar { trace_id, span_id, value: 0.0, at }
}
