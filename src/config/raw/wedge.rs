//! The blocks about what is going on: `live`, `wedge`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The exchanges in flight, and the latest that ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Live {
    /// Most exchanges that are watched while they are in flight; further ones are measured all the same, are not seen by
    /// `/exchanges` and `/engine/healthz`, and `tokometer.in_flight.untracked` counts them.
    #[schemars(range(min = 1, max = 10000000))]
    pub max_in_flight: u64,
    /// Most bytes that ended exchanges take, time lines of their tokens included: some 1,300 each. The oldest go first.
    /// 0: none are kept.
    #[schemars(range(min = 0, max = 1073741824))]
    pub recent_bytes: u64,
    /// How many of the slowest exchanges are kept beside the latest: so many by their time to the first token, and so
    /// many by their longest gap.
    #[schemars(range(min = 0, max = 1000))]
    pub slowest: u64,
    /// Seconds after which a slow exchange is no longer kept for its slowness.
    #[schemars(range(min = 1, max = 604800))]
    pub slowest_secs: u64,
}

impl Default for Live {
    fn default() -> Live {
        Live { max_in_flight: 65_536, recent_bytes: 4_194_304, slowest: 16, slowest_secs: 3600 }
    }
}

/// When the engine counts as wedged: it owes tokens, and none came to anybody for longer than a healthy one takes.
/// docs/WEDGE.md tells the rules. Too long a bound costs time in an outage, too short a one restarts healthy engines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Wedge {
    /// Seconds without a token while streams decode, beside what the longest prompt that waits adds. Longer than the
    /// longest silence of a healthy stream: engines hold tool calls back that are parsed as a whole.
    #[schemars(range(min = 1, max = 86400))]
    pub decode_secs: u64,
    /// Seconds without a token while none decodes, beside what the longest prompt adds. Longer than a model may take to
    /// be loaded where the first request does that (Ollama).
    #[schemars(range(min = 1, max = 86400))]
    pub prefill_secs: u64,
    /// The slowest prefill that is believed, in prompt tokens per second: what the length of a prompt adds.
    #[schemars(range(min = 1, max = 10000000))]
    pub prefill_tokens_per_second: u64,
    /// Bytes of a request body that are taken for one prompt token.
    #[schemars(range(min = 1, max = 1000))]
    pub bytes_per_token: u64,
    /// Most seconds that the length of a prompt adds: images and sound make long bodies.
    #[schemars(range(min = 0, max = 86400))]
    pub prefill_more_secs: u64,
    /// The slowest decoding that is believed, in tokens per second: how long an answer in one piece may take beside its
    /// prefill, as nothing of it is seen before its end.
    #[schemars(range(min = 1, max = 100000))]
    pub whole_tokens_per_second: u64,
    /// Tokens of an answer in one piece whose request names no `max_tokens`.
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
