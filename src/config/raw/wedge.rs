//! The blocks about requests in flight and wedge detection: `live`, `wedge`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Requests in flight and recently ended requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Live {
    /// Maximum number of requests tracked while in flight. Further ones are still measured, but `/exchanges` and
    /// `/engine/healthz` do not include them, and `tokometer.in_flight.untracked` counts them.
    #[schemars(range(min = 1, max = 10000000))]
    pub max_in_flight: u64,
    /// Maximum bytes of memory for ended requests, including their token timelines: about 1,300 bytes per request. The
    /// oldest are removed first. 0: none are kept.
    #[schemars(range(min = 0, max = 1073741824))]
    pub recent_bytes: u64,
    /// Number of slowest requests kept in addition to the latest: this many by time to first token, and this many by
    /// longest gap.
    #[schemars(range(min = 0, max = 1000))]
    pub slowest: u64,
    /// Seconds after which a slow request is no longer kept as one of the slowest.
    #[schemars(range(min = 1, max = 604800))]
    pub slowest_secs: u64,
}

impl Default for Live {
    fn default() -> Live {
        Live { max_in_flight: 65_536, recent_bytes: 4_194_304, slowest: 16, slowest_secs: 3600 }
    }
}

/// When the engine counts as wedged: it has pending requests, and no client has received a token for longer than a
/// healthy engine needs. docs/WEDGE.md describes the rules. Bounds that are too long prolong an outage; bounds that are
/// too short restart healthy engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Wedge {
    /// Maximum seconds without a token while streams decode, plus the time for the longest waiting prompt. Must exceed
    /// the longest silence of a healthy stream: engines hold back tool calls that are parsed as a whole.
    #[schemars(range(min = 1, max = 86400))]
    pub decode_secs: u64,
    /// Maximum seconds without a token while no stream decodes, plus the time for the longest waiting prompt. Must
    /// exceed the model's load time if the first request loads it (Ollama).
    #[schemars(range(min = 1, max = 86400))]
    pub prefill_secs: u64,
    /// Slowest plausible prefill speed, in prompt tokens per second: it determines the time added for a prompt's
    /// length.
    #[schemars(range(min = 1, max = 10000000))]
    pub prefill_tokens_per_second: u64,
    /// Bytes of a request body assumed per prompt token.
    #[schemars(range(min = 1, max = 1000))]
    pub bytes_per_token: u64,
    /// Maximum seconds added for a prompt's length: images and audio make long bodies.
    #[schemars(range(min = 0, max = 86400))]
    pub prefill_more_secs: u64,
    /// Slowest plausible decode rate, in tokens per second: it determines how long a non-streamed response may take
    /// after prefill, because it is not visible before its end.
    #[schemars(range(min = 1, max = 100000))]
    pub whole_tokens_per_second: u64,
    /// Tokens assumed for a non-streamed response whose request has no `max_tokens`.
    #[schemars(range(min = 1, max = 10000000))]
    pub whole_tokens: u64,
}

impl Default for Wedge {
    fn default() -> Wedge {
        Wedge {
            decode_secs: 60,
            prefill_secs: 120,
            prefill_tokens_per_second: 200,
            bytes_per_token: 4,
            prefill_more_secs: 480,
            whole_tokens_per_second: 10,
            whole_tokens: 16_384,
        }
    }
}
