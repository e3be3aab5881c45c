//! Wedge detection: whether the engine behind a listener still makes progress, based on its tokens on the wire.
//!
//! `docs/WEDGE.md` has the rules and the reasons.

use std::time::Duration;

use tokometer_observe::closed_enum;

use crate::live::request::{Doing, Open};

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

impl Verdict {
    /// The verdict on one listener. `silent`: time since the engine's last progress according to its pending period and
    /// finished requests.
    pub(super) fn of(open: &[&Open], silent: Duration, bounds: &Bounds) -> Verdict {
        let those = |doing| open.iter().filter(move |open| open.doing == doing);
        let count = |doing| those(doing).count() as u64;
        let (decoding, prefilling, whole) = (count(Doing::Decode), count(Doing::Prefill), count(Doing::Whole));
        let silent = open.iter().filter_map(|open| open.progressed).fold(silent, Duration::min);
        let of_prompt = |open: &&Open| bounds.of_prompt(open.request_bytes);
        let prompts = those(Doing::Prefill).chain(those(Doing::Whole)).map(of_prompt).max();
        let prompts = prompts.unwrap_or_default();
        let rule = if decoding > 0 && decoding >= whole {
            Some(Rule::Decode)
        } else if whole > 0 {
            Some(Rule::Whole)
        } else {
            (prefilling > 0).then_some(Rule::Prefill)
        };
        let (silent, bound) = match rule {
            None => (Duration::ZERO, Duration::ZERO),
            Some(Rule::Decode) => {
                // A stream that has just resumed after backpressure has waited only since then.
                let waited = those(Doing::Decode).filter_map(|open| open.waited).max();
                (silent.min(waited.unwrap_or_default()), bounds.decode.saturating_add(prompts))
            }
            Some(Rule::Prefill) => (silent, bounds.prefill.saturating_add(prompts)),
            Some(Rule::Whole) => {
                let longest = those(Doing::Whole).map(|open| {
                    let tokens = if open.route.generates() { bounds.of_whole(open.max_tokens) } else { Duration::ZERO };
                    of_prompt(open).saturating_add(tokens)
                });
                (silent, bounds.prefill.saturating_add(longest.fold(prompts, Duration::max)))
            }
        };
        let state = match rule {
            None => State::Idle,
            Some(_) if silent > bound => State::Wedged,
            Some(_) => State::Working,
        };
        let (in_flight, client_blocked) = (open.len() as u64, count(Doing::Blocked));
        Verdict { state, rule, silent, bound, in_flight, decoding, prefilling, whole, client_blocked }
    }
}
