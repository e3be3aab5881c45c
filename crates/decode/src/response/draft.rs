//! The state of the event being decoded.

use super::kind::Kind;
use crate::dialect::Place;
use crate::{Channels, Counter, EngineTiming, FinishReason, Finishes, StreamEvent, TokenParts, Usage};

/// The basic facts of an event: everything that a common token event has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `choices[].index` of the event's last choice.
    pub(crate) choice: u32,
    /// Number of choices so far.
    pub(super) choices: u16,
    /// Non-empty channels.
    pub(crate) channels: Channels,
    /// The kind given by `type`.
    pub(super) kind: Kind,
    flags: u32,
}

/// Properties of an event.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Flag {
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
    /// An item with a non-empty name, arguments or input.
    Item = 128,
    /// A `usage` object whose input excludes the cached tokens.
    CachedApart = 256,
    /// A `usage` object that precedes the output.
    Early = 512,
    /// Counts in the engine's own format, not `usage`.
    Counter = 1024,
    /// The counts are running totals that every event has.
    Running = 2048,
    /// The choice is marked as ended.
    Ended = 4096,
    /// A special token, whose text is not part of the output.
    Special = 8192,
    /// The response is not available yet.
    Pending = 16384,
    /// A non-empty text that earlier events may have sent in pieces.
    Whole = 32768,
    /// The type of such a text is reasoning.
    WholeReasoning = 1 << 23,
    /// A body, or an event that repeats the pieces of earlier events ([`super::kind::DONE`]).
    Done = 1 << 22,
    /// In the `message` of a choice, before its `delta`.
    InMessage = 1 << 16,
    /// An image.
    Image = 1 << 29,
    /// A finish reason of the choice.
    Finished = 1 << 28,
    /// A list of log probabilities of the choice has entries.
    HasLogprobs = 1 << 26,
    /// In a further list of log probabilities of the choice, which repeats the first one.
    RepeatsLogprobs = 1 << 27,
    /// The event has a number that differs in every event, so its bytes cannot be predicted.
    Varies = 1 << 25,
}

/// The first of the flags with the channels of a choice's `message`.
const MESSAGE: u32 = 17;
/// All flags with channels of a `message`.
const MESSAGE_CHANNELS: u32 = (Channels::ALL.0 as u32) << MESSAGE;

impl Facts {
    pub(crate) fn set(&mut self, flag: Flag) {
        self.flags |= flag as u32;
    }

    pub(super) fn clear(&mut self, flag: Flag) {
        self.flags &= !(flag as u32);
    }

    pub(super) fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u32 != 0
    }

    /// Adds a channel of the current place.
    pub(super) fn add(&mut self, channel: Channels) {
        if self.has(Flag::InMessage) {
            self.flags |= u32::from(channel.0) << MESSAGE;
        } else {
            self.channels.insert(channel);
        }
    }

    /// True if a delta has text, or a typed event has output.
    pub(super) fn is_delta_with_text(&self) -> bool {
        match self.kind {
            Kind::Other => self.has(Flag::Delta) && !self.channels.is_empty(),
            _ => !self.all_channels().is_empty(),
        }
    }

    /// Removes what may repeat the text of earlier events: the channels of a `message` without a `delta` (MiniMax), and
    /// whole texts and items (Responses, realtime).
    pub(super) fn ignore_repeated(&mut self) {
        self.flags &= !MESSAGE_CHANNELS;
        self.clear(Flag::Whole);
        if self.kind != Kind::ItemAdded {
            self.clear(Flag::Item);
        }
    }

    /// The non-empty channels. A `message` next to a `delta` repeats the text so far (Perplexity).
    fn all_channels(&self) -> Channels {
        if self.has(Flag::Special) {
            return Channels::default();
        }
        let mut channels = self.channels;
        if !self.has(Flag::Delta) {
            channels.insert(Channels(((self.flags & MESSAGE_CHANNELS) >> MESSAGE) as u8));
        }
        let repeats = self.has(Flag::Done) || self.kind.ends();
        if self.has(Flag::Piece) && !self.has(Flag::Done) {
            channels.insert(self.kind.channel());
        }
        if self.has(Flag::Item) && (repeats || self.kind == Kind::ItemAdded) {
            channels.insert(Channels::TOOL);
        }
        if self.has(Flag::Whole) && repeats {
            let reasons = self.has(Flag::WholeReasoning);
            if reasons {
                channels.insert(Channels::REASONING);
            }
            match self.kind {
                kind if kind.ends() || kind == Kind::Other => channels.insert(Channels::CONTENT),
                _ if reasons => {}
                kind => channels.insert(kind.channel()),
            }
        }
        channels
    }
}

