//! What a person may set about exchanges in flight, about when the engine counts as wedged, and about what is kept.

use std::time::Duration;

/// Everything of this module.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Most exchanges that are watched at a time; further ones are measured all the same, but are not seen in flight.
    pub max_in_flight: usize,
    /// Most bytes that ended exchanges take. 0 keeps none.
    pub recent_bytes: usize,
    /// How many of the slowest exchanges are kept, by each measure, however many came after them.
    pub slowest: usize,
    /// After this time a slow exchange is no longer kept for its slowness.
    pub slowest_age: Duration,
    /// A stream whose next token is waited for longer than this is stalled.
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

/// How long an engine may be silent while it owes tokens. `docs/WEDGE.md` tells the rules that use them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Between two tokens of streams that decode.
    pub decode: Duration,
    /// Until the first token of a short prompt.
    pub prefill: Duration,
    /// Most that the length of a prompt adds.
    pub prefill_more: Duration,
    /// The slowest prefill that is believed, prompt tokens per second.
    pub prefill_tokens_per_second: f64,
    /// Bytes of a request body that are taken for one prompt token.
    pub bytes_per_token: f64,
    /// The slowest decoding that is believed of an answer that comes in one piece, tokens per second.
    pub whole_tokens_per_second: f64,
    /// Tokens of such an answer whose request names no `max_tokens`.
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
    /// What a prompt of so many bytes adds to the time until its first token.
    pub(super) fn of_prompt(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 / self.bytes_per_token / self.prefill_tokens_per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(self.prefill_more)
    }

    /// How long the tokens of an answer that comes in one piece may take.
    pub(super) fn of_whole(&self, max_tokens: Option<u64>) -> Duration {
        let seconds = max_tokens.unwrap_or(self.whole_tokens) as f64 / self.whole_tokens_per_second;
        // A `max_tokens` of millions is a habit of clients, not a promise of the engine.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(Duration::from_secs(24 * 3600))
    }
}
