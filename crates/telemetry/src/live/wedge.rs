//! State of the engine behind a listener: whether the server accepts connections, and whether the engine makes
//! progress. Progress is detected from tokens on the wire and from the engine's own count of iterations.
//!
//! See `docs/concepts/frozen-engine.md` for the rules and the reasons.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokometer_engine::scrape::Stillness;
use tokometer_metrics::closed_enum;
use tokometer_observe::measure::cadence;
use tokometer_settings as form;

use crate::live::requests::{Doing, Open};

closed_enum! {
    /// Rule that determines the maximum silence of an engine.
    pub enum Rule {
        /// The number of decoding streams is at least the number of pending non-streamed responses: further tokens are
        /// expected.
        Decode = "decode",
        /// No stream decodes: first tokens are expected.
        Prefill = "prefill",
        /// More non-streamed responses are pending than streams are decoding: progress is visible only when a response
        /// ends.
        Whole = "whole",
    }
}

closed_enum! {
    /// State of an engine.
    pub enum State {
        /// The server accepts no connections, and no request has made progress since connects began to fail.
        Unreachable = "unreachable",
        /// No pending requests.
        Idle = "idle",
        /// Requests are pending, and the silence is within the bound.
        Working = "working",
        /// Requests are pending, and the silence exceeds the bound.
        Wedged = "wedged",
    }
}

impl State {
    /// False if the engine is wedged or unreachable.
    pub fn is_healthy(self) -> bool {
        matches!(self, State::Idle | State::Working)
    }
}

/// Whether a server accepts connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// The server was not tested, or cannot be tested.
    #[default]
    Unknown,
    /// The server accepts connections.
    Accepts,
    /// Connects have failed for this long.
    Fails(Duration),
}

/// Evidence about an engine from sources other than the traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Whether the server accepts connections.
    pub reach: Reach,
    /// Time without an increase in the engine's own count of iterations while the engine reported running requests.
    pub still: Stillness,
}

/// State of one listener's engine, and the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// State of the engine.
    pub state: State,
    /// Rule that applied; `None` without pending requests.
    pub rule: Option<Rule>,
    /// Time since the engine's last progress; zero without pending requests.
    pub silent: Duration,
    /// Maximum allowed silence; zero without pending requests.
    pub bound: Duration,
    /// The wedged data-parallel rank, if other ranks are not wedged. `silent` is then the longest wait of a request.
    pub rank: Option<u16>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Streams with tokens.
    pub decoding: u64,
    /// Streams without a token yet.
    pub prefilling: u64,
    /// Pending non-streamed responses.
    pub whole: u64,
    /// Requests blocked on the client, which are no evidence about the engine.
    pub client_blocked: u64,
    /// Evidence from sources other than the traffic.
    pub signs: Signs,
}

/// [`Bounds::decode`] is divided by this if the engine's own count of iterations confirms the silence.
const CONFIRMED_PART: u32 = 3;

/// The silence is confirmed if the count of iterations is unchanged for at least the bound divided by this. The count
/// is known only from scrapes, which cover only part of the silence.
const EVIDENCE_DELAY: u32 = 2;

/// Maximum time that a long prompt adds to the bound.
const PREFILL_MORE: Duration = Duration::from_secs(480);

/// Slowest plausible prefill, prompt tokens per second.
const PREFILL_TOKENS_PER_SECOND: f64 = 200.0;

/// Bytes of the request body per prompt token.
const BYTES_PER_TOKEN: f64 = 4.0;

/// Slowest plausible decoding of a non-streamed response, tokens per second.
const WHOLE_TOKENS_PER_SECOND: f64 = 10.0;

/// Assumed maximum tokens of a non-streamed response, unless the engine certainly applies a limit that the request sets.
pub(super) const WHOLE_TOKENS: u64 = 16_384;

/// Maximum tokens of a non-streamed response, whatever the request sets. Clients often set `max_tokens` to millions, and
/// a frozen engine must be detected nevertheless.
const MAX_WHOLE_TOKENS: u32 = 131_072;

/// Maximum silence of an engine with pending requests. The rules are in `docs/concepts/frozen-engine.md`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Bounds {
    /// Maximum time without a token while streams decode. The expected prefill time of the longest waiting prompt is
    /// added. Must exceed the longest silence of a healthy stream. A healthy stream can be silent while the engine
    /// buffers a tool call until it is fully parsed. A third of this time applies while the engine's own metrics show
    /// running requests but no iterations.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1s", "24h"]))]
    pub decode: Duration,
    /// Maximum time without a token while no stream decodes. The expected prefill time of the longest waiting prompt is
    /// added. Must exceed the model's load time if the first request loads the model (Ollama).
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1s", "24h"]))]
    pub prefill: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { decode: Duration::from_secs(60), prefill: Duration::from_secs(120) }
    }
}

/// Time that a prompt of `bytes` adds before its first token.
fn of_prompt(bytes: u64) -> Duration {
    let seconds = bytes as f64 / BYTES_PER_TOKEN / PREFILL_TOKENS_PER_SECOND;
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(PREFILL_MORE)
}

/// Time allowed for the tokens of a non-streamed response.
fn of_whole(allowed_tokens: u32) -> Duration {
    Duration::from_secs_f64(f64::from(allowed_tokens.min(MAX_WHOLE_TOKENS)) / WHOLE_TOKENS_PER_SECOND)
}

