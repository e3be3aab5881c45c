//! Traces: whether an exchange's spans are kept, their ids, and the spans themselves, all made when it has ended.

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

/// The ids of an exchange's span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// The caller's span.
    pub(crate) parent: Option<u64>,
    /// Why it is kept, where the sampler would have left it out.
    pub(crate) kept: Option<Keep>,
}

/// Decides on and makes spans.
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

    /// Keeps the traces of exchanges of which `judge` says that they broke an objective.
    pub(crate) fn keep_when(&self, judge: impl Fn(&Record) -> bool + Send + Sync + 'static) {
        self.objectives.set(Box::new(judge));
    }

    /// Sends the exchange's spans on their way if they are kept, and gives what its exemplars shall point to: our own
    /// span; without an exporter of our own the caller's span if the caller keeps it; else nothing, because an
    /// exemplar must not point to a trace that nobody has.
    pub(crate) fn trace(&self, record: &Record) -> Option<Exemplar> {
        let ended = record.started + record.ended;
        let anchor = self.clock.anchor(ended);
        let at = anchor.at(ended);
        let Some(queue) = &self.queue else {
            let caller = record.trace.filter(|caller| caller.sampled)?;
            return Some(exemplar(caller.trace_id, caller.span_id, at));
        };
        // Health checks and the like: a span only where the caller's trace would have a hole without it.
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
