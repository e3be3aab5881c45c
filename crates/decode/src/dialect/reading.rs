//! Interprets the values that the scanner finds: fills the draft of the event, and stores facts about the whole
//! response.

use std::hint::black_box;

use super::Capture;
use super::Place;
use super::draft::Draft;
use super::draft::Facts;
use super::draft::Flag;
use super::draft::Number;
use super::kind;
use super::kind::Kind;
use super::marks;
use crate::Channels;
use crate::EngineFacts;
use crate::FinishReason;
use crate::StreamEvent;
use crate::scan::Sink;

/// The keys that may hold an error's type, in increasing priority.
const RANKS: [Place; 4] = [Place::FlatErrorType, Place::ErrorCode, Place::OuterErrorType, Place::ErrorType];

/// One response as far as it was decoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(super) draft: Draft,
    id: Capture<128>,
    model: Capture<128>,
    error_type: Capture<48>,
    /// 0: none; otherwise the index in [`RANKS`] of the key that `error_type` comes from, plus one.
    error_rank: u8,
    /// An event with an error has ended: `error_type` is final.
    error_closed: bool,
    /// A finish reason, a kind of event or object, a fingerprint or a role; longer ones are truncated, and so match no
    /// known word.
    word: Capture<{ kind::LONGEST }>,
    pub(super) engine: EngineFacts,
    /// This is a transcription session (realtime).
    transcribes: bool,
}

impl Reading {
    pub(crate) fn new() -> Self {
        Self {
            draft: Draft::default(),
            id: Capture::new(),
            model: Capture::new(),
            error_type: Capture::new(),
            error_rank: 0,
            error_closed: false,
            word: Capture::new(),
            engine: EngineFacts::default(),
            transcribes: false,
        }
    }

    /// Touches the memory that the next event will need, to load it into the cache.
    pub(crate) fn warm(&self) {
        let settled = [self.id.is_settled(), self.model.is_settled(), self.error_closed, self.transcribes];
        black_box((settled, self.error_type.is_settled(), self.engine, self.draft.facts, self.draft.is_plain()));
    }

    /// The first `id`.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.text()
    }

    /// The first `model`.
    pub(crate) fn model(&self) -> Option<&str> {
        self.model.text()
    }

    /// The type of the first error.
    pub(crate) fn error_type(&self) -> Option<&str> {
        if self.error_closed { self.error_type.text() } else { None }
    }

    /// The engine marks found so far.
    pub(crate) fn engine(&self) -> EngineFacts {
        self.engine
    }

    /// Adds a mark found outside the JSON.
    pub(crate) fn mark(&mut self, mark: EngineFacts) {
        self.engine.insert(mark);
    }

    /// The facts of the current event, if nothing else is known of it.
    pub(crate) fn plain_facts(&self) -> Option<Facts> {
        let settled = self.error_rank == 0 || self.error_closed;
        (self.draft.is_plain() && settled).then_some(self.draft.facts)
    }

    /// Sets the facts of the current event, of which nothing else is known.
    pub(crate) fn assume(&mut self, facts: Facts) {
        self.draft.facts = facts;
    }

    /// True if the current event is only a keep-alive.
    pub(crate) fn is_ping(&self) -> bool {
        self.draft.facts.kind == Kind::Ping
    }

    /// Clears the facts about a whole response before the next one. The model and the engine marks are kept.
    pub(crate) fn begin_answer(&mut self) {
        self.id = Capture::new();
        self.error_type = Capture::new();
        self.error_rank = 0;
        self.error_closed = false;
    }

    /// The current event.
    pub(super) fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Ends the current event and prepares for the next.
    pub(crate) fn take(&mut self, malformed: bool) -> StreamEvent {
        self.draft.facts.kind = self.draft.facts.kind.in_session(self.transcribes);
        let event = self.draft.event(malformed);
        self.draft.clear();
        if !self.id.is_settled() {
            self.id.clear();
        }
        if !self.model.is_settled() {
            self.model.clear();
        }
        if !self.error_closed {
            if event.error {
                self.error_closed = true;
            } else {
                self.error_type.clear();
                self.error_rank = 0;
            }
        }
        event
    }

    fn channel(&mut self, channel: Channels) {
        self.draft.facts.channels.insert(channel);
    }

    fn word_is_complete(&mut self, place: Place) {
        let word = self.word.bytes();
        match place {
            Place::FinishReason if !word.is_empty() => {
                self.draft.finishes.push(FinishReason::from_wire(word));
            }
            Place::StopType if !word.is_empty() && word != b"none" => {
                self.draft.finishes.push(FinishReason::from_wire(word));
            }
            Place::Role if !word.is_empty() => self.draft.facts.set(Flag::Role),
            Place::Object if word == b"error" => self.draft.facts.set(Flag::Error),
            Place::Fingerprint => self.engine.insert(marks::of_fingerprint(word)),
            Place::EventType => {
                self.draft.facts.kind = Kind::from_wire(word);
                // Event names never begin with a capital, so this is the type of an error without an envelope (SGLang).
                if word.first().is_some_and(u8::is_ascii_uppercase) && self.error_rank == 0 && !self.error_closed {
                    self.error_type.clear();
                    self.error_type.push(word);
                    self.error_type.settle();
                    self.error_rank = rank(Place::FlatErrorType);
                }
            }
            Place::Status if matches!(word, b"completed" | b"incomplete" | b"failed" | b"cancelled") => {
                self.draft.status = Some(FinishReason::from_wire(word));
            }
            Place::Status if matches!(word, b"queued" | b"in_progress") => self.draft.facts.set(Flag::Pending),
            Place::StatusReason if !word.is_empty() => {
                self.draft.status_reason = Some(FinishReason::from_wire(word));
            }
            Place::SessionType => self.transcribes = word == b"transcription",
            _ => {}
        }
    }
}

