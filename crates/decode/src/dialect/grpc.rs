//! Responses of the generating gRPC services: the meaning of their fields.
//!
//! Sources of the field numbers: vLLM `rust/proto/inference.proto` (package `vllm`, 0.33); SMG (lightseekorg/smg)
//! `crates/grpc_client/proto/{vllm_engine,sglang_scheduler,trtllm_service}.proto`, used by the servers of
//! `vllm --grpc`, SGLang and TensorRT-LLM; Triton and KServe `grpc_service.proto` (triton-inference-server/common).

use super::Capture;
use super::Place;
use super::Reading;
use super::draft::Flag;
use super::draft::Number;
use crate::Channels;
use crate::EngineFacts;
use crate::FinishReason;
use crate::Route;
use crate::StreamEvent;
use crate::scan::Sink as _;
use crate::scan::protobuf::Fields;
use crate::scan::protobuf::Scanner;
use crate::scan::protobuf::Shape;
use crate::scan::protobuf::Sink;

/// A known field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// A message that only contains others.
    Plain,
    /// New tokens of one sequence.
    Chunk,
    /// The end of one sequence, with all of its tokens.
    Complete,
    /// The index of the sequence.
    Index,
    /// One new token.
    TokenId,
    /// The number of new tokens.
    NewTokens,
    Text,
    PromptTokens,
    OutputTokens,
    CachedTokens,
    ReasoningTokens,
    /// A finish reason as text.
    Finish,
    /// A finish reason from vLLM's enumeration.
    FinishCode,
    Id,
    Model,
    ErrorMessage,
    /// A Triton parameter: a key and its value.
    Parameter,
    ParameterName,
    ParameterFlag,
    /// A tensor: its name and its contents.
    Tensor,
    TensorName,
    TensorText,
    /// The raw contents of the tensors, in their order.
    RawTensor,
}

/// The name of the text tensor in Triton's vLLM and TensorRT-LLM backends.
const TEXT_TENSOR: &[u8] = b"text_output";

/// The parameter that marks the last response to a request.
const FINAL_RESPONSE: &[u8] = b"triton_final_response";

static VLLM: Fields<Spot> = Fields(&[
    (1, Shape::Message(Spot::Plain, &Fields(&[(1, Shape::Number(Spot::PromptTokens))]))),
    (
        2,
        Shape::Message(
            Spot::Chunk,
            &Fields(&[
                (1, Shape::Number(Spot::Index)),
                (2, Shape::Bytes(Spot::Text)),
                (3, Shape::Number(Spot::NewTokens)),
                (
                    8,
                    Shape::Message(
                        Spot::Plain,
                        &Fields(&[(1, Shape::Number(Spot::OutputTokens)), (2, Shape::Number(Spot::FinishCode))]),
                    ),
                ),
            ]),
        ),
    ),
]);

static VLLM_ENGINE: Fields<Spot> = Fields(&[
    (
        1,
        Shape::Message(
            Spot::Chunk,
            &Fields(&[
                (1, Shape::Number(Spot::TokenId)),
                (2, Shape::Number(Spot::PromptTokens)),
                (3, Shape::Number(Spot::OutputTokens)),
                (4, Shape::Number(Spot::CachedTokens)),
                (7, Shape::Number(Spot::Index)),
            ]),
        ),
    ),
    (
        2,
        Shape::Message(
            Spot::Complete,
            &Fields(&[
                (2, Shape::Bytes(Spot::Finish)),
                (3, Shape::Number(Spot::PromptTokens)),
                (4, Shape::Number(Spot::OutputTokens)),
                (5, Shape::Number(Spot::CachedTokens)),
                (8, Shape::Number(Spot::Index)),
            ]),
        ),
    ),
]);

static SGLANG: Fields<Spot> = Fields(&[
    (1, Shape::Bytes(Spot::Id)),
    (
        2,
        Shape::Message(
            Spot::Chunk,
            &Fields(&[
                (1, Shape::Number(Spot::TokenId)),
                (2, Shape::Number(Spot::PromptTokens)),
                (3, Shape::Number(Spot::OutputTokens)),
                (4, Shape::Number(Spot::CachedTokens)),
                (8, Shape::Number(Spot::Index)),
                (9, Shape::Number(Spot::ReasoningTokens)),
            ]),
        ),
    ),
    (
        3,
        Shape::Message(
            Spot::Complete,
            &Fields(&[
                (2, Shape::Bytes(Spot::Finish)),
                (3, Shape::Number(Spot::PromptTokens)),
                (4, Shape::Number(Spot::OutputTokens)),
                (5, Shape::Number(Spot::CachedTokens)),
                (11, Shape::Number(Spot::Index)),
                (12, Shape::Number(Spot::ReasoningTokens)),
            ]),
        ),
    ),
]);

