//! Interprets the values that the scanner finds: fills the event's draft, and stores facts about the whole response.

use std::hint::black_box;

use super::draft::{Draft, Facts, Flag};
use super::kind;
use super::kind::Kind;
use crate::dialect::Place;
use crate::scan::{Capture, Place as _, Shape, Sink};
use crate::{Channels, EngineFacts, FinishReason, ResponseText, StreamEvent, TextLost, engine};

/// The keys that may contain the error type, in increasing priority.
const RANKS: [Place; 5] =
    [Place::FlatErrorType, Place::EventCode, Place::ErrorCode, Place::OuterErrorType, Place::ErrorType];

/// An event with an error has ended, so `error_type` is final.
const FINAL: u8 = u8::MAX;

/// The decoded state of one response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseState {
    pub(super) draft: Draft,
    id: Capture<128>,
    model: Capture<128>,
    error_type: Capture<48>,
    /// 0: no error type; [`FINAL`]; otherwise one plus the index in [`RANKS`] of the key that `error_type` was read from.
    error_rank: u8,
    /// A finish reason, a kind of event or object, a fingerprint or a role. Longer values are truncated and so match no
    /// known word.
    word: Capture<{ kind::LONGEST }>,
    pub(super) engine: EngineFacts,
    /// This is a transcription session (realtime).
    transcribes: bool,
    /// A text or a status of the API was found, possibly empty.
    known: bool,
    /// An event had a delta with text, or a typed event had output.
    has_deltas: bool,
}

impl ResponseState {
    /// Prefetches the memory that the next event needs.
    pub(crate) fn warm(&self) {
        let settled = [self.id.is_settled(), self.model.is_settled(), self.error_rank == 0, self.transcribes];
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
        if self.error_rank == FINAL { self.error_type.text() } else { None }
    }

    /// The engine marks found so far.
    pub(crate) fn engine(&self) -> EngineFacts {
        self.engine
    }

    /// Adds an engine mark found outside the JSON.
    pub(crate) fn mark(&mut self, mark: EngineFacts) {
        self.engine.insert(mark);
    }

    /// The facts of the current event, if they are everything known about it.
    pub(crate) fn plain_facts(&self) -> Option<Facts> {
        let settled = matches!(self.error_rank, 0 | FINAL);
        (self.draft.is_plain() && settled).then_some(self.draft.facts)
    }

    /// Sets the facts of the current event, which are everything known about it.
    pub(crate) fn assume(&mut self, facts: Facts) {
        self.draft.facts = facts;
    }

    /// True if a text or a status of the API was found.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// Marks the current event as a whole body.
    pub(super) fn mark_body(&mut self) {
        self.draft.facts.set(Flag::Done);
    }

    /// True if the current event is only a keep-alive.
    pub(crate) fn is_ping(&self) -> bool {
        self.draft.facts.kind == Kind::Ping
    }

    /// Clears the facts about the previous response. The model and the engine marks are kept.
    pub(crate) fn begin_response(&mut self) {
        self.id = Capture::default();
        self.error_type = Capture::default();
        self.error_rank = 0;
        self.has_deltas = false;
    }

    /// The current event.
    pub(crate) fn draft(&mut self) -> &mut Draft {
        &mut self.draft
    }

    /// Ends the current event and prepares for the next.
    pub(crate) fn take(&mut self, malformed: bool) -> StreamEvent {
        self.draft.facts.kind = self.draft.facts.kind.in_session(self.transcribes);
        if self.has_deltas {
            self.draft.facts.ignore_repeated();
        }
        if self.draft.repeats_usage() {
            self.engine.insert(EngineFacts::DYNAMO);
        }
        let event = self.draft.event(malformed);
        self.has_deltas |= self.draft.facts.is_delta_with_text() && !malformed && !self.is_ping();
        self.draft.clear();
        self.id.begin();
        self.model.begin();
        if self.error_rank != FINAL {
            if event.error {
                self.error_rank = FINAL;
            } else {
                self.error_type.clear();
                self.error_rank = 0;
            }
        }
        event
    }

    fn channel(&mut self, channel: Channels) {
        self.draft.facts.add(channel);
    }

