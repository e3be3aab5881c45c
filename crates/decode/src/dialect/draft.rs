//! What is known so far of the event at hand.

use super::kind::Kind;
use crate::Channels;
use crate::Counter;
use crate::EngineTiming;
use crate::FinishReason;
use crate::Finishes;
use crate::StreamEvent;
use crate::Usage;

/// The small facts of an event: all that a common token event has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `choices[].index` of the last choice.
    pub(super) choice: u32,
    /// Choices so far.
    pub(super) choices: u32,
    /// Channels that are not empty.
    pub(super) channels: Channels,
    /// What `type` says.
    pub(super) kind: Kind,
    flags: u16,
}

/// What an event has or has not.
#[derive(Clone, Copy, Debug)]
#[repr(u16)]
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
    /// Times of the engine.
    Timing = 32,
    /// A `delta` string that is not empty.
    Piece = 64,
    /// An item with a name or the like that is not empty.
    Item = 128,
    /// A `usage` object whose input leaves the cached tokens out.
    CachedApart = 256,
    /// A `usage` object from before the answer.
    Early = 512,
    /// Counts of the engine's own, not `usage`.
    Counter = 1024,
    /// They are counts so far, which every event has.
    Running = 2048,
    /// The word that its choice has ended.
    Ended = 4096,
    /// A special token, whose text is no part of the answer.
    Special = 8192,
    /// The answer is not here yet.
    Pending = 16384,
}

impl Facts {
    pub(super) fn set(&mut self, flag: Flag) {
        self.flags |= flag as u16;
    }

    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u16 != 0
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
    QueueMs,
    PrefillMs,
    DecodeMs,
    MeanItlMs,
    PromptMs,
    LoadMs,
    TotalMs,
    CacheTokens,
    PromptTokens,
    PredictedTokens,
    DraftTokens,
    AcceptedTokens,
    TokenIds,
    Logprobs,
    CacheCreation,
    InputAudio,
    InputImage,
    OutputAudio,
}

const NUMBERS: usize = Number::OutputAudio as usize + 1;

