//! Wedge detection: whether the engine behind a listener still makes progress, based on its tokens on the wire.
//!
//! `docs/WEDGE.md` has the rules and the reasons.

use std::time::Duration;

use crate::live::settings::Bounds;
use crate::live::slot::Doing;
use crate::live::slot::GENERATES;
use crate::live::slot::NEVER;
use crate::live::slot::Seen;

/// Rule that applied to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Streams decode, at least as many as there are non-streamed responses: further tokens are expected.
    Decode,
    /// No stream decodes: first tokens are expected.
    Prefill,
    /// Non-streamed responses are pending, which show no progress before their end.
    Whole,
}

impl Rule {
    /// Name in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Decode => "decode",
            Rule::Prefill => "prefill",
            Rule::Whole => "whole",
        }
    }
}

/// State of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No pending requests.
    Idle,
    /// Pending requests; silent for no longer than the bound.
    Working,
    /// Pending requests; silent for longer than any healthy engine.
    Wedged,
}

impl State {
    /// Name in JSON output.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Working => "working",
            State::Wedged => "wedged",
        }
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
    pub held_up: u64,
}

/// Accumulates the requests of one listener.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Witness {
    in_flight: u64,
    decoding: u64,
    prefilling: u64,
    whole: u64,
    held_up: u64,
    /// Latest progress of any request.
    progressed: u64,
    /// Longest wait of a decoding stream for its next token.
    decode_waited: u64,
    /// Maximum that prompt length adds, over the requests without a token.
    of_prompt: Duration,
    /// Maximum time allowed for a non-streamed response.
    of_whole: Duration,
}

impl Witness {
    /// Adds one request in flight, as seen at `now`.
    pub(super) fn take(&mut self, seen: &Seen, now: u64, bounds: &Bounds) {
        self.in_flight += 1;
        if seen.progressed != NEVER {
            self.progressed = self.progressed.max(seen.progressed);
        }
        let of_prompt = bounds.of_prompt(seen.request_bytes);
        match seen.doing() {
            Doing::Nothing => {}
            Doing::HeldUp => self.held_up += 1,
            Doing::Decoding => {
                self.decoding += 1;
                self.decode_waited = self.decode_waited.max(now.saturating_sub(seen.waits_since()));
            }
            Doing::Prefilling => {
                self.prefilling += 1;
                self.of_prompt = self.of_prompt.max(of_prompt);
            }
            Doing::Whole => {
                self.whole += 1;
                self.of_prompt = self.of_prompt.max(of_prompt);
                let max_tokens = Some(seen.max_tokens).filter(|most| *most != NEVER);
                let made = if seen.has(GENERATES) { bounds.of_whole(max_tokens) } else { Duration::ZERO };
                self.of_whole = self.of_whole.max(of_prompt.saturating_add(made));
            }
        }
    }

    /// The verdict at `now`. `silent_since`: start of the engine's silence according to its listener's pending period
    /// and finished requests.
    pub(super) fn judge(&self, silent_since: u64, now: u64, bounds: &Bounds) -> Verdict {
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
            held_up: self.held_up,
        }
    }
}
