//! What becomes of our own telemetry: counted here, shown as metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::export::trace::Keep;

/// One failure line per signal and minute at most: a collector that is down must not fill the log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The exports of one signal.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    pub(crate) tried: AtomicU64,
    pub(crate) failed: AtomicU64,
    last_logged_failure: std::sync::Mutex<Option<std::time::Instant>>,
}

impl Signal {
    /// Counts an export; logs a failure now and then.
    pub(crate) fn done(&self, signal: &'static str, result: Result<(), String>) {
        self.tried.fetch_add(1, Ordering::Relaxed);
        let Err(error) = result else { return };
        let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
        let mut last = self.last_logged_failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *last = Some(std::time::Instant::now());
            let lost = match signal {
                "metrics" => "the next one makes up for it, unless `otlp.metrics.temporality` is delta or lowmemory",
                _ => "what was not taken is lost",
            };
            tracing::warn!(
                signal,
                failed,
                error,
                "An OTLP export was not taken, or not whole: {lost}. Check the endpoint."
            );
        }
    }
}

/// Counts of our own telemetry.
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
