//! Whether the engine behind a pair still works, judged by the tokens that do and do not come.
//!
//! `docs/WEDGE.md` tells the rules and why they are so.

use std::time::Duration;

use crate::live::settings::Bounds;
use crate::live::slot::Doing;
use crate::live::slot::GENERATES;
use crate::live::slot::NEVER;
use crate::live::slot::Seen;

/// By which rule an engine was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Streams decode, at least as many as there are answers in one piece: their tokens are waited for.
    Decode,
    /// No stream decodes: first tokens are waited for.
    Prefill,
    /// Answers in one piece are made, which show nothing before their end.
    Whole,
}

impl Rule {
    /// The word in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Rule::Decode => "decode",
            Rule::Prefill => "prefill",
            Rule::Whole => "whole",
        }
    }
}

/// What an engine is found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It owes nothing to anybody.
    Idle,
    /// It owes something, and has not been silent for too long.
    Working,
    /// It owes something, and has been silent for longer than any healthy engine is.
    Wedged,
}

impl State {
    /// The word in answers.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Working => "working",
            State::Wedged => "wedged",
        }
    }
}

/// The judgement on one pair, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What the engine is found to be.
    pub state: State,
    /// By which rule; `None` when it owes nothing.
    pub rule: Option<Rule>,
    /// For how long no token came to anybody who waited; zero when it owes nothing.
    pub silent: Duration,
    /// For how long that may be; zero when it owes nothing.
    pub bound: Duration,
    /// Exchanges in flight.
    pub in_flight: u64,
    /// Of them, streams with tokens.
    pub decoding: u64,
    /// Of them, streams without a token yet.
    pub prefilling: u64,
    /// Of them, answers in one piece.
    pub whole: u64,
    /// Of them, those whose clients take no bytes. They say nothing of the engine.
    pub held_up: u64,
}

/// Adds up what the exchanges of one pair say.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Witness {
    in_flight: u64,
    decoding: u64,
    prefilling: u64,
    whole: u64,
    held_up: u64,
    /// The latest progress of any of them.
    progressed: u64,
    /// Longest that a decoding stream has waited for its next token.
    decode_waited: u64,
    /// Most that the length of a prompt adds, of those without a token.
    of_prompt: Duration,
    /// Longest that an answer in one piece may take.
    of_whole: Duration,
}

impl Witness {
    /// Takes what one exchange of the pair says at `now`.
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

    /// The verdict at `now`. `silent_since`: since when, as far as ended exchanges tell, the engine has owed something
    /// without a break and has done nothing.
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
            // A stream whose client has just begun to read again has waited no longer than that.
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
