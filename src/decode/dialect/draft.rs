//! What is known so far of the event at hand.

use crate::decode::Channels;
use crate::decode::EngineTiming;
use crate::decode::Finishes;
use crate::decode::StreamEvent;
use crate::decode::Usage;

/// The small facts of an event: all that a common token event has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `choices[].index` of the last choice.
    pub(super) choice: u32,
    /// Choices so far.
    pub(super) choices: u32,
    /// Channels that are not empty.
    pub(super) channels: Channels,
    flags: u8,
}

/// What an event has or has not.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Flag {
    /// A role.
    Role = 1,
    /// A delta or a completion's text, be it empty.
    Delta = 2,
    /// `prompt_progress`.
    Progress = 4,
    /// An error envelope.
    Error = 8,
    /// A `usage` object.
    Usage = 16,
    /// A `metrics` or `timings` object.
    Timing = 32,
}

impl Facts {
    pub(super) fn set(&mut self, flag: Flag) {
        self.flags |= flag as u8;
    }

    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }
}

/// The numbers of an event. Most events have none, so that they are kept apart from the facts.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Number {
    Input,
    Output,
    Cached,
    Reasoning,
    OuterReasoning,
    QueueMs,
    PrefillMs,
    DecodeMs,
    MeanItlMs,
    PromptMs,
    CacheTokens,
    PromptTokens,
    PredictedTokens,
    DraftTokens,
    AcceptedTokens,
    TokenIds,
    Logprobs,
}

const NUMBERS: usize = Number::Logprobs as usize + 1;

/// The event at hand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Draft {
    pub(super) facts: Facts,
    pub(super) finishes: Finishes,
    /// One bit for each number that is there.
    present: u32,
    /// A count, or the bits of a double.
    numbers: [u64; NUMBERS],
}

impl Draft {
    /// Gets ready for the next event.
    pub(super) fn clear(&mut self) {
        self.facts = Facts::default();
        self.finishes = Finishes::default();
        self.present = 0;
    }

    /// True when [`Facts`] say all that is known.
    pub(super) fn is_plain(&self) -> bool {
        self.present == 0 && self.finishes.is_empty()
    }

    pub(super) fn put(&mut self, number: Number, value: u64) {
        if let Some(place) = self.numbers.get_mut(number as usize) {
            *place = value;
            self.present |= 1 << number as u8;
        }
    }

    /// Adds to a count, which is then there even if it is 0.
    pub(super) fn add(&mut self, number: Number, more: u64) {
        self.put(number, self.count(number).unwrap_or(0).saturating_add(more));
    }

    fn count(&self, number: Number) -> Option<u64> {
        if self.present & 1 << number as u8 == 0 { None } else { self.numbers.get(number as usize).copied() }
    }

    fn short_count(&self, number: Number) -> Option<u32> {
        self.count(number).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn milliseconds(&self, number: Number) -> Option<f64> {
        self.count(number).map(f64::from_bits)
    }

    /// What the event said.
    pub(super) fn event(&self, malformed: bool) -> StreamEvent {
        let facts = self.facts;
        let plain = self.present == 0;
        StreamEvent {
            choice: facts.choice,
            choices: facts.choices,
            channels: facts.channels,
            role: facts.has(Flag::Role),
            empty_delta: facts.has(Flag::Delta)
                && !facts.has(Flag::Role)
                && !facts.has(Flag::Progress)
                && facts.channels.is_empty(),
            token_ids: if plain { None } else { self.short_count(Number::TokenIds) },
            logprobs: if plain { None } else { self.short_count(Number::Logprobs) },
            progress: facts.has(Flag::Progress),
            usage: if facts.has(Flag::Usage) { Some(self.usage()) } else { None },
            finishes: self.finishes,
            error: facts.has(Flag::Error),
            done: false,
            timing: if facts.has(Flag::Timing) { Some(self.timing()) } else { None },
            malformed,
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            input: self.count(Number::Input),
            output: self.count(Number::Output),
            cached: self.count(Number::Cached),
            reasoning: self.count(Number::Reasoning).or(self.count(Number::OuterReasoning)),
            total: self.facts.choices == 0,
        }
    }

    fn timing(&self) -> EngineTiming {
        EngineTiming {
            queue_ms: self.milliseconds(Number::QueueMs),
            prefill_ms: self.milliseconds(Number::PrefillMs),
            decode_ms: self.milliseconds(Number::DecodeMs),
            mean_itl_ms: self.milliseconds(Number::MeanItlMs),
            prompt_ms: self.milliseconds(Number::PromptMs),
            cached_tokens: self.count(Number::CacheTokens),
            prompt_tokens: self.count(Number::PromptTokens),
            predicted_tokens: self.count(Number::PredictedTokens),
            draft_tokens: self.count(Number::DraftTokens),
            accepted_tokens: self.count(Number::AcceptedTokens),
        }
    }
}
