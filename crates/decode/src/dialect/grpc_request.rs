//! Requests of the generating gRPC services; for the sources see `grpc`.

use crate::Route;
use crate::scan::protobuf::Fields;
use crate::scan::protobuf::Shape;

/// A known field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// A message that only contains others.
    Options,
    Model,
    /// Choices per prompt.
    N,
    /// Output tokens per choice.
    MaxTokens,
    Stream,
}

static VLLM: Fields<Asks> = Fields(&[
    (2, Shape::Bytes(Asks::Model)),
    (6, Shape::Message(Asks::Options, &Fields(&[(1, Shape::Number(Asks::N))]))),
    (8, Shape::Message(Asks::Options, &Fields(&[(1, Shape::Number(Asks::MaxTokens))]))),
]);

static VLLM_ENGINE: Fields<Asks> = Fields(&[
    (4, Shape::Message(Asks::Options, &Fields(&[(8, Shape::Number(Asks::MaxTokens)), (15, Shape::Number(Asks::N))]))),
    (5, Shape::Number(Asks::Stream)),
]);

static SGLANG: Fields<Asks> = Fields(&[
    (4, Shape::Message(Asks::Options, &Fields(&[(8, Shape::Number(Asks::MaxTokens)), (17, Shape::Number(Asks::N))]))),
    (17, Shape::Number(Asks::Stream)),
]);

static TENSORRT_LLM: Fields<Asks> = Fields(&[
    (3, Shape::Message(Asks::Options, &Fields(&[(2, Shape::Number(Asks::N))]))),
    (5, Shape::Number(Asks::MaxTokens)),
    (6, Shape::Number(Asks::Stream)),
]);

static TRITON: Fields<Asks> = Fields(&[(1, Shape::Bytes(Asks::Model))]);

/// The request fields of this route; `None` if it is not a gRPC route.
pub(crate) fn asks(route: Route) -> Option<&'static Fields<Asks>> {
    match route {
        Route::VllmInference | Route::VllmInferenceStream => Some(&VLLM),
        Route::VllmEngine => Some(&VLLM_ENGINE),
        Route::SglangScheduler => Some(&SGLANG),
        Route::TensorrtService => Some(&TENSORRT_LLM),
        Route::TritonInfer | Route::TritonInferStream => Some(&TRITON),
        _ => None,
    }
}
