//! Settings of the requests in flight, of wedge detection and of the finished requests that are kept.

use std::time::Duration;

/// All settings of this module.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Maximum number of requests watched at a time. Further requests are measured but not shown in flight.
    pub max_in_flight: usize,
    /// Maximum memory of finished requests, bytes. 0 keeps none.
    pub recent_bytes: usize,
    /// Number of slowest requests to keep per measure, regardless of newer requests.
    pub slowest: usize,
    /// Maximum age of the slowest requests.
    pub slowest_age: Duration,
    /// A stream is stalled when its next token takes longer than this.
    pub stall: Duration,
    /// When the engine counts as wedged.
    pub bounds: Bounds,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_in_flight: 65_536,
            recent_bytes: 4 * 1024 * 1024,
            slowest: 16,
            slowest_age: Duration::from_secs(3600),
            stall: Duration::from_secs(1),
            bounds: Bounds::default(),
        }
    }
}

/// How long an engine may be silent while it has pending requests. The rules are in `docs/WEDGE.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Between two tokens of decoding streams.
    pub decode: Duration,
    /// Until the first token of a short prompt.
    pub prefill: Duration,
    /// Maximum that the length of a prompt adds.
    pub prefill_more: Duration,
    /// Slowest plausible prefill, prompt tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Bytes of the request body per prompt token.
    pub bytes_per_token: f64,
    /// Slowest plausible decoding of a non-streamed response, tokens per second.
    pub whole_tokens_per_second: f64,
    /// Assumed tokens of a non-streamed response when the request has no `max_tokens`.
    pub whole_tokens: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            decode: Duration::from_secs(60),
            prefill: Duration::from_secs(120),
            prefill_more: Duration::from_secs(480),
            prefill_tokens_per_second: 200.0,
            bytes_per_token: 4.0,
            whole_tokens_per_second: 10.0,
            whole_tokens: 16_384,
        }
    }
}

impl Bounds {
    /// Time that a prompt of `bytes` adds until its first token.
    pub(super) fn of_prompt(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 / self.bytes_per_token / self.prefill_tokens_per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(self.prefill_more)
    }

    /// Time allowed for the tokens of a non-streamed response.
    pub(super) fn of_whole(&self, max_tokens: Option<u64>) -> Duration {
        let seconds = max_tokens.unwrap_or(self.whole_tokens) as f64 / self.whole_tokens_per_second;
        // Clients set `max_tokens` to millions habitually; limit it to a day.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(Duration::from_secs(24 * 3600))
    }
}