/// The event being decoded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) facts: Facts,
    pub(crate) finishes: Finishes,
    /// The finish reason from the response's `status`, and the more precise reason, if there is one.
    pub(super) status: Option<FinishReason>,
    pub(super) status_reason: Option<FinishReason>,
    /// Number of responses with a prompt count in the engine's own format, and number with an output count.
    counted_inputs: u16,
    counted_outputs: u16,
    /// One bit per present count or duration. Most events have none, so the arrays are rarely read and never cleared.
    present: u32,
    counts: [u64; Place::COUNTS],
    durations: [f64; Place::DURATIONS],
}

impl Draft {
    pub(super) fn clear(&mut self) {
        self.facts = Facts::default();
        self.finishes = Finishes::default();
        self.status = None;
        self.status_reason = None;
        self.counted_inputs = 0;
        self.counted_outputs = 0;
        self.present = 0;
    }

    /// True when [`Facts`] contain everything known about the event.
    pub(super) fn is_plain(&self) -> bool {
        self.present == 0
            && self.finishes.is_empty()
            && self.status.is_none()
            && self.status_reason.is_none()
            && !self.facts.has(Flag::Varies)
    }

    /// Sets a count. Does nothing for places that are not counts.
    pub(crate) fn put(&mut self, count: Place, value: u64) {
        if let Some(kept) = self.counts.get_mut(count.count_slot()) {
            *kept = value;
            self.present |= 1 << count.count_slot();
        }
    }

    /// Sets a count unless another key has already set it to a positive value.
    pub(super) fn put_if_absent(&mut self, count: Place, value: u64) {
        if self.count(count).is_none_or(|kept| kept == 0) {
            self.put(count, value);
        }
    }

    /// Adds to a count, and marks it as present even if it is 0.
    pub(crate) fn add(&mut self, count: Place, more: u64) {
        self.put(count, self.count(count).unwrap_or(0).saturating_add(more));
    }

    /// Sets a duration.
    pub(super) fn put_duration(&mut self, duration: Place, milliseconds: f64) {
        if let Some(kept) = self.durations.get_mut(duration.duration_slot()) {
            *kept = milliseconds;
            self.present |= 1 << (Place::COUNTS + duration.duration_slot());
        }
    }

    /// Adds an engine's own prompt count for one response.
    pub(super) fn add_input(&mut self, tokens: u64) {
        self.add(Place::PromptTokens, tokens);
        self.counted_inputs = self.counted_inputs.saturating_add(1);
        self.facts.set(Flag::Counter);
    }

    /// Adds an engine's own output count for one response.
    pub(super) fn add_output(&mut self, tokens: u64) {
        self.add(Place::CompletionTokens, tokens);
        self.counted_outputs = self.counted_outputs.saturating_add(1);
        self.facts.set(Flag::Counter);
    }

    fn has(&self, bit: usize) -> bool {
        self.present & 1 << bit != 0
    }

    pub(crate) fn count(&self, count: Place) -> Option<u64> {
        let slot = count.count_slot();
        if self.has(slot) { self.counts.get(slot).copied() } else { None }
    }

    fn short_count(&self, count: Place) -> Option<u32> {
        self.count(count).map(|count| u32::try_from(count).unwrap_or(u32::MAX))
    }