/// Evidence about an engine from the requests in flight of all its listeners.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    in_flight: u64,
    decoding: u64,
    prefilling: u64,
    whole: u64,
    client_blocked: u64,
    /// Time since the last progress of any request.
    progressed: Option<Duration>,
    /// Longest current wait of a stream for its next token.
    waited: Duration,
    /// Longest current wait of a stream that is longer than the stream's cadence explains.
    stalled: Duration,
    /// Longest current wait for a first token.
    waited_first: Duration,
    /// Longest current wait for a non-streamed response.
    waited_whole: Duration,
    /// Shortest usual gap of a stream.
    usual_gap: Option<Duration>,
    /// Time allowed for the longest pending prompt.
    prompt: Duration,
    /// Time allowed for the longest non-streamed response.
    response: Duration,
}

impl Evidence {
    pub(super) fn add(&mut self, open: &Open) {
        self.in_flight += 1;
        self.progressed = self.progressed.into_iter().chain(open.progressed).min();
        let prompt = of_prompt(open.request_bytes);
        let waited = open.waited.unwrap_or_default();
        match open.doing {
            Doing::Decode => {
                self.decoding += 1;
                self.waited = self.waited.max(waited);
                if waited > cadence::explained(open.usual_gap.unwrap_or_default()) {
                    self.stalled = self.stalled.max(waited);
                }
                self.usual_gap = self.usual_gap.into_iter().chain(open.usual_gap).min();
            }
            Doing::Prefill => {
                self.prefilling += 1;
                self.waited_first = self.waited_first.max(waited);
                self.prompt = self.prompt.max(prompt);
            }
            Doing::Whole => {
                self.whole += 1;
                self.waited_whole = self.waited_whole.max(waited);
                self.prompt = self.prompt.max(prompt);
                let tokens = if open.route.generates() { of_whole(open.allowed_tokens) } else { Duration::ZERO };
                self.response = self.response.max(prompt.saturating_add(tokens));
            }
            Doing::Blocked => self.client_blocked += 1,
            Doing::Requesting | Doing::Ending | Doing::Session => {}
        }
    }

    /// The verdict on the engine. `silent` is the time since the start of the pending period, or since the last
    /// progress of a finished request.
    pub(super) fn verdict(self, silent: Duration, signs: Signs, bounds: &Bounds) -> Verdict {
        let Evidence { in_flight, decoding, prefilling, whole, client_blocked, .. } = self;
        let silent = self.progressed.map_or(silent, |progressed| progressed.min(silent));
        let rule = if decoding > 0 && decoding >= whole {
            Some(Rule::Decode)
        } else if whole > 0 {
            Some(Rule::Whole)
        } else {
            (prefilling > 0).then_some(Rule::Prefill)
        };
        let (silent, bound) = match rule {
            None => (Duration::ZERO, Duration::ZERO),
            // A stream that has just resumed after backpressure may have waited for less time than the engine has been
            // silent.
            Some(Rule::Decode) => {
                let bound = between_tokens(bounds, signs).max(cadence::explained(self.usual_gap.unwrap_or_default()));
                (silent.min(self.waited), bound.saturating_add(self.prompt))
            }
            Some(Rule::Prefill) => (silent, bounds.prefill.saturating_add(self.prompt)),
            Some(Rule::Whole) => (silent, bounds.prefill.saturating_add(self.prompt.max(self.response))),
        };
        let state = match rule {
            // A server that is shutting down refuses connections, but is still reachable while its last streams make
            // progress.
            _ if matches!(signs.reach, Reach::Fails(time) if self.progressed.is_none_or(|then| then >= time)) => {
                State::Unreachable
            }
            None => State::Idle,
            Some(_) if silent > bound => State::Wedged,
            Some(_) => State::Working,
        };
        let whole_engine = Verdict {
            state,
            rule,
            silent,
            bound,
            rank: None,
            in_flight,
            decoding,
            prefilling,
            whole,
            client_blocked,
            signs,
        };
        if state == State::Working { self.of_rank(whole_engine, bounds).unwrap_or(whole_engine) } else { whole_engine }
    }

    /// The verdict if a data-parallel rank of a working engine is wedged. This is the case if the rank has made no
    /// iteration for half of a bound, and a request has waited for longer than that bound. `None` if no rank is wedged.
    fn of_rank(&self, verdict: Verdict, bounds: &Bounds) -> Option<Verdict> {
        let (rank, still) = verdict.signs.still.rank?;
        let prefill = bounds.prefill.saturating_add(self.prompt);
        let rules = [
            (Rule::Decode, self.stalled, (bounds.decode / CONFIRMED_PART).saturating_add(self.prompt)),
            (Rule::Prefill, self.waited_first, prefill),
            (Rule::Whole, self.waited_whole, prefill.max(bounds.prefill.saturating_add(self.response))),
        ];
        let (rule, silent, bound) =
            rules.into_iter().find(|(_, waited, bound)| waited > bound && still >= *bound / EVIDENCE_DELAY)?;
        Some(Verdict { state: State::Wedged, rule: Some(rule), silent, bound, rank: Some(rank), ..verdict })
    }
}

/// Maximum time between two tokens, shorter if the engine's own metrics confirm the silence.
fn between_tokens(bounds: &Bounds, signs: Signs) -> Duration {
    let confirmed = bounds.decode / CONFIRMED_PART;
    if signs.still.engine >= Some(confirmed / EVIDENCE_DELAY) { confirmed } else { bounds.decode }
}