    fn word_is_complete(&mut self, place: Place) {
        let word = self.word.bytes();
        let is_one_of = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
        match place {
            Place::FinishReason | Place::StopType | Place::ChoiceFinish => {
                let reason = FinishReason::from_wire(word).map(|reason| match reason {
                    // Given up by the engine: only the status of a response can report what a user canceled.
                    FinishReason::Canceled => FinishReason::Abort,
                    reason => reason,
                });
                let is_repeated = place == Place::ChoiceFinish && self.draft.facts.has(Flag::Finished);
                if let Some(reason) = reason.filter(|_| !is_repeated) {
                    self.draft.facts.set(Flag::Finished);
                    self.draft.finishes.push(reason);
                }
            }
            Place::Role if !word.is_empty() => self.draft.facts.set(Flag::Role),
            Place::Object if word == b"error" => self.draft.facts.set(Flag::Error),
            Place::Fingerprint => self.engine.insert(engine::of_fingerprint(word)),
            Place::EventType => {
                self.draft.facts.kind = Kind::from_wire(word);
                if word.ends_with(kind::DONE) && self.draft.facts.kind != Kind::Other {
                    self.draft.facts.set(Flag::Done);
                }
                // An event type never begins with a capital letter. A `type` that does is the type of an error without
                // an envelope (SGLang).
                if word.first().is_some_and(u8::is_ascii_uppercase) {
                    self.error_type_is(rank(Place::FlatErrorType));
                }
            }
            Place::Status if is_one_of(&["completed", "incomplete", "failed", "cancelled", "canceled"]) => {
                self.known = true;
                self.draft.status = FinishReason::from_wire(word);
            }
            Place::Status if is_one_of(&["queued", "in_progress"]) => {
                self.known = true;
                self.draft.facts.set(Flag::Pending);
            }
            Place::StatusReason => {
                self.draft.status_reason = FinishReason::from_wire(word).or(self.draft.status_reason);
            }
            Place::WholeType if word.starts_with(b"reasoning") || word.starts_with(b"summary") => {
                self.draft.facts.set(Flag::WholeReasoning);
            }
            Place::ErrorMessage if reports_error(word) => self.draft.facts.set(Flag::Error),
            Place::SessionType => self.transcribes = word == b"transcription",
            place if matches!(place.shape(), Shape::Number) => {
                let written = self.word;
                self.number(place, written.bytes());
            }
            _ => {}
        }
    }
}