    pub(crate) fn duration(&self, duration: Place) -> Option<f64> {
        let slot = duration.duration_slot();
        if self.has(Place::COUNTS + slot) { self.durations.get(slot).copied() } else { None }
    }

    /// Builds the event.
    pub(super) fn event(&self, malformed: bool) -> StreamEvent {
        let facts = self.facts;
        let plain = self.present == 0;
        let channels = facts.all_channels();
        let mut finishes = self.finishes;
        let canceled = (facts.kind == Kind::Canceled).then_some(FinishReason::Canceled);
        if let Some(reason) = self.status_reason.or(self.status).or(canceled) {
            finishes.push(reason);
        }
        // llama.cpp may report the end of the prompt together with the first token.
        let image = facts.has(Flag::Image);
        let is_empty = channels.is_empty() && !image && finishes.is_empty() && !facts.has(Flag::Usage);
        let progress = facts.has(Flag::Progress) && is_empty;
        StreamEvent {
            choice: facts.choice,
            choices: facts.choices.into(),
            channels,
            role: facts.has(Flag::Role),
            empty_delta: facts.has(Flag::Delta)
                && !facts.has(Flag::Role)
                && !progress
                && !image
                && facts.channels.is_empty(),
            token_ids: if plain { None } else { self.short_count(Place::TokenId) },
            logprobs: if plain { None } else { self.short_count(Place::Logprob) },
            image,
            progress,
            usage: if facts.has(Flag::Usage) { Some(self.usage()) } else { None },
            counter: if facts.has(Flag::Counter) { Some(self.counter()) } else { None },
            finishes,
            ended: facts.has(Flag::Ended),
            // A failed transcription of the user's audio is not an error of the response.
            error: facts.has(Flag::Error) && facts.kind != Kind::InputTranscriptEnd || facts.kind.fails(),
            done: false,
            end: facts.kind.ends(),
            pending: facts.has(Flag::Pending),
            unread: false,
            asks: facts.kind == Kind::ResponseRequest,
            timing: if facts.has(Flag::Timing) { Some(EngineTiming::of(self)) } else { None },
            malformed,
        }
    }

    /// True if a piece of the output has a `usage`: Dynamo's extension of the Messages API
    /// (anthropic/stream_converter.rs, `serialize_event`).
    pub(super) fn repeats_usage(&self) -> bool {
        self.facts.kind == Kind::BlockDelta && self.facts.has(Flag::CachedApart)
    }

    fn usage(&self) -> Usage {
        let (cached, parts) = (self.count(Place::CachedTokens), TokenParts::of(self));
        let mut input = self.count(Place::PromptTokens);
        if self.facts.has(Flag::CachedApart) {
            let apart = cached.unwrap_or(0).saturating_add(parts.cache_creation.unwrap_or(0));
            input = input.map(|input| input.saturating_add(apart));
        }
        Usage {
            input,
            output: self.count(Place::CompletionTokens),
            cached,
            reasoning: self.count(Place::ReasoningTokens),
            parts,
            total: self.facts.choices == 0,
            cached_apart: self.facts.has(Flag::CachedApart),
            early: self.facts.has(Flag::Early) || self.repeats_usage(),
        }
    }

    fn counter(&self) -> Counter {
        // The sum is valid only if every response contributed a count.
        let responses = u32::from(self.facts.choices.max(1));
        let input = self.count(Place::PromptTokens).filter(|_| u32::from(self.counted_inputs) == responses);
        let output = self.count(Place::CompletionTokens).filter(|_| u32::from(self.counted_outputs) == responses);
        // Ollama omits zero values. It sends a prompt count only if the model ran, so no output count then means 0.
        let nothing = output.is_none() && input.is_some() && self.duration(Place::LoadNs).is_some();
        Counter {
            input,
            output: if nothing { Some(0) } else { output },
            cached: self.count(Place::CachedTokens),
            reasoning: self.count(Place::ReasoningTokens),
            running: self.facts.has(Flag::Running),
        }
    }
}
