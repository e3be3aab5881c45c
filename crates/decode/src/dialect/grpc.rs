//! gRPC services that generate tokens: the fields of their requests and responses.
//!
//! Sources of the field numbers: vLLM `rust/proto/inference.proto` (package `vllm`, 0.33); SMG (lightseekorg/smg)
//! `crates/grpc_client/proto/{vllm_engine,sglang_scheduler,trtllm_service}.proto`, used by the servers of
//! `vllm --grpc`, SGLang and TensorRT-LLM; Triton and KServe `grpc_service.proto` (triton-inference-server/common).

use super::Place;
use crate::response::{Flag, ResponseState};
use crate::scan::protobuf::{Fields, Scanner, Shape, Sink};
use crate::scan::{Capture, Sink as _};
use crate::{Channels, EngineFacts, FinishReason, StreamEvent};

/// The known fields of a message: field number, type and meaning.
macro_rules! fields {
    ($field:ident { $($number:literal: $shape:ident($meaning:ident $(, $inner:tt)?)),* $(,)? }) => {
        Fields(&[$(($number, Shape::$shape($field::$meaning $(, &fields!($field $inner))?))),*])
    };
}

/// A gRPC method that generates tokens.
#[derive(Debug)]
pub(crate) struct Method {
    /// Known request fields.
    pub(crate) request: &'static Fields<RequestField>,
    /// Known response fields.
    response: &'static Fields<Field>,
    /// The mark of the engine that implements this method.
    engine: EngineFacts,
    /// The response is a message stream, even if it has only one message.
    pub(crate) streams: bool,
}

pub(crate) static VLLM: Method =
    Method { request: &VLLM_REQUEST, response: &VLLM_RESPONSE, engine: EngineFacts::VLLM, streams: false };

pub(crate) static VLLM_STREAM: Method =
    Method { request: &VLLM_REQUEST, response: &VLLM_RESPONSE, engine: EngineFacts::VLLM, streams: true };

pub(crate) static VLLM_ENGINE: Method =
    Method { request: &VLLM_ENGINE_REQUEST, response: &VLLM_ENGINE_RESPONSE, engine: EngineFacts::VLLM, streams: true };

pub(crate) static SGLANG: Method =
    Method { request: &SGLANG_REQUEST, response: &SGLANG_RESPONSE, engine: EngineFacts::SGLANG, streams: true };

pub(crate) static TENSORRT_LLM: Method = Method {
    request: &TENSORRT_LLM_REQUEST,
    response: &TENSORRT_LLM_RESPONSE,
    engine: EngineFacts::TENSORRT_LLM,
    streams: true,
};

pub(crate) static TRITON: Method =
    Method { request: &TRITON_REQUEST, response: &TRITON_RESPONSE, engine: EngineFacts::NONE, streams: false };

pub(crate) static TRITON_STREAM: Method =
    Method { request: &TRITON_REQUEST, response: &TRITON_STREAM_RESPONSE, engine: EngineFacts::NONE, streams: true };

/// A known field of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestField {
    /// A message that only groups other fields.
    Options,
    Model,
    /// Choices per prompt.
    N,
    /// Output tokens per choice.
    MaxTokens,
    Stream,
}

static VLLM_REQUEST: Fields<RequestField> = fields!(RequestField {
    2: Bytes(Model),
    6: Message(Options, { 1: Number(N) }),
    8: Message(Options, { 1: Number(MaxTokens) }),
});

static VLLM_ENGINE_REQUEST: Fields<RequestField> = fields!(RequestField {
    4: Message(Options, { 8: Number(MaxTokens), 15: Number(N) }),
    5: Number(Stream),
});

static SGLANG_REQUEST: Fields<RequestField> = fields!(RequestField {
    4: Message(Options, { 8: Number(MaxTokens), 17: Number(N) }),
    17: Number(Stream),
});

static TENSORRT_LLM_REQUEST: Fields<RequestField> = fields!(RequestField {
    3: Message(Options, { 2: Number(N) }),
    5: Number(MaxTokens),
    6: Number(Stream),
});

static TRITON_REQUEST: Fields<RequestField> = fields!(RequestField { 1: Bytes(Model) });