static TENSORRT_LLM: Fields<Spot> = Fields(&[
    (1, Shape::Bytes(Spot::Id)),
    (
        2,
        Shape::Message(
            Spot::Chunk,
            &Fields(&[
                (1, Shape::Number(Spot::TokenId)),
                (2, Shape::Number(Spot::Index)),
                (3, Shape::Number(Spot::PromptTokens)),
                (4, Shape::Number(Spot::OutputTokens)),
                (5, Shape::Number(Spot::CachedTokens)),
            ]),
        ),
    ),
    (
        3,
        Shape::Message(
            Spot::Complete,
            &Fields(&[
                (2, Shape::Number(Spot::Index)),
                (3, Shape::Bytes(Spot::Finish)),
                (5, Shape::Number(Spot::PromptTokens)),
                (6, Shape::Number(Spot::OutputTokens)),
                (7, Shape::Number(Spot::CachedTokens)),
            ]),
        ),
    ),
]);

static TRITON: Fields<Spot> = Fields(&[
    (1, Shape::Bytes(Spot::Model)),
    (3, Shape::Bytes(Spot::Id)),
    (
        4,
        Shape::Message(
            Spot::Parameter,
            &Fields(&[
                (1, Shape::Bytes(Spot::ParameterName)),
                (2, Shape::Message(Spot::Plain, &Fields(&[(1, Shape::Number(Spot::ParameterFlag))]))),
            ]),
        ),
    ),
    (
        5,
        Shape::Message(
            Spot::Tensor,
            &Fields(&[
                (1, Shape::Bytes(Spot::TensorName)),
                (5, Shape::Message(Spot::Plain, &Fields(&[(8, Shape::Bytes(Spot::TensorText))]))),
            ]),
        ),
    ),
    (6, Shape::Bytes(Spot::RawTensor)),
]);

static TRITON_STREAM: Fields<Spot> =
    Fields(&[(1, Shape::Bytes(Spot::ErrorMessage)), (2, Shape::Message(Spot::Plain, &TRITON))]);

/// The response fields of this route, and the engine they identify.
fn fields(route: Route) -> Option<(&'static Fields<Spot>, EngineFacts)> {
    match route {
        Route::VllmInference | Route::VllmInferenceStream => Some((&VLLM, EngineFacts::VLLM)),
        Route::VllmEngine => Some((&VLLM_ENGINE, EngineFacts::VLLM)),
        Route::SglangScheduler => Some((&SGLANG, EngineFacts::SGLANG)),
        Route::TensorrtService => Some((&TENSORRT_LLM, EngineFacts::TENSORRT_LLM)),
        Route::TritonInfer => Some((&TRITON, EngineFacts::NONE)),
        Route::TritonInferStream => Some((&TRITON_STREAM, EngineFacts::NONE)),
        _ => None,
    }
}

/// Decodes the messages of one response.
#[derive(Clone, Debug)]
pub(crate) struct GrpcAnswer {
    scanner: Scanner<Spot>,
    engine: EngineFacts,
    message: Message,
    /// A name or a finish reason; longer ones are truncated, and so match no known word.
    word: Capture<24>,
}

/// State of the current message that is not part of the event's draft.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// The current word is to be kept.
    wanted: bool,
    /// Number of tensors described so far, and of tensors in raw form so far.
    described: u8,
    raw: u8,
    /// The index of the text tensor.
    text: Option<u8>,
    /// The current parameter marks the last response.
    at_final: bool,
    /// This is the last response.
    is_final: bool,
    /// Some tensor is not empty.
    filled: bool,
}

impl GrpcAnswer {
    /// Decoder for responses on this route; `None` if it is not a gRPC route.
    pub(crate) fn new(route: Route) -> Option<GrpcAnswer> {
        let (fields, engine) = fields(route)?;
        let scanner = Scanner::new(fields);
        Some(GrpcAnswer { scanner, engine, message: Message::default(), word: Capture::new() })
    }

    /// Takes the next bytes of a message.
    pub(crate) fn feed(&mut self, bytes: &[u8], reading: &mut Reading) {
        let GrpcAnswer { scanner, message, word, .. } = self;
        scanner.feed(bytes, &mut Taking { reading, message, word });
    }

