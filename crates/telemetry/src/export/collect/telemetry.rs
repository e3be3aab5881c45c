//! Statistics of tokometer's own telemetry, exported as metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::export::collect::Collect;
use crate::export::collect::Points;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::trace::Keep;

/// At most one failure line per signal and minute: an unavailable collector must not flood the log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The exports of one signal.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    pub(crate) tried: AtomicU64,
    pub(crate) failed: AtomicU64,
    last_logged_failure: std::sync::Mutex<Option<std::time::Instant>>,
}

impl Signal {
    /// Counts an export; logs failures at a limited rate.
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
    /// By reason, in the order of [`Keep::ALL`].
    pub(crate) traces_kept: [AtomicU64; Keep::ALL.len()],
    pub(crate) traces_capped: AtomicU64,
    pub(crate) folded_models: AtomicU64,
    pub(crate) folded_label_sets: AtomicU64,
    pub(crate) folded_classes: AtomicU64,
}

impl Collect for Telemetry {
    fn collect(&self, points: &mut Points<'_>) {
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        points.put(Id::SpansSent, &[], count(&self.spans_sent));
        points.put(Id::SpansDropped, &[], count(&self.spans_dropped));
        for (why, kept) in Keep::ALL.into_iter().zip(&self.traces_kept) {
            points.put(Id::TracesKept, &[(Key::Reason, why.as_str().into())], count(kept));
        }
        points.put(Id::TracesCapped, &[], count(&self.traces_capped));
        for (word, signal) in [("metrics", &self.metrics), ("traces", &self.traces)] {
            points.put(Id::Exports, &[(Key::Signal, word.into())], count(&signal.tried));
            points.put(Id::ExportsFailed, &[(Key::Signal, word.into())], count(&signal.failed));
        }
        let folded = [
            ("model", &self.folded_models),
            ("label_set", &self.folded_label_sets),
            ("prompt_class", &self.folded_classes),
        ];
        for (word, requests) in folded {
            points.put(Id::LabelsFolded, &[(Key::Kind, word.into())], count(requests));
        }
        points.put(Id::BuildInfo, &[(Key::Version, env!("CARGO_PKG_VERSION").into())], 1.0);
    }
}
