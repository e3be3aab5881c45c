//! The metrics that are observed and not recorded: made from the process' figures at each scrape or export.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;

use arc_swap::ArcSwap;
use opentelemetry::metrics::AsyncInstrument;
use opentelemetry::metrics::Meter;

use crate::export::attributes::Attributes;
use crate::export::attributes::Value;
use crate::export::engine;
use crate::export::ledger;
use crate::export::objectives;
use crate::export::page;
use crate::export::process::Snapshot;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::TABLE;
use crate::export::table::metric;
use crate::export::telemetry::Telemetry;
use crate::export::trace::Keep;

/// One value of this moment.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    pub(crate) metric: &'static Metric,
    pub(crate) attributes: Attributes,
    pub(crate) value: f64,
}

/// True for the metrics of this module.
pub(crate) fn is_observed(id: Id) -> bool {
    engine::is_engine(id) || is_of_process(id)
}

fn is_of_process(id: Id) -> bool {
    matches!(
        id,
        Id::ConnectionsOpened
            | Id::ConnectionsOpen
            | Id::ConnectionsRefused
            | Id::ConnectFailures
            | Id::RelayIo
            | Id::Interception
            | Id::InFlightMeanAge
            | Id::InFlightOldest
            | Id::InFlightWaited
            | Id::InFlightStalled
            | Id::InFlightHeldUp
            | Id::InFlightUntracked
            | Id::EngineSilence
            | Id::EngineSilenceBound
            | Id::EngineWedged
            | Id::RecentExchanges
            | Id::RecentMemory
            | Id::RecentDropped
            | Id::RecordsDropped
            | Id::AccessLogDropped
            | Id::ObserverConnections
            | Id::ObserverTime
            | Id::ObserverDecoded
            | Id::ObserverMemory
            | Id::ObserverMemoryLimit
            | Id::ObserverMemoryRefused
            | Id::EventLoopLag
            | Id::TokenizerUncounted
            | Id::SpansSent
            | Id::SpansDropped
            | Id::TracesKept
            | Id::TracesCapped
            | Id::Exports
            | Id::ExportsFailed
            | Id::LabelsFolded
            | Id::SloEvents
            | Id::SloExcluded
            | Id::SloGoodTokens
            | Id::SloObjective
            | Id::SloThreshold
            | Id::TenantExchanges
            | Id::TenantInputTokens
            | Id::TenantCachedTokens
            | Id::TenantOutputTokens
            | Id::Cost
            | Id::Unpriced
            | Id::BudgetSpent
            | Id::BudgetLimit
            | Id::EngineSpansReceived
            | Id::EngineSpansForwarded
            | Id::EngineSpansDropped
            | Id::EngineMessagesRefused
            | Id::EngineMessagesWaiting
            | Id::EngineSpansUnjoined
            | Id::SpanJoins
            | Id::SpanJoinsHeld
            | Id::Cpu
            | Id::ResidentMemory
            | Id::VirtualMemory
            | Id::OpenFds
            | Id::MaxFds
            | Id::Threads
            | Id::StartTime
            | Id::BuildInfo
    )
}

/// `server.address` and `server.port` of a pair.
pub(crate) fn server(servers: &[(String, Option<u16>)], pair: usize) -> Vec<(Key, Value)> {
    let mut known = Vec::new();
    if let Some((address, port)) = servers.get(pair) {
        known.push((Key::ServerAddress, Value::Text(address.as_str().into())));
        known.extend(port.map(|port| (Key::ServerPort, Value::Number(i64::from(port)))));
    }
    known
}

/// Takes one value: of which metric, with which attributes.
pub(crate) type Push<'a> = dyn FnMut(Id, &[(Key, Value)], &[(Key, Value)], f64) + 'a;

