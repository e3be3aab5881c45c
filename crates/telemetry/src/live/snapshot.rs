//! What the live page and `tokometer top` show, as one value: `GET /live/snapshot`, and each event of `GET /live/events`.
//!
//! Its JSON is an interface: `docs/LIVE.md` tells it in words. Numbers and names alone; what is not known is `null`. Times end
//! in their unit. Fields may be added; none changes its meaning.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::Serialize;

/// Most streams that are listed; the oldest are.
pub const MOST_STREAMS: usize = 2000;

/// Most exchanges that are told as slow.
pub const MOST_SLOW: usize = 5;

/// Everything of one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the program.
    pub version: String,
    /// When it was made, milliseconds since 1970.
    pub made_unix_ms: u64,
    /// Seconds since the program started.
    pub uptime_seconds: f64,
    /// A drain has begun: no new connections are taken.
    pub draining: bool,
    /// The listen -> upstream pairs. Streams name them by their place here.
    pub pairs: Vec<Pair>,
    /// The models that streams name by their place here.
    pub models: Vec<String>,
    /// What is in flight.
    pub in_flight: InFlight,
    /// What came in the last seconds.
    pub rates: Rates,
    /// Time from the last byte of a request to the first token of its streamed answer, seconds, of those that ended lately.
    pub ttft_seconds: Distribution,
    /// Tokens per second of one stream between its first and its last token, of those that ended lately.
    pub decode_tokens_per_second: Distribution,
    /// The objectives.
    pub objectives: Vec<Objective>,
    /// The slowest exchanges that ended lately, the slowest first; at most [`MOST_SLOW`].
    pub slowest: Vec<Slow>,
    /// All since the program started.
    pub since_start: SinceStart,
}

/// A listen -> upstream pair and the engine behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Its name in the configuration.
    pub name: String,
    /// What the engine was last recognised as (`vllm`, `sglang`, ...).
    pub engine: Option<String>,
    /// What the engine is found to be: `idle`, `working` or `wedged` (docs/WEDGE.md).
    pub state: String,
    /// For how long it has made no token while it owed some; `None` while it owes none.
    pub silent_seconds: Option<f64>,
    /// For how long it may be silent; `None` while it owes nothing.
    pub bound_seconds: Option<f64>,
    /// What its own metrics say at this moment; `None` when they are not read, or could not be.
    pub own: Option<Engine>,
}

/// The engine's own metrics. What it does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Engine {
    /// Seconds since its page was read.
    pub age_seconds: Option<f64>,
    /// Requests that it works on.
    pub running: Option<f64>,
    /// Requests that wait in its queue.
    pub waiting: Option<f64>,
    /// Share of the key-value cache in use, 0 to 1.
    pub kv_usage: Option<f64>,
    /// Share of lookups that the prefix cache answered, 0 to 1.
    pub cache_ratio: Option<f64>,
    /// Requests that lost their place to others, since its page was first read.
    pub preemptions: Option<f64>,
    /// Mean wait in its queue, seconds, of requests that lately left it.
    pub queue_seconds: Option<f64>,
}

/// What is in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// Exchanges in flight that are watched.
    pub exchanges: u64,
    /// Of them, those without a token yet.
    pub waiting: u64,
    /// Of them, those with some.
    pub streaming: u64,
    /// Of all, those whose clients take no bytes.
    pub held_up: u64,
    /// Of those with tokens, those whose next one is waited for longer than the stall threshold.
    pub stalled: u64,
    /// Age of the oldest.
    pub oldest_seconds: Option<f64>,
    /// Longest that one without a token has waited for it.
    pub longest_wait_seconds: Option<f64>,
    /// Exchanges that are not in `streams` because there are too many.
    pub left_out: u64,
    /// At most [`MOST_STREAMS`] of them, the oldest first.
    pub streams: Vec<Stream>,
}

/// One exchange in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stream {
    /// The number of its connection, a dash, and its number on it: the same as long as it lasts, and no other's.
    pub id: String,
    /// Place in [`Snapshot::pairs`].
    pub pair: usize,
    /// What configuration calls the route.
    pub route: Cow<'static, str>,
    /// Place in [`Snapshot::models`]; `None` when the request named no model.
    pub model: Option<usize>,
    /// What it is doing. Waiting: `requesting` (the request is not complete), `prefill`, `whole` (the answer comes in one piece).
    /// With tokens: `decode`. Either: `held_up` (its client takes no bytes), `ending` (refused, or its end mark has come),
    /// `session` (a conversation, in which the engine may be silent).
    pub doing: Cow<'static, str>,
    /// Milliseconds since the first byte of the request.
    pub age_ms: u64,
    /// For how many milliseconds its next token has been waited for; `None` while none is.
    pub waited_ms: Option<u64>,
    /// Milliseconds from the last byte of the request to the first token; `None` before it.
    pub ttft_ms: Option<u64>,
    /// Tokens so far, a lower bound.
    pub tokens: u64,
    /// `max_tokens` of the request.
    pub max_tokens: Option<u64>,
    /// Bytes of the request body: how long its prompt is, roughly.
    pub request_bytes: u64,
    /// Tokens per second of the last three seconds; `None` before the first token and just after it. Of a stream that was not
    /// looked at before, over its life since then. A lower bound, as `tokens` is: an event may hold several.
    pub tokens_per_second: Option<f64>,
}