/// A known field of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// A message that only groups other fields.
    Plain,
    /// New tokens of one sequence.
    Chunk,
    /// The end of a sequence, with all its tokens.
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
    /// A tensor: its name and contents.
    Tensor,
    TensorName,
    TensorText,
    /// The raw contents of one tensor; tensors are in the order of their descriptions.
    RawTensor,
}

/// The name of the text tensor in Triton's vLLM and TensorRT-LLM backends.
const TEXT_TENSOR: &[u8] = b"text_output";

/// The parameter that marks the last response to a request.
const FINAL_RESPONSE: &[u8] = b"triton_final_response";

static VLLM_RESPONSE: Fields<Field> = fields!(Field {
    1: Message(Plain, { 1: Number(PromptTokens) }),
    2: Message(Chunk, {
        1: Number(Index), 2: Bytes(Text), 3: Number(NewTokens),
        8: Message(Plain, { 1: Number(OutputTokens), 2: Number(FinishCode) }),
    }),
});

static VLLM_ENGINE_RESPONSE: Fields<Field> = fields!(Field {
    1: Message(Chunk, {
        1: Number(TokenId), 2: Number(PromptTokens), 3: Number(OutputTokens), 4: Number(CachedTokens),
        7: Number(Index),
    }),
    2: Message(Complete, {
        2: Bytes(Finish), 3: Number(PromptTokens), 4: Number(OutputTokens), 5: Number(CachedTokens),
        8: Number(Index),
    }),
});

static SGLANG_RESPONSE: Fields<Field> = fields!(Field {
    1: Bytes(Id),
    2: Message(Chunk, {
        1: Number(TokenId), 2: Number(PromptTokens), 3: Number(OutputTokens), 4: Number(CachedTokens),
        8: Number(Index), 9: Number(ReasoningTokens),
    }),
    3: Message(Complete, {
        2: Bytes(Finish), 3: Number(PromptTokens), 4: Number(OutputTokens), 5: Number(CachedTokens),
        11: Number(Index), 12: Number(ReasoningTokens),
    }),
});

static TENSORRT_LLM_RESPONSE: Fields<Field> = fields!(Field {
    1: Bytes(Id),
    2: Message(Chunk, {
        1: Number(TokenId), 2: Number(Index), 3: Number(PromptTokens), 4: Number(OutputTokens),
        5: Number(CachedTokens),
    }),
    3: Message(Complete, {
        2: Number(Index), 3: Bytes(Finish), 5: Number(PromptTokens), 6: Number(OutputTokens),
        7: Number(CachedTokens),
    }),
});

static TRITON_RESPONSE: Fields<Field> = fields!(Field {
    1: Bytes(Model),
    3: Bytes(Id),
    4: Message(Parameter, { 1: Bytes(ParameterName), 2: Message(Plain, { 1: Number(ParameterFlag) }) }),
    5: Message(Tensor, { 1: Bytes(TensorName), 5: Message(Plain, { 8: Bytes(TensorText) }) }),
    6: Bytes(RawTensor),
});

static TRITON_STREAM_RESPONSE: Fields<Field> =
    Fields(&[(1, Shape::Bytes(Field::ErrorMessage)), (2, Shape::Message(Field::Plain, &TRITON_RESPONSE))]);

/// Decodes the messages of one response.
#[derive(Clone, Debug)]
pub(crate) struct GrpcResponse {
    scanner: Scanner<Field>,
    engine: EngineFacts,
    message: Message,
    /// A name or finish reason. Longer values are truncated and so match no known word.
    word: Capture<24>,
}

/// State of the current message that is not part of the event's draft.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// The current word is kept.
    wanted: bool,
    /// Number of tensor descriptions, and of raw tensors, in the message so far.
    described: u8,
    raw: u8,
    /// The index of the text tensor.
    text: Option<u8>,
    /// The name of the current parameter is [`FINAL_RESPONSE`].
    at_final: bool,
    /// This is the last response.
    is_final: bool,
    /// At least one tensor is not empty.
    filled: bool,
}

impl GrpcResponse {
    /// Decoder for responses of this method.
    pub(crate) fn new(method: &Method) -> GrpcResponse {
        let scanner = Scanner::new(method.response);
        GrpcResponse { scanner, engine: method.engine, message: Message::default(), word: Capture::default() }
    }

