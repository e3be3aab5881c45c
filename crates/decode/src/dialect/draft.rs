//! The state of the event being decoded.

use super::kind::Kind;
use crate::Channels;
use crate::Counter;
use crate::EngineTiming;
use crate::FinishReason;
use crate::Finishes;
use crate::StreamEvent;
use crate::Usage;

/// The basic facts of an event: everything that a common token event has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `choices[].index` of the last choice.
    pub(super) choice: u32,
    /// Number of choices so far.
    pub(super) choices: u32,
    /// Non-empty channels.
    pub(super) channels: Channels,
    /// The kind given by `type`.
    pub(super) kind: Kind,
    flags: u16,
}

/// Properties of an event.
#[derive(Clone, Copy, Debug)]
#[repr(u16)]
pub(super) enum Flag {
    /// A role.
    Role = 1,
    /// A delta or the text of a completion, possibly empty.
    Delta = 2,
    /// `prompt_progress`.
    Progress = 4,
    /// An error envelope.
    Error = 8,
    /// A `usage` object.
    Usage = 16,
    /// Timings reported by the engine.
    Timing = 32,
    /// A non-empty `delta` string.
    Piece = 64,
    /// An item with a non-empty name or the like.
    Item = 128,
    /// A `usage` object whose input excludes the cached tokens.
    CachedApart = 256,
    /// A `usage` object that precedes the output.
    Early = 512,
    /// Counts in the engine's own format, not `usage`.
    Counter = 1024,
    /// The counts are running totals, which every event has.
    Running = 2048,
    /// The choice is marked as ended.
    Ended = 4096,
    /// A special token, whose text is not part of the output.
    Special = 8192,
    /// The response is not available yet.
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

/// The numbers of an event, stored separately because most events have none.
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

/// The event being decoded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Draft {
    pub(super) facts: Facts,
    pub(super) finishes: Finishes,
    /// The finish reason from the response's `status`, and the more precise one next to it.
    pub(super) status: Option<FinishReason>,
    pub(super) status_reason: Option<FinishReason>,
    /// The event has a number that differs in every event, so its bytes will not repeat.
    pub(super) varies: bool,
    /// How many responses had a prompt count, and an output count, in the engine's own format.
    told_inputs: u16,
    told_outputs: u16,
    /// One bit for each number that is present.
    present: u32,
    /// A count, or the bits of an `f64`.
    numbers: [u64; NUMBERS],
}

impl Draft {
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

    /// True when [`Facts`] hold everything known.
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

    /// Sets a count for which another key is preferred.
    pub(super) fn put_if_absent(&mut self, number: Number, value: u64) {
        if self.count(number).is_none() {
            self.put(number, value);
        }
    }

    /// Adds to a count. Makes it present even if it is 0.
    pub(super) fn add(&mut self, number: Number, more: u64) {
        self.put(number, self.count(number).unwrap_or(0).saturating_add(more));
    }

    /// Adds an engine's own prompt count for one response.
    pub(super) fn add_input(&mut self, tokens: u64) {
        self.add(Number::Input, tokens);
        self.told_inputs = self.told_inputs.saturating_add(1);
        self.facts.set(Flag::Counter);
    }

    /// Adds an engine's own output count for one response.
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

    /// Builds the event.
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
            // A failed transcription of the user's audio is not an error of the response.
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
            // A prompt is never empty: SGLang 0.5 sends 0 if its parsers dropped the chunk that had the number.
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
        // The sum is valid only if every response contributed to it.
        let answers = self.facts.choices.max(1);
        let input = self.count(Number::Input).filter(|_| u32::from(self.told_inputs) == answers);
        let output = self.count(Number::Output).filter(|_| u32::from(self.told_outputs) == answers);
        // Ollama omits zero values, and sends a prompt count only if it generated.
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