/// What came in the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Output tokens per second of all streams together, over the last three seconds.
    pub tokens_per_second: f64,
    /// Exchanges that ended, per second, over the last ten seconds.
    pub requests_per_second: f64,
    /// Of them, those that did not end well, by outcome; without those of zero.
    pub failed_per_second: BTreeMap<String, f64>,
    /// One entry per second, the latest last; at most 60. Shorter just after the start.
    pub history: Vec<Second>,
}

/// What came in one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// How long it was: 1, and more where the machine had no time to look.
    pub seconds: f64,
    /// Output tokens.
    pub tokens: u64,
    /// Exchanges that ended well.
    pub ok: u64,
    /// Exchanges that ended because their clients went away.
    pub aborted: u64,
    /// Exchanges that ended in another way.
    pub failed: u64,
}

/// A distribution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Over how many seconds the exchanges ended: about 60, less just after the start.
    pub window_seconds: f64,
    /// Values.
    pub count: u64,
    /// Of them, lower bounds: the engine told no exact count of tokens.
    pub at_least: u64,
    /// The value under which a tenth lies, within the width of its bucket; `None` without values. Likewise the others.
    pub p10: Option<f64>,
    /// Half.
    pub p50: Option<f64>,
    /// Nine tenths.
    pub p90: Option<f64>,
    /// 99 of a hundred.
    pub p99: Option<f64>,
    /// Every bucket that is not empty, the lowest first: lower bound, upper bound, values in it. A bucket is a quarter of an
    /// octave wide (upper = lower * 2^(1/4)); the first begins at 0, the last has no upper bound (`None`).
    pub buckets: Vec<(f64, Option<f64>, u64)>,
}

/// An objective, over all its models.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Name in the configuration.
    pub name: String,
    /// `availability`, `ttft`, `decode_rate`, `stall` or `goodput`.
    pub kind: String,
    /// Share of good exchanges that is aimed at, 0 to 1.
    pub target: f64,
    /// Its thresholds, each by the name that has its unit (`ttft_seconds`, ...).
    pub thresholds: BTreeMap<String, f64>,
    /// Good exchanges since the start.
    pub good: u64,
    /// Bad exchanges since the start.
    pub bad: u64,
    /// The last five minutes.
    pub recent: Recent,
    /// What the last five minutes say. `idle`: nothing was judged. `ok`: no more were bad than the target allows. `over`: more
    /// were. `burning`: so many that the fast alert of `tokometer rules` fires if it lasts.
    pub state: String,
}

/// What was judged in the last five minutes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recent {
    /// Over how many seconds: about 300, less just after the start.
    pub window_seconds: f64,
    /// Good exchanges.
    pub good: u64,
    /// Bad exchanges.
    pub bad: u64,
    /// Bad exchanges by reason, without those of zero.
    pub reasons: BTreeMap<String, u64>,
    /// The share of bad exchanges by the share that the target allows: above 1 the budget is spent too fast. `None` when
    /// nothing was judged.
    pub burn_rate: Option<f64>,
}

/// A slow exchange that has ended. Times are milliseconds from the last byte of the request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// As [`Stream::id`].
    pub id: String,
    /// Place in [`Snapshot::pairs`].
    pub pair: usize,
    /// What configuration calls the route.
    pub route: Cow<'static, str>,
    /// The model: what the answer named, else what the request did.
    pub model: Option<String>,
    /// How it ended (docs/METRICS.md, label `outcome`).
    pub outcome: String,
    /// Seconds since it ended.
    pub ended_seconds_ago: f64,
    /// The longest of what its client waited for: the first token, or a token in mid-stream. By this it is the slowest.
    pub longest_wait_ms: f64,
    /// Time in the server's queue, as far as anything tells it.
    pub queue_ms: Option<f64>,
    /// Response head.
    pub headers_ms: Option<f64>,
    /// First token.
    pub ttft_ms: Option<f64>,
    /// Last token.
    pub last_token_ms: Option<f64>,
    /// The end.
    pub duration_ms: f64,
    /// The longest gap between two tokens.
    pub longest_gap_ms: Option<f64>,
    /// Time during which the client did not take bytes.
    pub blocked_ms: f64,
    /// Tokens of the prompt.
    pub input_tokens: Option<u64>,
    /// Tokens of the answer.
    pub output_tokens: Option<u64>,
    /// Where that count comes from (docs/METRICS.md, label `source`).
    pub output_source: Option<String>,
    /// Tokens per second between the first and the last token; a lower bound where the count is one.
    pub decode_tokens_per_second: Option<f64>,
    /// Token-bearing events that a point of the time line stands for.
    pub events_per_point: Option<u32>,
    /// The time line: when the last event of a point came, its tokens, and the longest gap in it (milliseconds). Empty where no
    /// token was seen to come.
    pub points: Vec<(f64, u64, f64)>,
}

/// All since the program started, as /metrics counts it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SinceStart {
    /// Output tokens: the sum of `tokometer_live_tokens_total`.
    pub tokens: u64,
    /// Exchanges that ended, by outcome, without those of zero: sums of `tokometer_exchanges_total`, without the operation
    /// `other`.
    pub exchanges: BTreeMap<String, u64>,
    /// Exchanges that were not watched in flight because there were too many. They are counted all the same.
    pub unwatched: u64,
}
