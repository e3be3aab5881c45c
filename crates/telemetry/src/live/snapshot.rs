//! Data of the live page and of `tokometer top`: `GET /live/snapshot`, and each event of `GET /live/events`.
//!
//! The JSON is a public interface, documented in `docs/how-to/live-page.md`. It contains only numbers and names;
//! unknown values are `null`. Field names of times end in the unit. Fields may be added, but the meaning of a field
//! never changes.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::slo::ReadingSpeed;

/// Maximum number of listed streams; the oldest are listed.
pub const MAX_STREAMS: usize = 2000;

/// Maximum number of listed slow requests.
pub const MAX_SLOW: usize = 5;

/// State at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Program version.
    pub version: String,
    /// Creation time, milliseconds since the Unix epoch.
    pub made_unix_ms: u64,
    /// Seconds since the program started.
    pub uptime_seconds: f64,
    /// True while draining: no new connections are accepted.
    pub draining: bool,
    /// The listeners. Streams refer to them by index.
    pub listeners: Vec<Listener>,
    /// Model names. Streams refer to them by index.
    pub models: Vec<String>,
    /// Requests in flight.
    pub in_flight: InFlight,
    /// Rates over the last seconds.
    pub rates: Rates,
    /// Time from the last byte of the request to the first token of a streamed response, seconds; requests finished in
    /// the window.
    pub ttft_seconds: Distribution,
    /// Tokens per second of a stream between its first and last token; requests finished in the window.
    pub decode_tokens_per_second: Distribution,
    /// Decode rates that correspond to human reading speeds, as configured (`slo.reading`).
    #[serde(default)]
    pub reading: ReadingSpeed,
    /// The SLO objectives.
    pub objectives: Vec<Objective>,
    /// The slowest recently finished requests, slowest first; at most [`MAX_SLOW`].
    pub slowest: Vec<Slow>,
    /// Totals since the program started.
    pub since_start: SinceStart,
}

/// A listener and the engine behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// Name in the configuration.
    pub name: String,
    /// Last recognised engine (`vllm`, `sglang`, ...).
    pub engine: Option<String>,
    /// Engine state: `unreachable`, `idle`, `working` or `wedged` (docs/concepts/frozen-engine.md).
    pub state: String,
    /// `open`, `waiting` for the server to accept connections, `address_in_use` (another program holds the listen
    /// address, so that clients bypass tokometer) or `address_unusable`; empty where packets are captured.
    pub listening: String,
    /// Time without a token while requests are pending, seconds; `None` without pending requests.
    pub silent_seconds: Option<f64>,
    /// Maximum allowed silence, seconds; `None` without pending requests.
    pub bound_seconds: Option<f64>,
    /// Values from the engine's own metrics; `None` when they are not scraped, or scraping failed.
    pub own: Option<Engine>,
}

/// The engine's own metrics. Values that the engine does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Seconds since the last scrape.
    pub age_seconds: Option<f64>,
    /// Running requests.
    pub running: Option<f64>,
    /// Requests waiting in the engine's queue.
    pub waiting: Option<f64>,
    /// KV cache usage, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Prefix cache hit ratio, 0 to 1.
    pub cache_ratio: Option<f64>,
    /// Preempted requests since the first scrape.
    pub preemptions: Option<f64>,
    /// Mean queue time of requests that recently left the queue, seconds.
    pub queue_seconds: Option<f64>,
}

/// Requests in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// Watched requests in flight.
    pub requests: u64,
    /// Streams without a token yet.
    pub waiting: u64,
    /// Requests whose response is not streamed.
    pub unstreamed: u64,
    /// Requests with at least one token.
    pub streaming: u64,
    /// Requests blocked on the client (backpressure).
    pub blocked: u64,
    /// Decoding streams that have waited for their next token longer than the stall threshold and longer than their
    /// cadence explains.
    pub stalled: u64,
    /// Age of the oldest request, seconds.
    pub oldest_seconds: Option<f64>,
    /// Longest wait for a first token, seconds.
    pub longest_wait_seconds: Option<f64>,
    /// Requests missing from `streams` because there are too many.
    pub left_out: u64,
    /// The oldest requests, oldest first; at most [`MAX_STREAMS`].
    pub streams: Vec<Stream>,
}

/// A request in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// Connection number, a dash, and request number on that connection: stable and unique.
    pub id: String,
    /// Index in [`Snapshot::listeners`].
    pub listener: usize,
    /// Route name as in the configuration.
    pub route: Cow<'static, str>,
    /// Index in [`Snapshot::models`]; `None` when the request named no model.
    pub model: Option<usize>,
    /// State. Without tokens: `requesting` (the request is incomplete), `prefill`, `whole` (non-streamed response).
    /// With tokens: `decode`. With or without tokens: `blocked` (blocked on the client), `ending` (rejected, or the end
    /// marker has arrived), `session` (a conversation in which the engine may be silent).
    pub doing: Cow<'static, str>,
    /// Milliseconds since the first byte of the request.
    pub age_ms: u64,
    /// Milliseconds that the request has waited for the next token; `None` if no token is expected.
    pub waited_ms: Option<u64>,
    /// Milliseconds from the last byte of the request to the first token; `None` before the first token.
    pub ttft_ms: Option<u64>,
    /// Tokens so far, a lower bound.
    pub tokens: u64,
    /// `max_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// Size of the request body in bytes, a rough measure of the prompt length.
    pub request_bytes: u64,
    /// Tokens per second over the last three seconds; `None` before and just after the first token. In a stream's first
    /// snapshot: over the time since the first token. A lower bound, like `tokens`: an event may contain several
    /// tokens.
    pub tokens_per_second: Option<f64>,
}