impl Sink<Place> for Reading {
    fn begin(&mut self, place: Place, first: u8) {
        match (place, first) {
            (Place::ChatChoice | Place::CompletionChoice, b'{') => {
                self.draft.facts.choices = self.draft.facts.choices.saturating_add(1);
                self.draft.facts.choice = 0;
            }
            (Place::Delta, b'{') | (Place::CompletionText, b'"') => self.draft.facts.set(Flag::Delta),
            (Place::TokenIds, b'[') => self.draft.add(Number::TokenIds, 0),
            (Place::TokenId, _) => self.draft.add(Number::TokenIds, 1),
            (Place::LogprobList, b'[') => self.draft.add(Number::Logprobs, 0),
            (Place::Logprob, _) => self.draft.add(Number::Logprobs, 1),
            (Place::Usage | Place::TokenUsage | Place::CohereUsage, b'{') => self.draft.facts.set(Flag::Usage),
            (Place::MessageUsage, b'{') => {
                self.draft.facts.set(Flag::Usage);
                self.draft.facts.set(Flag::CachedApart);
            }
            (Place::MessageStartUsage, b'{') => {
                self.draft.facts.set(Flag::Usage);
                self.draft.facts.set(Flag::CachedApart);
                self.draft.facts.set(Flag::Early);
            }
            (Place::SequenceNumber, _) => self.draft.varies = true,
            (Place::Metrics | Place::Timings, b'{') => self.draft.facts.set(Flag::Timing),
            (Place::Error | Place::CodedError, b'{' | b'"') => self.draft.facts.set(Flag::Error),
            (Place::PromptProgress, b'{') => {
                self.draft.facts.set(Flag::Progress);
                self.engine.insert(EngineFacts::LLAMA_CPP);
            }
            (Place::PredictedN, _) => self.engine.insert(EngineFacts::LLAMA_CPP),
            (Place::VllmMark, _) => self.engine.insert(EngineFacts::VLLM),
            (Place::SglangMark, _) => self.engine.insert(EngineFacts::SGLANG),
            (Place::OllamaMark, _) => self.engine.insert(EngineFacts::OLLAMA),
            (Place::TensorrtMark, _) => self.engine.insert(EngineFacts::TENSORRT_LLM),
            (Place::LmdeployMark, _) => self.engine.insert(EngineFacts::LMDEPLOY),
            (Place::Nvext, b'{') => self.engine.insert(EngineFacts::DYNAMO),
            (Place::TritonMark, _) => self.engine.insert(EngineFacts::TRITON),
            (Place::NvextTiming, b'{') => self.draft.facts.set(Flag::Timing),
            (Place::InputTokens | Place::BilledUnits, b'{') => self.draft.facts.set(Flag::Usage),
            (place, first) => self.begin_native(place, first),
        }
    }

