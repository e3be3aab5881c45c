//! Wedge detection: whether the engine behind a listener still makes progress, based on its tokens on the wire.
//!
//! `docs/WEDGE.md` has the rules and the reasons.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::live::request::Activity;
use crate::live::request::Progress;
use crate::live::request::Request;
use tokometer_observe::closed_enum;
use tokometer_settings as form;

closed_enum! {
    /// Rule that applied to an engine.
    pub enum Rule {
        /// Streams decode, at least as many as there are non-streamed responses: further tokens are expected.
        Decode = "decode",
        /// No stream decodes: first tokens are expected.
        Prefill = "prefill",
        /// Non-streamed responses are pending, which show no progress before their end.
        Whole = "whole",
    }
}

closed_enum! {
    /// State of an engine.
    pub enum State {
        /// No pending requests.
        Idle = "idle",
        /// Pending requests; silent for no longer than the bound.
        Working = "working",
        /// Pending requests; silent for longer than any healthy engine.
        Wedged = "wedged",
    }
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
    /// Requests in flight.
    pub in_flight: u64,
    /// Of them, streams with tokens.
    pub decoding: u64,
    /// Of them, streams without a token yet.
    pub prefilling: u64,
    /// Of them, non-streamed responses.
    pub whole: u64,
    /// Of them, those blocked on the client. They are no evidence about the engine.
    pub client_blocked: u64,
}

/// How long an engine may be silent while it has pending requests. The rules are in `docs/WEDGE.md`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Bounds {
    /// Maximum time without a token while streams decode, plus the time for the longest waiting prompt. Must exceed the
    /// longest silence of a healthy stream: engines hold back tool calls that are parsed as a whole.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1s", "24h"]))]
    pub decode: Duration,
    /// Maximum time without a token while no stream decodes, plus the time for the longest waiting prompt. Must exceed
    /// the model's load time if the first request loads it (Ollama).
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["1s", "24h"]))]
    pub prefill: Duration,
    /// Maximum that the length of a prompt adds.
    #[serde(skip)]
    pub prefill_more: Duration,
    /// Slowest plausible prefill, prompt tokens per second.
    #[serde(skip)]
    pub prefill_tokens_per_second: f64,
    /// Bytes of the request body per prompt token.
    #[serde(skip)]
    pub bytes_per_token: f64,
    /// Slowest plausible decoding of a non-streamed response, tokens per second.
    #[serde(skip)]
    pub whole_tokens_per_second: f64,
    /// Assumed tokens of a non-streamed response when the request has no `max_tokens`.
    #[serde(skip)]
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
    fn of_prompt(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 / self.bytes_per_token / self.prefill_tokens_per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(self.prefill_more)
    }

    /// Time allowed for the tokens of a non-streamed response.
    fn of_whole(&self, max_tokens: Option<u64>) -> Duration {
        let seconds = max_tokens.unwrap_or(self.whole_tokens) as f64 / self.whole_tokens_per_second;
        // Clients set `max_tokens` to millions habitually; limit it to a day.
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(Duration::from_secs(24 * 3600))
    }
}

/// Accumulates the requests of one listener.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    in_flight: u64,
    decoding: u64,
    prefilling: u64,
    whole: u64,
    client_blocked: u64,
    /// Latest progress of any request.
    progressed: u64,
    /// Longest wait of a decoding stream for its next token.
    decode_waited: u64,
    /// Maximum that prompt length adds, over the requests without a token.
    of_prompt: Duration,
    /// Maximum time allowed for a non-streamed response.
    of_whole: Duration,
}

impl Evidence {
    /// Adds one request in flight, as read at `now`.
    pub(super) fn add(&mut self, request: &Request, progress: &Progress, now: u64, bounds: &Bounds) {
        self.in_flight += 1;
        self.progressed = self.progressed.max(progress.progressed.unwrap_or(0));
        let of_prompt = bounds.of_prompt(request.details().map_or(0, |details| details.bytes));
        match progress.activity() {
            Activity::NotPending => {}
            Activity::Blocked => self.client_blocked += 1,
            Activity::Decoding => {
                self.decoding += 1;
                self.decode_waited = self.decode_waited.max(now.saturating_sub(progress.waits_since()));
            }
            Activity::Prefilling => {
                self.prefilling += 1;
                self.of_prompt = self.of_prompt.max(of_prompt);
            }
            Activity::Whole => {
                self.whole += 1;
                self.of_prompt = self.of_prompt.max(of_prompt);
                let max_tokens = request.details().and_then(|details| details.max_tokens);
                let tokens = if request.route.generates() { bounds.of_whole(max_tokens) } else { Duration::ZERO };
                self.of_whole = self.of_whole.max(of_prompt.saturating_add(tokens));
            }
        }
    }

    /// The verdict at `now`. `silent_since`: start of the engine's silence according to its listener's pending period
    /// and finished requests.
    pub(super) fn verdict(&self, silent_since: u64, now: u64, bounds: &Bounds) -> Verdict {
        let silent = now.saturating_sub(self.progressed.max(silent_since));
        let rule = if self.decoding > 0 && self.decoding >= self.whole {
            Some(Rule::Decode)
        } else if self.whole > 0 {
            Some(Rule::Whole)
        } else {
            (self.prefilling > 0).then_some(Rule::Prefill)
        };
        let (silent, bound) = match rule {
            None => (0, Duration::ZERO),
            // A stream that has just resumed after backpressure has waited only since then.
            Some(Rule::Decode) => (silent.min(self.decode_waited), bounds.decode.saturating_add(self.of_prompt)),
            Some(Rule::Prefill) => (silent, bounds.prefill.saturating_add(self.of_prompt)),
            Some(Rule::Whole) => (silent, bounds.prefill.saturating_add(self.of_prompt.max(self.of_whole))),
        };
        let silent = Duration::from_nanos(silent);
        let state = match rule {
            None => State::Idle,
            Some(_) if silent > bound => State::Wedged,
            Some(_) => State::Working,
        };
        Verdict {
            state,
            rule,
            silent,
            bound,
            in_flight: self.in_flight,
            decoding: self.decoding,
            prefilling: self.prefilling,
            whole: self.whole,
            client_blocked: self.client_blocked,
        }
    }
}
