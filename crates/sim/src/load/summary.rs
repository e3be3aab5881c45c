//! Results of a load run.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};

/// How a request ended, from the client's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// A complete response with a 2xx status; for a stream, including its `[DONE]`.
    Complete,
    /// A complete stream without `[DONE]`.
    NoDone,
    /// A complete stream without a token.
    NoTokens,
    /// A response with a status other than 2xx.
    ErrorStatus,
    /// An error event in the stream.
    ErrorEvent,
    /// The connection closed before the end of the response.
    Truncated,
    /// The connection was reset.
    Reset,
    /// The connection could not be opened.
    Refused,
    /// The response is not valid HTTP.
    Malformed,
    /// The request exceeded the client's timeout.
    Timeout,
    /// The client aborted the request on purpose.
    Aborted,
    /// The run ended before the request did.
    #[default]
    Unfinished,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name in JSON; `pad` keeps a column's width.
        let name = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        f.pad(name.as_str().unwrap_or_default())
    }
}

/// Summary of a distribution; an empty one has zeros everywhere and is `null` in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Number of measurements.
    pub count: u64,
    /// The arithmetic mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The maximum.
    pub max: f64,
}

impl Percentiles {
    /// Percentiles of a histogram, each value divided by `unit`.
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

/// Serializes an empty distribution as `null`.
fn measured<S: Serializer>(percentiles: &Percentiles, serializer: S) -> Result<S::Ok, S::Error> {
    Some(percentiles).filter(|percentiles| percentiles.count > 0).serialize(serializer)
}

/// Results of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Requests that ended, in any way.
    pub requests: u64,
    /// Requests by how they ended.
    pub ends: BTreeMap<End, u64>,
    /// Requests by response status.
    pub statuses: BTreeMap<u16, u64>,
    /// Output tokens: from usage if the response reports it, otherwise the number of events with text.
    pub tokens: u64,
    /// The part of `tokens` that was reported by usage.
    pub tokens_from_usage: u64,
    /// Events with text, reasoning or a tool call.
    pub token_events: u64,
    /// Bytes of the response bodies.
    pub bytes: u64,
    /// Time from sending the request to the first token, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub time_to_first_token_ms: Percentiles,
    /// Time from sending the request to the response headers, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub time_to_headers_ms: Percentiles,
    /// Gap between two reads of the body that contained tokens, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub inter_token_latency_ms: Percentiles,
    /// Tokens per second of one stream, from its first token to its last.
    #[serde(serialize_with = "measured")]
    pub tokens_per_second: Percentiles,
    /// Time from sending the request to the end of the response, in milliseconds.
    #[serde(serialize_with = "measured")]
    pub duration_ms: Percentiles,
    /// Transit time of timestamped events, in microseconds.
    #[serde(serialize_with = "measured")]
    pub transit_us: Percentiles,
}

impl Summary {
    /// Requests that ended this way.
    pub fn count(&self, end: End) -> u64 {
        self.ends.get(&end).copied().unwrap_or(0)
    }

    /// True if there were requests and none received a complete response.
    pub fn all_failed(&self) -> bool {
        let whole = [End::Complete, End::NoDone, End::NoTokens].iter().map(|end| self.count(*end)).sum::<u64>();
        let broken_off = self.count(End::Aborted) + self.count(End::Unfinished);
        self.requests > 0 && whole + broken_off == 0
    }
}

/// A human-readable table.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wall = Duration::from_secs_f64(self.seconds);
        writeln!(f, "{} requests in {wall:.1?}, {:.2} per second", self.requests, self.requests as f64 / self.seconds)?;
        let reported =
            if self.tokens_from_usage == self.tokens { "" } else { " (lower bound: some counted by events)" };
        writeln!(f, "{} output tokens{reported}, {:.1} per second", self.tokens, self.tokens as f64 / self.seconds)?;
        for (end, count) in &self.ends {
            writeln!(f, "  {end:<14} {count:>8}")?;
        }
        writeln!(f, "{:<24} {:>10} {:>10} {:>10} {:>10} {:>10}", "", "mean", "p50", "p90", "p99", "max")?;
        let rows = [
            ("first token, ms", &self.time_to_first_token_ms),
            ("between tokens, ms", &self.inter_token_latency_ms),
            ("tokens per second", &self.tokens_per_second),
            ("full response, ms", &self.duration_ms),
            ("transit, us", &self.transit_us),
        ];
        for (name, row) in rows.iter().filter(|(_, row)| row.count > 0) {
            let Percentiles { mean, p50, p90, p99, max, .. } = row;
            writeln!(f, "{name:<24} {mean:>10.2} {p50:>10.2} {p90:>10.2} {p99:>10.2} {max:>10.2}")?;
        }
        Ok(())
    }
}