    fn text(&mut self, place: Place, empty: bool) {
        if empty {
            return;
        }
        match place {
            Place::Content | Place::CompletionText | Place::GeneratedText => self.channel(Channels::CONTENT),
            Place::Reasoning => self.channel(Channels::REASONING),
            Place::FunctionText => self.channel(Channels::TOOL),
            Place::Refusal => self.channel(Channels::REFUSAL),
            Place::AudioText => self.channel(Channels::AUDIO),
            Place::EventDelta => self.draft.facts.set(Flag::Piece),
            Place::ItemText => self.draft.facts.set(Flag::Item),
            _ => {}
        }
    }

    fn wants_word(&mut self, place: Place) -> bool {
        match place {
            Place::Id => {
                let wanted = !self.id.is_settled();
                if wanted {
                    self.id.clear();
                }
                wanted
            }
            Place::Model => {
                let wanted = !self.model.is_settled();
                if wanted {
                    self.model.clear();
                }
                wanted
            }
            Place::ErrorType | Place::OuterErrorType | Place::ErrorCode | Place::FlatErrorType => {
                let rank = rank(place);
                let wanted = !self.error_closed && rank > self.error_rank;
                if wanted {
                    self.error_type.clear();
                    self.error_rank = rank;
                }
                wanted
            }
            _ => {
                self.word.clear();
                true
            }
        }
    }

    fn word_part(&mut self, place: Place, part: &[u8]) {
        match place {
            Place::Id => self.id.push(part),
            Place::Model => self.model.push(part),
            Place::ErrorType | Place::OuterErrorType | Place::ErrorCode | Place::FlatErrorType => {
                self.error_type.push(part)
            }
            _ => self.word.push(part),
        }
    }

    fn word_end(&mut self, place: Place) {
        match place {
            Place::Id => {
                self.id.settle();
                self.engine.insert(marks::of_id(self.id.bytes()));
            }
            Place::Model => {
                self.model.settle();
                self.engine.insert(marks::of_model(self.model.bytes()));
            }
            Place::ErrorType | Place::OuterErrorType | Place::ErrorCode | Place::FlatErrorType => {
                self.error_type.settle()
            }
            _ => self.word_is_complete(place),
        }
    }

    fn number(&mut self, place: Place, written: &[u8]) {
        let Ok(written) = std::str::from_utf8(written) else { return };
        let number = match place {
            Place::Index => {
                if let Ok(index) = written.parse() {
                    self.draft.facts.choice = index;
                }
                return;
            }
            Place::QueueMs => Number::QueueMs,
            Place::PrefillMs => Number::PrefillMs,
            Place::DecodeMs => Number::DecodeMs,
            Place::MeanItlMs => Number::MeanItlMs,
            Place::PromptMs => Number::PromptMs,
            place => return self.native_number(place, written),
        };
        if let Some(value) = finite(written) {
            self.draft.put(number, value.to_bits());
        }
    }
}

impl Reading {
    /// Handles a count that has the same meaning in every dialect.
    pub(super) fn count(&mut self, place: Place, tokens: u64) {
        let number = match place {
            Place::PromptTokens => Number::Input,
            Place::CompletionTokens => Number::Output,
            Place::CachedTokens => Number::Cached,
            Place::ReasoningTokens => Number::Reasoning,
            Place::OuterReasoningTokens => return self.draft.put_if_absent(Number::Reasoning, tokens),
            Place::CacheN => Number::CacheTokens,
            Place::PromptN => Number::PromptTokens,
            Place::BilledTokens => return self.draft.put_if_absent(Number::Input, tokens),
            Place::PredictedN => Number::PredictedTokens,
            Place::DraftTokens => Number::DraftTokens,
            Place::AcceptedTokens => Number::AcceptedTokens,
            Place::CacheCreationTokens => Number::CacheCreation,
            Place::InputAudioTokens => Number::InputAudio,
            Place::InputImageTokens => Number::InputImage,
            Place::OutputAudioTokens => Number::OutputAudio,
            _ => return,
        };
        self.draft.put(number, tokens);
    }
}

/// Parses a number as an `f64`; `None` if it is not finite.
pub(super) fn finite(written: &str) -> Option<f64> {
    written.parse().ok().filter(|value: &f64| value.is_finite())
}

fn rank(place: Place) -> u8 {
    RANKS.iter().position(|ranked| *ranked == place).map_or(0, |place| place as u8 + 1)
}