impl Sink<Place> for ResponseState {
    fn begin(&mut self, place: Place, first: u8) {
        match (place, first) {
            (Place::ChatChoice | Place::CompletionChoice, b'{') => {
                self.response();
                self.draft.facts.choice = 0;
                self.draft.facts.clear(Flag::InMessage);
                self.draft.facts.clear(Flag::Finished);
            }
            (Place::Message, b'{') => self.draft.facts.set(Flag::InMessage),
            (Place::Delta, b'{') => {
                self.draft.facts.set(Flag::Delta);
                self.draft.facts.clear(Flag::InMessage);
            }
            (Place::PredictedTexts, _) | (Place::ChatText, b'"' | b'{' | b'[') => {
                self.draft.facts.clear(Flag::InMessage);
            }
            (Place::CompletionText, b'"' | b'{' | b'[') => self.draft.facts.set(Flag::Delta),
            // Arguments as an object, not as text.
            (Place::FunctionText, b'{') => self.channel(Channels::TOOL),
            (Place::TokenIds, b'[') => self.draft.add(Place::TokenId, 0),
            (Place::TokenId, _) => self.draft.add(Place::TokenId, 1),
            (Place::Logprobs, b'{') => {
                self.draft.facts.clear(Flag::HasLogprobs);
                self.draft.facts.clear(Flag::RepeatsLogprobs);
            }
            (Place::LogprobList, b'[') => {
                self.draft.add(Place::Logprob, 0);
                if self.draft.facts.has(Flag::HasLogprobs) {
                    self.draft.facts.set(Flag::RepeatsLogprobs);
                }
            }
            (Place::Logprob, _) if !self.draft.facts.has(Flag::RepeatsLogprobs) => {
                self.draft.add(Place::Logprob, 1);
                self.draft.facts.set(Flag::HasLogprobs);
            }
            (Place::Usage | Place::InputUsage | Place::CohereUsage, b'{') => self.draft.facts.set(Flag::Usage),
            (Place::MessageUsage, b'{') => {
                self.draft.facts.set(Flag::Usage);
                self.draft.facts.set(Flag::CachedApart);
            }
            (Place::MessageStartUsage, b'{') => {
                self.draft.facts.set(Flag::Usage);
                self.draft.facts.set(Flag::CachedApart);
                self.draft.facts.set(Flag::Early);
            }
            (Place::SequenceNumber, _) => self.draft.facts.set(Flag::Varies),
            (Place::Metrics | Place::Timings, b'{') => self.draft.facts.set(Flag::Timing),
            // A value that is not zero, `null` or `false`.
            (Place::ErrorType | Place::ErrorMessage | Place::ErrorDetail, b'1'..=b'9' | b'-' | b't') => {
                self.draft.facts.set(Flag::Error);
            }
            (Place::PromptProgress, b'{') => {
                self.draft.facts.set(Flag::Progress);
                self.engine.insert(EngineFacts::LLAMA_CPP);
            }
            (Place::PredictedN, _) => self.engine.insert(EngineFacts::LLAMA_CPP),
            (Place::VllmMark, _) => self.engine.insert(EngineFacts::VLLM),
            (Place::SglangMark, _) => self.engine.insert(EngineFacts::SGLANG),
            (Place::OllamaMark, _) => self.engine.insert(EngineFacts::OLLAMA),
            (Place::TensorrtLlmMark, _) => self.engine.insert(EngineFacts::TENSORRT_LLM),
            (Place::LmdeployMark, _) => self.engine.insert(EngineFacts::LMDEPLOY),
            (Place::TritonMark, _) => self.engine.insert(EngineFacts::TRITON),
            (Place::LightllmMark, _) => self.engine.insert(EngineFacts::LIGHTLLM),
            (Place::Nvext, b'{') => self.engine.insert(EngineFacts::DYNAMO),
            (Place::NvextTiming, b'{') => self.draft.facts.set(Flag::Timing),
            (Place::InputTokens | Place::BilledUnits, b'{') => self.draft.facts.set(Flag::Usage),
            // The engines' own APIs.
            (Place::MetaInfo, b'{') => self.response(),
            (Place::TgiToken, b'{') => self.draft.add(Place::TokenId, 1),
            (Place::Special, b't') => self.draft.facts.set(Flag::Special),
            (Place::GeneratedText, b'"' | b'n' | b'[') => {
                self.response();
                if first != b'[' {
                    self.engine.insert(EngineFacts::TGI);
                }
                if first != b'n' {
                    self.draft.facts.set(Flag::Ended);
                }
            }
            (Place::TokensPredicted, _) => self.engine.insert(EngineFacts::LLAMA_CPP),
            (Place::Stop, b't' | b'f') => {
                self.response();
                if first == b't' {
                    self.draft.facts.set(Flag::Ended);
                }
            }
            (Place::StoppedAtEnd, b't') => self.draft.finishes.push(FinishReason::Stop),
            (Place::StoppedAtLimit, b't') => self.draft.finishes.push(FinishReason::Length),
            (Place::Images, b'n') => self.engine.insert(EngineFacts::SGLANG),
            (Place::LoadNs, b'0'..=b'9') => self.engine.insert(EngineFacts::OLLAMA),
            _ => {}
        }
    }

    fn text(&mut self, place: Place, empty: bool) {
        let is_error = matches!(place, Place::Error | Place::CodedError | Place::ErrorDetail);
        self.known |= !is_error;
        if empty {
            return;
        }
        match place {
            Place::Content | Place::ContentPart | Place::CompletionText | Place::GeneratedText => {
                self.channel(Channels::CONTENT);
            }
            Place::ChatText => {
                self.draft.facts.set(Flag::Delta);
                self.channel(Channels::CONTENT);
            }
            Place::Image | Place::Images => self.draft.facts.set(Flag::Image),
            Place::Reasoning | Place::ReasoningPart => self.channel(Channels::REASONING),
            Place::FunctionText => self.channel(Channels::TOOL),
            Place::Refusal => self.channel(Channels::REFUSAL),
            Place::AudioText => self.channel(Channels::AUDIO),
            _ if is_error => self.draft.facts.set(Flag::Error),
            Place::EventDelta => self.draft.facts.set(Flag::Piece),
            Place::ItemText => self.draft.facts.set(Flag::Item),
            Place::WholeText | Place::WholePart | Place::WholeParts => self.draft.facts.set(Flag::Whole),
            _ => {}
        }
    }