    /// Ends the message and returns its event.
    pub(crate) fn end_message(&mut self, reading: &mut Reading) -> StreamEvent {
        reading.mark(self.engine);
        let whole = self.scanner.finish();
        let Message { is_final, filled, text, .. } = std::mem::take(&mut self.message);
        let event = reading.take(!whole);
        StreamEvent { end: event.end || is_final, unread: filled && text.is_none(), ..event }
    }
}

/// Fills the event's draft with the values that the scanner finds.
struct Taking<'a> {
    reading: &'a mut Reading,
    message: &'a mut Message,
    word: &'a mut Capture<24>,
}

impl Taking<'_> {
    fn usage(&mut self, number: Number, value: u64) {
        let draft = self.reading.draft();
        draft.facts.set(Flag::Usage);
        draft.put(number, value);
    }

    fn word_of(spot: Spot) -> Option<Place> {
        match spot {
            Spot::Id => Some(Place::Id),
            Spot::Model => Some(Place::Model),
            Spot::Finish => Some(Place::FinishReason),
            _ => None,
        }
    }
}

impl Sink<Spot> for Taking<'_> {
    fn begin(&mut self, spot: Spot, length: u64) {
        match spot {
            Spot::Chunk | Spot::Complete => {
                self.reading.begin(Place::CompletionChoice, b'{');
                if spot == Spot::Chunk {
                    self.reading.draft().add(Number::TokenIds, 0);
                }
            }
            Spot::Text if length > 0 => self.reading.draft().facts.channels.insert(Channels::CONTENT),
            Spot::ErrorMessage if length > 0 => self.reading.draft().facts.set(Flag::Error),
            Spot::Parameter => self.message.at_final = false,
            Spot::TensorText if length > 0 => {
                self.message.filled = true;
                if self.message.text.map(|text| text + 1) == Some(self.message.described) {
                    self.reading.draft().facts.channels.insert(Channels::CONTENT);
                }
            }
            Spot::Tensor => self.message.described = self.message.described.saturating_add(1),
            Spot::RawTensor => self.message.raw = self.message.raw.saturating_add(1),
            Spot::ParameterName | Spot::TensorName => self.word.clear(),
            _ => {
                if let Some(place) = Self::word_of(spot) {
                    self.message.wanted = self.reading.wants_word(place);
                }
            }
        }
    }

    fn part(&mut self, spot: Spot, part: &[u8]) {
        match spot {
            Spot::ParameterName | Spot::TensorName => self.word.push(part),
            Spot::RawTensor => {
                // Strings are encoded with their lengths, so all bytes are 0 only if all strings are empty.
                let filled = part.iter().any(|byte| *byte != 0);
                self.message.filled |= filled;
                if filled && self.message.text.map(|text| text + 1) == Some(self.message.raw) {
                    self.reading.draft().facts.channels.insert(Channels::CONTENT);
                }
            }
            _ => {
                if let Some(place) = Self::word_of(spot).filter(|_| self.message.wanted) {
                    self.reading.word_part(place, part);
                }
            }
        }
    }

    fn end(&mut self, spot: Spot) {
        match spot {
            Spot::ParameterName => self.message.at_final = self.word.bytes() == FINAL_RESPONSE,
            Spot::TensorName if self.word.bytes() == TEXT_TENSOR => {
                self.message.text = self.message.described.checked_sub(1);
            }
            _ => {
                if let Some(place) = Self::word_of(spot).filter(|_| self.message.wanted) {
                    self.reading.word_end(place);
                }
            }
        }
    }

    fn number(&mut self, spot: Spot, value: u64) {
        match spot {
            Spot::Index => self.reading.draft().facts.choice = u32::try_from(value).unwrap_or(u32::MAX),
            Spot::TokenId => self.reading.draft().add(Number::TokenIds, 1),
            Spot::NewTokens => self.reading.draft().add(Number::TokenIds, value),
            Spot::PromptTokens => self.usage(Number::Input, value),
            Spot::OutputTokens => self.usage(Number::Output, value),
            Spot::CachedTokens => self.usage(Number::Cached, value),
            Spot::ReasoningTokens => self.usage(Number::Reasoning, value),
            Spot::FinishCode => {
                let reason = match value {
                    0 => return,
                    1 => FinishReason::Length,
                    2 => FinishReason::Stop,
                    3 => FinishReason::Abort,
                    _ => FinishReason::Other,
                };
                self.reading.draft().finishes.push(reason);
            }
            Spot::ParameterFlag if self.message.at_final => self.message.is_final |= value != 0,
            _ => {}
        }
    }
}
