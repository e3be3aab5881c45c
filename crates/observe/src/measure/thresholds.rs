//! Minimum amounts of data for a measurement to be recorded.

use std::time::Duration;

/// Thresholds of the calculations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// A gap between two tokens longer than this is a stall.
    pub stall: Duration,
    /// Minimum output tokens for a decode rate to be recorded.
    pub min_rate_tokens: u64,
    /// Minimum time between first and last token for a decode rate to be recorded.
    pub min_rate_span: Duration,
}

impl Thresholds {
    /// (n - n_first) / (t_last - t_first), or `None` below the thresholds.
    pub(super) fn rate(
        &self,
        tokens: u64,
        first_tokens: u64,
        first: Option<Duration>,
        last: Option<Duration>,
    ) -> Option<f64> {
        let span = last?.checked_sub(first?)?;
        let after = tokens.checked_sub(first_tokens).filter(|n| *n > 0)?;
        let enough = tokens >= self.min_rate_tokens && span >= self.min_rate_span && !span.is_zero();
        enough.then(|| after as f64 / span.as_secs_f64())
    }
}
