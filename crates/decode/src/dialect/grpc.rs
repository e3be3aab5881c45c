//! gRPC services that generate tokens: the fields of their requests and responses.
//!
//! Sources of the field numbers: vLLM `rust/proto/inference.proto` (package `vllm`, 0.33); SMG (lightseekorg/smg)
//! `crates/grpc_client/proto/{vllm_engine,sglang_scheduler,trtllm_service}.proto`, used by the servers of
//! `vllm --grpc`, SGLang and TensorRT-LLM; Triton and KServe `grpc_service.proto` (triton-inference-server/common).

use crate::EngineFacts;
use crate::scan::protobuf::{Fields, Shape};

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
    pub(crate) response: &'static Fields<Field>,
    /// The mark of the engine that implements this method.
    pub(crate) engine: EngineFacts,
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