/// Every observed value, in the order of the table.
pub(crate) fn observe(stats: &Snapshot, telemetry: &Telemetry, servers: &[(String, Option<u16>)]) -> Vec<Observation> {
    let mut all = Vec::new();
    let mut push = |id: Id, known: &[(Key, Value)], extra: &[(Key, Value)], value: f64| {
        let metric = metric(id);
        all.push(Observation { metric, attributes: Attributes::of(metric, known, extra), value });
    };
    for (pair, figures) in stats.pairs.iter().enumerate() {
        let server = server(servers, pair);
        let word = |key, word| [(key, Value::Word(word))];
        push(Id::ConnectionsOpened, &server, &[], figures.opened as f64);
        push(Id::ConnectionsOpen, &server, &[], figures.open as f64);
        for (why, refused) in ["descriptors", "max_connections"].into_iter().zip(figures.turned_away) {
            push(Id::ConnectionsRefused, &server, &word(Key::Reason, why), refused as f64);
        }
        push(Id::ConnectFailures, &server, &word(Key::Reason, "refused"), figures.refused as f64);
        push(Id::ConnectFailures, &server, &word(Key::Reason, "timeout"), figures.timed_out as f64);
        push(Id::RelayIo, &server, &word(Key::Direction, "request"), figures.request_bytes as f64);
        push(Id::RelayIo, &server, &word(Key::Direction, "response"), figures.response_bytes as f64);
        if let Some((mode, result)) = figures.interception {
            push(Id::Interception, &server, &[(Key::Mode, Value::Word(mode)), (Key::Result, Value::Word(result))], 1.0);
        }
    }
    for (pair, figures) in stats.engines.iter().enumerate() {
        if let Some(figures) = figures {
            engine::observe(figures, &server(servers, pair), &mut push);
        }
    }
    in_flight(&mut push, stats, servers);
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
    push(Id::ObserverConnections, &[], &[], stats.observed_connections as f64);
    push(Id::ObserverTime, &[], &[], stats.observer_time.as_secs_f64());
    if let Some(budget) = &stats.observer_budget {
        push(Id::ObserverDecoded, &[], &[], budget.decoded as f64);
        push(Id::ObserverMemory, &[], &[], budget.held as f64);
        push(Id::ObserverMemoryLimit, &[], &[], budget.limit as f64);
        push(Id::ObserverMemoryRefused, &[], &[], budget.refused as f64);
    }
    if let Some(lag) = stats.event_loop_lag {
        push(Id::EventLoopLag, &[], &[], lag.as_secs_f64());
    }
    for (why, answers) in &stats.uncounted {
        push(Id::TokenizerUncounted, &[], &[(Key::Reason, Value::Word(why.as_str()))], *answers as f64);
    }
    push(Id::SpansSent, &[], &[], count(&telemetry.spans_sent));
    push(Id::SpansDropped, &[], &[], count(&telemetry.spans_dropped));
    for (why, kept) in Keep::ALL.into_iter().zip(&telemetry.traces_kept) {
        push(Id::TracesKept, &[], &[(Key::Reason, Value::Word(why.as_str()))], count(kept));
    }
    push(Id::TracesCapped, &[], &[], count(&telemetry.traces_capped));
    for (word, signal) in [("metrics", &telemetry.metrics), ("traces", &telemetry.traces)] {
        push(Id::Exports, &[], &[(Key::Signal, Value::Word(word))], count(&signal.tried));
        push(Id::ExportsFailed, &[], &[(Key::Signal, Value::Word(word))], count(&signal.failed));
    }
    push(Id::LabelsFolded, &[], &[(Key::Kind, Value::Word("model"))], count(&telemetry.folded_models));
    push(Id::LabelsFolded, &[], &[(Key::Kind, Value::Word("label_set"))], count(&telemetry.folded_label_sets));
    push(Id::LabelsFolded, &[], &[(Key::Kind, Value::Word("prompt_class"))], count(&telemetry.folded_classes));
    ledger::observe(&stats.ledger, |id, own: &[(Key, Value)], value| push(id, &[], own, value));
    objectives::observe(&stats.slo, |id, own: &[(Key, Value)], value| push(id, &[], own, value));

    if let Some(spans) = &stats.engine_spans {
        push(Id::EngineSpansReceived, &[], &[], spans.received as f64);
        push(Id::EngineSpansForwarded, &[], &[], spans.forwarded as f64);
        push(Id::EngineMessagesWaiting, &[], &[], spans.waiting_bytes as f64);
        push(Id::SpanJoinsHeld, &[], &[], spans.held as f64);
        for (id, key, counts) in [
            (Id::EngineSpansDropped, Key::Reason, &spans.dropped),
            (Id::EngineMessagesRefused, Key::Reason, &spans.refused),
            (Id::EngineSpansUnjoined, Key::Reason, &spans.unjoined),
            (Id::SpanJoins, Key::Result, &spans.joins),
        ] {
            for &(word, count) in counts {
                push(id, &[], &[(key, Value::Word(word))], count as f64);
            }
        }
    }

    let process = &stats.process;
    let mut known = |id: Id, value: Option<f64>| {
        if let Some(value) = value {
            push(id, &[], &[], value);
        }
    };
    known(Id::Cpu, process.cpu.map(|cpu| cpu.as_secs_f64()));
    known(Id::ResidentMemory, process.resident_bytes.map(|n| n as f64));
    known(Id::VirtualMemory, process.virtual_bytes.map(|n| n as f64));
    known(Id::OpenFds, process.open_fds.map(|n| n as f64));
    known(Id::MaxFds, process.max_fds.map(|n| n as f64));
    known(Id::Threads, process.threads.map(|n| n as f64));
    let started = process.started.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    known(Id::StartTime, started.map(|since| since.as_secs_f64()));
    push(Id::BuildInfo, &[], &[(Key::Version, Value::Word(env!("CARGO_PKG_VERSION")))], 1.0);
    all
}