/// The event at hand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Draft {
    pub(super) facts: Facts,
    pub(super) finishes: Finishes,
    /// Why the answer ended, by its `status`, and by the better word beside it.
    pub(super) status: Option<FinishReason>,
    pub(super) status_reason: Option<FinishReason>,
    /// A number came that is another in each event: what follows will not come again.
    pub(super) varies: bool,
    /// Answers whose prompt, and whose output, an engine's own counter told.
    told_inputs: u16,
    told_outputs: u16,
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
        self.status = None;
        self.status_reason = None;
        self.varies = false;
        self.told_inputs = 0;
        self.told_outputs = 0;
        self.present = 0;
    }

    /// True when [`Facts`] say all that is known.
    pub(super) fn is_plain(&self) -> bool {
        self.present == 0
            && self.finishes.is_empty()
            && self.status.is_none()
            && self.status_reason.is_none()
            && !self.varies
    }

    pub(super) fn put(&mut self, number: Number, value: u64) {
        if let Some(place) = self.numbers.get_mut(number as usize) {
            *place = value;
            self.present |= 1 << number as u8;
        }
    }

    /// Puts a count that is told elsewhere too, and better.
    pub(super) fn put_if_absent(&mut self, number: Number, value: u64) {
        if self.count(number).is_none() {
            self.put(number, value);
        }
    }

    /// Adds to a count, which is then there even if it is 0.
    pub(super) fn add(&mut self, number: Number, more: u64) {
        self.put(number, self.count(number).unwrap_or(0).saturating_add(more));
    }

    /// Adds an engine's own count of one answer's prompt.
    pub(super) fn add_input(&mut self, tokens: u64) {
        self.add(Number::Input, tokens);
        self.told_inputs = self.told_inputs.saturating_add(1);
        self.facts.set(Flag::Counter);
    }

    /// Adds an engine's own count of one answer's output.
    pub(super) fn add_output(&mut self, tokens: u64) {
        self.add(Number::Output, tokens);
        self.told_outputs = self.told_outputs.saturating_add(1);
        self.facts.set(Flag::Counter);
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
        let mut channels = if facts.has(Flag::Special) { Channels::default() } else { facts.channels };
        if facts.has(Flag::Piece) {
            channels.insert(facts.kind.channel());
        }
        if facts.has(Flag::Item) && facts.kind == Kind::ItemAdded {
            channels.insert(Channels::TOOL);
        }
        let mut finishes = self.finishes;
        if let Some(reason) = self.status_reason.or(self.status) {
            finishes.push(reason);
        }
        StreamEvent {
            choice: facts.choice,
            choices: facts.choices,
            channels,
            role: facts.has(Flag::Role),
            empty_delta: facts.has(Flag::Delta)
                && !facts.has(Flag::Role)
                && !facts.has(Flag::Progress)
                && facts.channels.is_empty(),
            token_ids: if plain { None } else { self.short_count(Number::TokenIds) },
            logprobs: if plain { None } else { self.short_count(Number::Logprobs) },
            progress: facts.has(Flag::Progress),
            usage: if facts.has(Flag::Usage) { Some(self.usage()) } else { None },
            counter: if facts.has(Flag::Counter) { Some(self.counter()) } else { None },
            finishes,
            ended: facts.has(Flag::Ended),
            // What was said to the model, and could not be transcribed, is no error of the answer.
            error: facts.has(Flag::Error) && facts.kind != Kind::HeardAll || facts.kind.fails(),
            done: false,
            end: facts.kind.ends(),
            pending: facts.has(Flag::Pending),
            unread: false,
            asks: facts.kind == Kind::Ask,
            timing: if facts.has(Flag::Timing) { Some(self.timing()) } else { None },
            malformed,
        }
    }

    fn usage(&self) -> Usage {
        let cached = self.count(Number::Cached);
        let cache_creation = self.count(Number::CacheCreation);
        let mut input = self.count(Number::Input);
        if self.facts.has(Flag::CachedApart) {
            let apart = cached.unwrap_or(0).saturating_add(cache_creation.unwrap_or(0));
            // No prompt is empty: SGLang 0.5 says 0 where its parsers swallowed the chunk that had the number.
            input = input.map(|input| input.saturating_add(apart)).filter(|input| *input > 0);
        }
        Usage {
            input,
            output: self.count(Number::Output),
            cached,
            cache_creation,
            reasoning: self.count(Number::Reasoning),
            input_audio: self.count(Number::InputAudio),
            input_image: self.count(Number::InputImage),
            output_audio: self.count(Number::OutputAudio),
            total: self.facts.choices == 0,
            early: self.facts.has(Flag::Early),
        }
    }

    fn counter(&self) -> Counter {
        // A sum that leaves one of several answers out is none.
        let answers = self.facts.choices.max(1);
        let input = self.count(Number::Input).filter(|_| u32::from(self.told_inputs) == answers);
        let output = self.count(Number::Output).filter(|_| u32::from(self.told_outputs) == answers);
        // Ollama leaves out what is 0, and tells of a prompt only when it has generated.
        let nothing = output.is_none() && input.is_some() && self.milliseconds(Number::LoadMs).is_some();
        Counter {
            input,
            output: if nothing { Some(0) } else { output },
            cached: self.count(Number::Cached),
            reasoning: self.count(Number::Reasoning),
            running: self.facts.has(Flag::Running),
        }
    }

    fn timing(&self) -> EngineTiming {
        EngineTiming {
            queue_ms: self.milliseconds(Number::QueueMs),
            prefill_ms: self.milliseconds(Number::PrefillMs),
            decode_ms: self.milliseconds(Number::DecodeMs),
            mean_itl_ms: self.milliseconds(Number::MeanItlMs),
            prompt_ms: self.milliseconds(Number::PromptMs),
            load_ms: self.milliseconds(Number::LoadMs),
            total_ms: self.milliseconds(Number::TotalMs),
            cached_tokens: self.count(Number::CacheTokens),
            prompt_tokens: self.count(Number::PromptTokens),
            predicted_tokens: self.count(Number::PredictedTokens),
            draft_tokens: self.count(Number::DraftTokens),
            accepted_tokens: self.count(Number::AcceptedTokens),
        }
    }
}