/// Rates over the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Output tokens per second of all streams together, over the last three seconds.
    pub tokens_per_second: f64,
    /// Requests ended per second, over the last ten seconds.
    pub requests_per_second: f64,
    /// Failed requests per second by outcome, without zero rates.
    pub failed_per_second: BTreeMap<String, f64>,
    /// One entry per second, latest last; at most 60, fewer just after the start.
    pub history: Vec<Second>,
}

/// Counts of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Length in seconds: 1, or more on an overloaded machine.
    pub seconds: f64,
    /// Output tokens.
    pub tokens: u64,
    /// Successful requests.
    pub ok: u64,
    /// Requests cancelled by their clients.
    pub aborted: u64,
    /// Requests that failed in another way.
    pub failed: u64,
}

/// A distribution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Window length in seconds: about 60, less just after the start.
    pub window_seconds: f64,
    /// Number of values.
    pub count: u64,
    /// Values that are lower bounds, because the engine reported no exact token count.
    pub at_least: u64,
    /// 10th percentile. All percentiles are accurate to the bucket width, and `None` without values.
    pub p10: Option<f64>,
    /// 50th percentile.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Non-empty buckets, lowest first: lower bound, upper bound, count. A bucket is a quarter of an octave wide (upper
    /// = lower * 2^(1/4)); the first begins at 0, the last has no upper bound (`None`).
    pub buckets: Vec<(f64, Option<f64>, u64)>,
}

/// An SLO objective, over all its models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Name in the configuration.
    pub name: String,
    /// `availability`, `ttft`, `decode_rate`, `stall` or `goodput`.
    pub kind: String,
    /// Target share of good requests, 0 to 1.
    pub target: f64,
    /// Thresholds by name; each name includes the unit (`ttft_seconds`, ...).
    pub thresholds: BTreeMap<String, f64>,
    /// Good requests since the start.
    pub good: u64,
    /// Bad requests since the start.
    pub bad: u64,
    /// The last five minutes.
    pub recent: Recent,
    /// Derived from the last five minutes. `idle`: no request was evaluated. `ok`: the bad requests are within the
    /// target. `over`: more requests were bad than the target allows. `burning`: the fast burn alert of `tokometer
    /// rules` fires if this state persists.
    pub state: String,
}

/// Requests evaluated in the last five minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// Window length in seconds: about 300, less just after the start.
    pub window_seconds: f64,
    /// Good requests.
    pub good: u64,
    /// Bad requests.
    pub bad: u64,
    /// Bad requests by reason, without zero counts.
    pub reasons: BTreeMap<String, u64>,
    /// Share of bad requests divided by the share that the target allows; above 1 the error budget is spent too fast.
    /// `None` when no request was evaluated.
    pub burn_rate: Option<f64>,
}

/// A slow finished request. Times are milliseconds from the last byte of the request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// Same format as [`Stream::id`].
    pub id: String,
    /// Index in [`Snapshot::listeners`].
    pub listener: usize,
    /// Route name as in the configuration.
    pub route: Cow<'static, str>,
    /// Model name in the response, otherwise in the request.
    pub model: Option<String>,
    /// Outcome (docs/reference/metrics.md, label `outcome`).
    pub outcome: String,
    /// Seconds since the request ended.
    pub ended_seconds_ago: f64,
    /// Longest wait for the first or a later token. The list of slow requests is sorted by this value.
    pub longest_wait_ms: f64,
    /// Queue time at the server, if known.
    pub queue_ms: Option<f64>,
    /// Time to response headers.
    pub headers_ms: Option<f64>,
    /// Time to first token.
    pub ttft_ms: Option<f64>,
    /// Time to last token.
    pub last_token_ms: Option<f64>,
    /// Time to the end.
    pub duration_ms: f64,
    /// Longest gap between two tokens.
    pub longest_gap_ms: Option<f64>,
    /// Time blocked on the client (backpressure).
    pub blocked_ms: f64,
    /// Prompt tokens.
    pub input_tokens: Option<u64>,
    /// Response tokens.
    pub output_tokens: Option<u64>,
    /// Source of the output count (docs/reference/metrics.md, label `source`).
    pub output_source: Option<String>,
    /// Tokens per second between the first and the last token; a lower bound if the token count is a lower bound.
    pub decode_tokens_per_second: Option<f64>,
    /// Token-bearing events per point of the timeline.
    pub events_per_point: Option<u32>,
    /// Timeline points: arrival of the point's last event, its tokens, and the longest gap within it (milliseconds).
    /// Empty when no token was observed.
    pub points: Vec<(f64, u64, f64)>,
}

/// Totals since the program started, as counted in /metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinceStart {
    /// Output tokens: the sum of `tokometer_live_tokens_total`.
    pub tokens: u64,
    /// Ended requests by outcome, without zero counts: sums of `tokometer_requests_total`, without the operation
    /// `other`.
    pub requests: BTreeMap<String, u64>,
    /// Requests not watched in flight because there were too many. They are still counted.
    pub unwatched: u64,
}