/// What is in flight, and what of it the engines' health says.
fn in_flight(push: &mut Push<'_>, stats: &Snapshot, servers: &[(String, Option<u16>)]) {
    for (pair, figures) in stats.pairs.iter().enumerate() {
        let server = server(servers, pair);
        for (word, phase) in ["waiting_first_token", "streaming"].into_iter().zip(&figures.phases) {
            let times = [
                (Id::InFlightMeanAge, phase.mean_age),
                (Id::InFlightOldest, phase.oldest),
                (Id::InFlightWaited, phase.waited),
            ];
            for (id, time) in times {
                if let Some(time) = time {
                    push(id, &server, &[(Key::Phase, Value::Word(word))], time.as_secs_f64());
                }
            }
        }
        push(Id::InFlightStalled, &server, &[], figures.stalled as f64);
        push(Id::InFlightHeldUp, &server, &[], figures.held_up as f64);
        push(Id::EngineSilence, &server, &[], figures.silence.as_secs_f64());
        if let Some(bound) = figures.silence_bound {
            push(Id::EngineSilenceBound, &server, &[], bound.as_secs_f64());
        }
        push(Id::EngineWedged, &server, &[], f64::from(u8::from(figures.wedged)));
    }
    push(Id::InFlightUntracked, &[], &[], stats.untracked as f64);
    push(Id::RecentExchanges, &[], &[], stats.recent as f64);
    push(Id::RecentMemory, &[], &[], stats.recent_bytes as f64);
    push(Id::RecentDropped, &[], &[], stats.recent_dropped as f64);
    push(Id::RecordsDropped, &[], &[], stats.records_dropped as f64);
    if let Some(lost) = stats.access_log {
        for (why, lines) in [("queue_full", lost.dropped), ("write_failed", lost.failed)] {
            push(Id::AccessLogDropped, &[], &[(Key::Reason, Value::Word(why))], lines as f64);
        }
    }
}

/// Joins what is observed to the page, at the places of the table.
pub(crate) fn join(families: &mut [page::Family], observations: Vec<Observation>) {
    for observation in observations {
        if let Some(family) = families.iter_mut().find(|family| family.metric.id == observation.metric.id) {
            let value = page::Value::Float(observation.value);
            family.points.push(page::Point { attributes: observation.attributes, value });
        }
    }
}

/// The latest observations, for the OpenTelemetry callbacks: set before each collection, so that all callbacks of one
/// collection tell of the same moment.
pub(crate) type Latest = Arc<ArcSwap<Vec<Observation>>>;

/// Makes the observable instruments over `latest`.
pub(crate) fn instruments(meter: &Meter, latest: &Latest) {
    for metric in TABLE.iter().filter(|metric| is_observed(metric.id)) {
        let latest = Arc::clone(latest);
        let callback = move |out: &dyn AsyncInstrument<f64>| {
            for observation in latest.load().iter().filter(|o| o.metric.id == metric.id) {
                out.observe(observation.value, &observation.attributes.to_otel());
            }
        };
        let (name, unit, help) = (metric.name, metric.unit, metric.help);
        // The SDK keeps the callback; the handle itself is of no further use.
        match metric.kind {
            Kind::Counter => drop(
                meter
                    .f64_observable_counter(name)
                    .with_unit(unit)
                    .with_description(help)
                    .with_callback(callback)
                    .build(),
            ),
            Kind::UpDownCounter => drop(
                meter
                    .f64_observable_up_down_counter(name)
                    .with_unit(unit)
                    .with_description(help)
                    .with_callback(callback)
                    .build(),
            ),
            Kind::Gauge | Kind::Histogram => drop(
                meter.f64_observable_gauge(name).with_unit(unit).with_description(help).with_callback(callback).build(),
            ),
        }
    }
}
