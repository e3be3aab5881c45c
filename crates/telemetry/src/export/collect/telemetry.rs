//! Counters of the exporters' own operation, and of each listener.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points};
use tokometer_observe::measure::{Detach, Message, Phase, Unread};

tokometer_metrics::closed_enum! {
    /// Why a trace is kept although the sampler would drop it, in order of priority: the first reason that applies is
    /// recorded. The name is the value of the label `reason` and of the span attribute.
    pub(crate) enum Keep {
        /// The request failed.
        Failed = "failed",
        /// The request missed an objective.
        Objective = "objective",
        /// The stream stalled.
        Stalled = "stalled",
        /// The first token took too long.
        Slow = "slow",
    }
}

/// Minimum time between two failure log lines of a signal: an unavailable collector must not flood the log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Export counters of one signal.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    pub(crate) tried: AtomicU64,
    pub(crate) failed: AtomicU64,
    last_logged_failure: std::sync::Mutex<Option<std::time::Instant>>,
}

impl Signal {
    /// Counts an export. Logs failures at a limited rate ([`LOG_EVERY`]).
    pub(crate) fn done(&self, signal: &'static str, result: Result<(), String>) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        let Err(error) = result else { return };
        let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        let mut last = self.last_logged_failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *last = Some(std::time::Instant::now());
            let lost = match signal {
                "metrics" => "the next one compensates, unless `otlp.metrics.temporality` is delta or lowmemory",
                _ => "rejected data is lost",
            };
            tracing::warn!(
                signal,
                failed,
                error,
                "OTLP export failed or was partly rejected: {lost}. Check the endpoint."
            );
        }
    }
}

/// Counters of tokometer's own telemetry.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Signal,
    pub(crate) traces: Signal,
    pub(crate) spans_sent: AtomicU64,
    pub(crate) spans_dropped: AtomicU64,
    /// Kept traces by reason, in the order of [`Keep::ALL`].
    pub(crate) traces_kept: [AtomicU64; Keep::ALL.len()],
    pub(crate) traces_capped: AtomicU64,
    pub(crate) folded_models: AtomicU64,
    pub(crate) folded_label_sets: AtomicU64,
    pub(crate) folded_classes: AtomicU64,
}

impl Collect for Telemetry {
    fn collect(&self, points: &mut Points<'_>) {
        points.put(Id::SpansSent, &[], &self.spans_sent);
        points.put(Id::SpansDropped, &[], &self.spans_dropped);
        points.put_each(Id::TracesKept, Key::Reason, Keep::ALL.map(Keep::as_str).into_iter().zip(&self.traces_kept));
        points.put(Id::TracesCapped, &[], &self.traces_capped);
        let signals = [("metrics", &self.metrics), ("traces", &self.traces)];
        points.put_each(Id::Exports, Key::Signal, signals.map(|(word, signal)| (word, &signal.tried)));
        points.put_each(Id::ExportsFailed, Key::Signal, signals.map(|(word, signal)| (word, &signal.failed)));
        let folded = [
            ("model", &self.folded_models),
            ("label_set", &self.folded_label_sets),
            ("prompt_class", &self.folded_classes),
        ];
        points.put_each(Id::LabelsFolded, Key::Kind, folded);
        points.put(Id::BuildInfo, &[(Key::Version, env!("CARGO_PKG_VERSION").into())], 1.0);
    }
}

/// Counters of one listener, each array in the order of its enum's variants.
#[derive(Debug, Default)]
struct Listener {
    phases: [AtomicI64; Phase::ALL.len()],
    detached: [AtomicU64; Detach::ALL.len()],
    unread: [[AtomicU64; Unread::ALL.len()]; Message::ALL.len()],
    unparsed: [AtomicU64; Message::ALL.len()],
}

/// Counters of every listener, changed by the data path with one atomic operation each.
#[derive(Debug)]
pub(crate) struct Listeners(Vec<Listener>);

impl Listeners {
    pub(crate) fn new(listeners: usize) -> Listeners {
        Listeners((0..listeners).map(|_| Listener::default()).collect())
    }

    pub(crate) fn in_flight(&self, listener: usize, phase: Phase, delta: i64) {
        if let Some(listener) = self.0.get(listener) {
            listener.phases[phase as usize].fetch_add(delta, Ordering::Relaxed);
        }
    }

    /// Counts a part of a connection that could not be parsed. Logs the first TLS connection of each listener.
    pub(crate) fn detached(&self, listener: usize, why: Detach) {
        let Some(counts) = self.0.get(listener) else { return };
        let before = counts.detached[why as usize].fetch_add(1, Ordering::Relaxed);
        if (before, why) == (0, Detach::Tls) {
            let place = format!("listeners[{listener}]");
            tracing::warn!(
                listener = place,
                "The connections of this listener carry TLS that tokometer does not terminate: they are forwarded, but not measured. Set `tls.certificate` and `tls.key` to the engine's files, and write the upstream as https://host:port."
            );
        }
    }

    pub(crate) fn unparsed(&self, listener: usize, of: Message, bytes: usize) {
        if let Some(listener) = self.0.get(listener) {
            listener.unparsed[of as usize].fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn unread(&self, listener: usize, of: Message, why: Unread) {
        if let Some(listener) = self.0.get(listener) {
            listener.unread[of as usize][why as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Collect for Listeners {
    fn collect(&self, points: &mut Points<'_>) {
        for (at, listener) in self.0.iter().enumerate() {
            for (phase, open) in Phase::ALL.into_iter().zip(&listener.phases) {
                points.put_at(at, Id::InFlight, &[(Key::Phase, phase.as_str().into())], open);
            }
            for (why, connections) in Detach::ALL.into_iter().zip(&listener.detached) {
                points.put_at(at, Id::ObserverDetached, &[(Key::Reason, why.as_str().into())], connections);
            }
            for (message, bytes) in Message::ALL.into_iter().zip(&listener.unparsed) {
                points.put_at(at, Id::ObserverUnparsed, &[(Key::Direction, message.as_str().into())], bytes);
            }
            for (message, bodies) in Message::ALL.into_iter().zip(&listener.unread) {
                for (why, bodies) in Unread::ALL.into_iter().zip(bodies) {
                    let known = [(Key::Direction, message.as_str().into()), (Key::Reason, why.as_str().into())];
                    points.put_at(at, Id::BodiesUnread, &known, bodies);
                }
            }
        }
    }
}