    /// Processes the next bytes of a message.
    pub(crate) fn feed(&mut self, bytes: &[u8], reading: &mut ResponseState) {
        let GrpcResponse { scanner, message, word, .. } = self;
        scanner.feed(bytes, &mut Taking { reading, message, word });
    }

    /// Ends the message and returns its event.
    pub(crate) fn end_message(&mut self, reading: &mut ResponseState) -> StreamEvent {
        reading.mark(self.engine);
        let whole = self.scanner.finish();
        let Message { is_final, filled, text, .. } = std::mem::take(&mut self.message);
        let event = reading.take(!whole);
        StreamEvent { end: event.end || is_final, unread: filled && text.is_none(), ..event }
    }
}

/// Fills the event's draft with the values that the scanner finds.
struct Taking<'a> {
    reading: &'a mut ResponseState,
    message: &'a mut Message,
    word: &'a mut Capture<24>,
}

impl Taking<'_> {
    fn usage(&mut self, count: Place, value: u64) {
        let draft = self.reading.draft();
        draft.facts.set(Flag::Usage);
        draft.put(count, value);
    }

    fn word_of(spot: Field) -> Option<Place> {
        match spot {
            Field::Id => Some(Place::Id),
            Field::Model => Some(Place::Model),
            Field::Finish => Some(Place::FinishReason),
            _ => None,
        }
    }
}

impl Sink<Field> for Taking<'_> {
    fn begin(&mut self, spot: Field, length: u64) {
        match spot {
            Field::Chunk | Field::Complete => {
                self.reading.begin(Place::CompletionChoice, b'{');
                if spot == Field::Chunk {
                    self.reading.draft().add(Place::TokenId, 0);
                }
            }
            Field::Text if length > 0 => self.reading.draft().facts.channels.insert(Channels::CONTENT),
            Field::ErrorMessage if length > 0 => self.reading.draft().facts.set(Flag::Error),
            Field::Parameter => self.message.at_final = false,
            Field::TensorText if length > 0 => {
                self.message.filled = true;
                if self.message.text.map(|text| text + 1) == Some(self.message.described) {
                    self.reading.draft().facts.channels.insert(Channels::CONTENT);
                }
            }
            Field::Tensor => self.message.described = self.message.described.saturating_add(1),
            Field::RawTensor => self.message.raw = self.message.raw.saturating_add(1),
            Field::ParameterName | Field::TensorName => self.word.clear(),
            _ => {
                if let Some(place) = Self::word_of(spot) {
                    self.message.wanted = self.reading.wants_word(place);
                }
            }
        }
    }

    fn part(&mut self, spot: Field, part: &[u8]) {
        match spot {
            Field::ParameterName | Field::TensorName => self.word.push(part),
            Field::RawTensor => {
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

    fn end(&mut self, spot: Field) {
        match spot {
            Field::ParameterName => self.message.at_final = self.word.bytes() == FINAL_RESPONSE,
            Field::TensorName if self.word.bytes() == TEXT_TENSOR => {
                self.message.text = self.message.described.checked_sub(1);
            }
            _ => {
                if let Some(place) = Self::word_of(spot).filter(|_| self.message.wanted) {
                    self.reading.word_end(place);
                }
            }
        }
    }

    fn number(&mut self, spot: Field, value: u64) {
        match spot {
            Field::Index => self.reading.draft().facts.choice = u32::try_from(value).unwrap_or(u32::MAX),
            Field::TokenId => self.reading.draft().add(Place::TokenId, 1),
            Field::NewTokens => self.reading.draft().add(Place::TokenId, value),
            Field::PromptTokens => self.usage(Place::PromptTokens, value),
            Field::OutputTokens => self.usage(Place::CompletionTokens, value),
            Field::CachedTokens => self.usage(Place::CachedTokens, value),
            Field::ReasoningTokens => self.usage(Place::ReasoningTokens, value),
            Field::FinishCode => {
                let reason = match value {
                    0 => return,
                    1 => FinishReason::Length,
                    2 => FinishReason::Stop,
                    3 => FinishReason::Abort,
                    _ => FinishReason::Other,
                };
                self.reading.draft().finishes.push(reason);
            }
            Field::ParameterFlag if self.message.at_final => self.message.is_final |= value != 0,
            _ => {}
        }
    }
}
