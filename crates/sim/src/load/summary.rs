//! What the load generator measured.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde::Serializer;

/// How a request ended, as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A whole answer with a 2xx status; a stream with its `[DONE]`.
    Complete,
    /// A whole stream without `[DONE]`.
    NoDone,
    /// A whole stream without a token.
    NoTokens,
    /// An answer with another status.
    ErrorStatus,
    /// An error event in the stream.
    ErrorEvent,
    /// The connection ended before the answer did.
    Truncated,
    /// The connection was reset.
    Reset,
    /// No connection could be made.
    Refused,
    /// What came is no HTTP.
    Malformed,
    /// It took longer than the client waits.
    Timeout,
    /// The client gave it up on purpose.
    Aborted,
    /// The run was over first.
    Unfinished,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Complete => "complete",
            End::NoDone => "no_done",
            End::NoTokens => "no_tokens",
            End::ErrorStatus => "error_status",
            End::ErrorEvent => "error_event",
            End::Truncated => "truncated",
            End::Reset => "reset",
            End::Refused => "refused",
            End::Malformed => "malformed",
            End::Timeout => "timeout",
            End::Aborted => "aborted",
            End::Unfinished => "unfinished",
        })
    }
}

/// The shape of a distribution; 0 everywhere when it is empty, and `null` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90 % are not above.
    pub p90: f64,
    /// 99 % are not above.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Percentiles {
    /// Of a histogram, each value divided by `unit`.
    pub(crate) fn of(histogram: &Histogram<u64>, unit: f64) -> Percentiles {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / unit;
        Percentiles {
            count: histogram.len(),
            mean: histogram.mean() / unit,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: histogram.max() as f64 / unit,
        }
    }
}

/// Nothing measured is nothing told.
fn measured<S: Serializer>(percentiles: &Percentiles, serializer: S) -> Result<S::Ok, S::Error> {
    Some(percentiles).filter(|percentiles| percentiles.count > 0).serialize(serializer)
}

/// What one run measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Requests that ended, whichever way.
    pub requests: u64,
    /// Requests by how they ended.
    pub ends: BTreeMap<End, u64>,
    /// Requests by the status of their answer.
    pub statuses: BTreeMap<u16, u64>,
    /// Output tokens: from usage where an answer told it, else its events with text.
    pub tokens: u64,
    /// How many of `tokens` were told by usage.
    pub tokens_from_usage: u64,
    /// Events with text, reasoning or a tool call.
    pub token_events: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// Time from the request's last byte to the first token, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub time_to_first_token_ms: Percentiles,
    /// Time from the request's last byte to the answer's head, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub time_to_headers_ms: Percentiles,
    /// Gap between two reads that brought tokens, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub inter_token_latency_ms: Percentiles,
    /// Tokens per second of one stream, from its first token to its last.
    #[serde(serialize_with = "measured")]
    pub tokens_per_second: Percentiles,
    /// Time from the request's last byte to the end of the answer, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub duration_ms: Percentiles,
    /// How long stamped events travelled, in microseconds.
    #[serde(serialize_with = "measured")]
    pub transit_us: Percentiles,
}

impl Summary {
    /// Requests that ended this way.
    pub fn count(&self, end: End) -> u64 {
        self.ends.get(&end).copied().unwrap_or(0)
    }

    /// True when there were requests, and none got a whole answer.
    pub fn all_failed(&self) -> bool {
        let whole = [End::Complete, End::NoDone, End::NoTokens].iter().map(|end| self.count(*end)).sum::<u64>();
        let broken_off = self.count(End::Aborted) + self.count(End::Unfinished);
        self.requests > 0 && whole + broken_off == 0
    }

    /// Output tokens per second, over all streams.
    pub fn throughput(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens as f64 / self.seconds } else { 0.0 }
    }
}

/// A table for people.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wall = Duration::from_secs_f64(self.seconds);
        writeln!(f, "{} requests in {wall:.1?}, {:.2} per second", self.requests, self.requests as f64 / self.seconds)?;
        let told = if self.tokens_from_usage == self.tokens { "" } else { " (some counted by events: at least)" };
        writeln!(f, "{} output tokens{told}, {:.1} per second", self.tokens, self.throughput())?;
        for (end, count) in &self.ends {
            writeln!(f, "  {end:<14} {count:>8}")?;
        }
        writeln!(f, "{:<24} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "mean", "p50", "p90", "p99", "max")?;
        let rows = [
            ("first token, ms", &self.time_to_first_token_ms),
            ("between tokens, ms", &self.inter_token_latency_ms),
            ("tokens per second", &self.tokens_per_second),
            ("whole answer, ms", &self.duration_ms),
            ("transit, us", &self.transit_us),
        ];
        for (name, row) in rows.iter().filter(|(_, row)| row.count > 0) {
            let Percentiles { mean, p50, p90, p99, max, .. } = row;
            writeln!(f, "{name:<24} {mean:>10.2} {p50:>10.2} {p90:>10.2} {p99:>10.2} {max:>10.2}")?;
        }
        Ok(())
    }
}