    fn wants_word(&mut self, place: Place) -> bool {
        match place {
            Place::Id => self.id.begin(),
            Place::Model => self.model.begin(),
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
            _ => {
                if place == Place::ErrorType && !part.is_empty() {
                    self.draft.facts.set(Flag::Error);
                }
                self.word.push(part);
            }
        }
    }

    fn word_end(&mut self, place: Place) {
        match place {
            Place::Id => {
                self.id.settle();
                self.engine.insert(engine::of_id(self.id.bytes()));
            }
            Place::Model => {
                self.model.settle();
                self.engine.insert(engine::of_model(self.model.bytes()));
            }
            Place::ErrorCode if !reports_error(self.word.bytes()) => {}
            _ => match rank(place) {
                0 => self.word_is_complete(place),
                rank => {
                    if place == Place::ErrorCode {
                        self.draft.facts.set(Flag::Error);
                    }
                    self.error_type_is(rank);
                }
            },
        }
    }

    fn number(&mut self, place: Place, written: &[u8]) {
        let Ok(written) = std::str::from_utf8(written) else { return };
        match place {
            Place::Index => {
                if let Ok(index) = written.parse() {
                    self.draft.facts.choice = index;
                }
            }
            Place::QueueSeconds => self.duration(written, 1e3, Place::QueueMs),
            Place::TotalSeconds => self.duration(written, 1e3, Place::TotalNs),
            Place::TotalMs => self.duration(written, 1.0, Place::TotalNs),
            Place::TotalNs | Place::LoadNs => self.duration(written, 1e-6, place),
            Place::PromptNs => self.duration(written, 1e-6, Place::PromptMs),
            Place::DecodeNs => self.duration(written, 1e-6, Place::DecodeMs),
            place if place.duration_slot() < Place::DURATIONS => self.duration(written, 1.0, place),
            Place::BaseStatus => {
                if integer(written).is_some_and(|status| status != 0) {
                    self.draft.facts.set(Flag::Error);
                }
            }
            Place::ErrorNumber | Place::ErrorCode => {
                if reports_error(written.as_bytes()) {
                    self.draft.facts.set(Flag::Error);
                }
            }
            place => {
                if let Some(tokens) = integer(written) {
                    self.count(place, tokens);
                }
            }
        }
    }
}

/// True unless the code or message of an `error` is empty or reports success: some gateways always send the object.
fn reports_error(value: &[u8]) -> bool {
    let number = std::str::from_utf8(value).ok().and_then(integer);
    let no_error: [&[u8]; 5] = [b"", b"success", b"succeeded", b"ok", b"no error"];
    !matches!(number, Some(0 | 200)) && !no_error.iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// A count, which some encoders write as a floating-point number.
fn integer(written: &str) -> Option<u64> {
    let whole = || written.parse().ok().filter(|value: &f64| value.fract() == 0.0 && (0.0..1e15).contains(value));
    written.parse().ok().or_else(|| whole().map(|value| value as u64))
}

impl ResponseState {
    /// Sets a duration. `milliseconds` is the length of one unit of `written`. Negative durations are engine bugs (vLLM
    /// subtracts times of different processes) and are ignored.
    fn duration(&mut self, written: &str, milliseconds: f64, duration: Place) {
        if let Some(value) = written.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0) {
            self.draft.put_duration(duration, value * milliseconds);
            self.draft.facts.set(Flag::Timing);
        }
    }

    fn count(&mut self, place: Place, tokens: u64) {
        let draft = &mut self.draft;
        match place {
            Place::OuterReasoningTokens => draft.put_if_absent(Place::ReasoningTokens, tokens),
            Place::SpareInput => draft.put_if_absent(Place::PromptTokens, tokens),
            Place::CounterInput => draft.add_input(tokens),
            Place::CounterCached => draft.add(Place::CachedTokens, tokens),
            Place::CounterReasoning => draft.add(Place::ReasoningTokens, tokens),
            Place::TotalOutput => draft.add_output(tokens),
            Place::RunningOutput | Place::TokensPredicted => {
                draft.facts.set(Flag::Running);
                draft.add_output(tokens);
            }
            // Another name of the same count may be present but zero (new-api).
            _ if tokens == 0 => draft.put_if_absent(place, 0),
            _ => draft.put(place, tokens),
        }
    }

    /// The word is the error type, unless it is empty or a key with a higher rank has the type.
    fn error_type_is(&mut self, rank: u8) {
        if rank > self.error_rank && !self.word.bytes().is_empty() {
            self.error_rank = rank;
            self.error_type.clear();
            self.error_type.push(self.word.bytes());
            self.error_type.settle();
        }
    }

    /// Counts one choice, or one response in an engine's own API: the event's only response, or one element of an
    /// array.
    fn response(&mut self) {
        self.draft.facts.choices = self.draft.facts.choices.saturating_add(1);
    }
}

fn rank(place: Place) -> u8 {
    RANKS.iter().position(|ranked| *ranked == place).map_or(0, |place| place as u8 + 1)
}

/// Forwards all values to a [`ResponseState`], and keeps the strings that are response text. A separate type, so that
/// decoding without kept text has no extra branches.
pub(crate) struct TextKeeper<'a> {
    pub(crate) reading: &'a mut ResponseState,
    pub(crate) text: &'a mut ResponseText,
    /// The body is not streamed, so a key with the whole text does not repeat earlier pieces.
    pub(crate) whole: bool,
}

impl TextKeeper<'_> {
    /// The channel of the string at this place; `Some(None)` if `type` determines the channel. `None` for a string that
    /// is not kept: audio text, and items that repeat earlier text. Their channels are still set.
    fn channels(&self, place: Place) -> Option<Option<Channels>> {
        match place {
            Place::Content | Place::ContentPart | Place::CompletionText => Some(Some(Channels::CONTENT)),
            Place::GeneratedText if self.whole => Some(Some(Channels::CONTENT)),
            Place::Reasoning => Some(Some(Channels::REASONING)),
            Place::Refusal => Some(Some(Channels::REFUSAL)),
            Place::FunctionText => Some(Some(Channels::TOOL)),
            Place::EventDelta => Some(None),
            _ => None,
        }
    }
}

impl Sink<Place> for TextKeeper<'_> {
    fn begin(&mut self, place: Place, first: u8) {
        if place == Place::FunctionText && first == b'{' {
            // Ollama sends arguments as an object, not as the text that the model generated.
            self.text.lose(TextLost::NotPlain);
        }
        if place == Place::ReasoningPart || (place == Place::Message && !self.whole) {
            // The same event may repeat the text of its parts in `reasoning`, or the text so far in `message`.
            self.text.lose(TextLost::NotPlain);
        }
        self.reading.begin(place, first);
    }

    fn text(&mut self, place: Place, empty: bool) {
        // The same event may have the text in `delta` or `message`, too. A whole text is ignored if its pieces were sent.
        let is_whole = matches!(place, Place::WholeText | Place::WholePart | Place::WholeParts);
        let repeated = place == Place::ChatText || (is_whole && !self.reading.has_deltas);
        if repeated && !empty {
            self.text.lose(TextLost::NotPlain);
        }
        self.reading.text(place, empty);
    }

    fn wants_text(&mut self, place: Place) -> bool {
        self.text.lost().is_none() && self.channels(place).is_some()
    }

    fn wants_word(&mut self, place: Place) -> bool {
        self.reading.wants_word(place)
    }

    fn word_part(&mut self, place: Place, part: &[u8]) {
        match self.channels(place) {
            Some(_) => self.text.push(part),
            None => self.reading.word_part(place, part),
        }
    }

    fn word_end(&mut self, place: Place) {
        match self.channels(place) {
            Some(channels) => self.text.end_string(channels),
            None => self.reading.word_end(place),
        }
    }

    fn number(&mut self, place: Place, written: &[u8]) {
        self.reading.number(place, written);
    }
}
