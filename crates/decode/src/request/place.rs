//! The known places in a request body.

use super::shapes::Shapes;
use crate::scan;
use crate::scan::Keys;
use crate::scan::Shape;

/// A known place in a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Unread,
    Body,
    Model,
    Stream,
    N,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    StreamOptions,
    IncludeUsage,
    ContinuousUsage,
    ReturnTokenIds,
    Echo,
    Prompt,
    PromptItem,
    Documents,
    Document,
    Sampling,
    /// A key that distinguishes the APIs.
    Telling(Shapes),
    /// `instances`: several requests in one (Vertex AI).
    Instances,
    Instance,
    InstanceSampling,
    InstanceMaxTokens,
    Parameters,
    /// `parameters.stream`, which applies to all instances
    ParametersStream,
}

static BODY: Keys<Place> = Keys::new(&[
    ("model", Place::Model),
    ("stream", Place::Stream),
    ("stream_options", Place::StreamOptions),
    ("max_tokens", Place::MaxTokens),
    ("max_completion_tokens", Place::MaxCompletionTokens),
    ("max_output_tokens", Place::MaxOutputTokens),
    ("n", Place::N),
    ("prompt", Place::Prompt),
    ("echo", Place::Echo),
    ("return_token_ids", Place::ReturnTokenIds),
    // The engines' own routes.
    ("n_predict", Place::MaxCompletionTokens),
    ("n_cmpl", Place::N),
    ("text", Place::Prompt),
    ("input_ids", Place::Prompt),
    ("sampling_params", Place::Sampling),
    ("parameters", Place::Parameters),
    ("options", Place::Sampling),
    // Keys that distinguish the APIs of a shared path.
    ("messages", Place::Telling(Shapes::MESSAGES)),
    ("input", Place::Telling(Shapes::INPUT)),
    ("inputs", Place::Telling(Shapes::INPUTS)),
    ("query", Place::Telling(Shapes::QUERY)),
    ("documents", Place::Documents),
    ("text_1", Place::Telling(Shapes::TEXT_1)),
    ("instances", Place::Instances),
]);

/// SGLang `sampling_params`, Ollama `options`.
static SAMPLING: Keys<Place> = Keys::new(&[
    ("max_new_tokens", Place::MaxCompletionTokens),
    ("num_predict", Place::MaxCompletionTokens),
    ("n", Place::N),
]);

/// `parameters` of TGI, and of SGLang's `/vertex_generate`, where it holds everything except the prompts.
static PARAMETERS: Keys<Place> = Keys::new(&[
    ("max_new_tokens", Place::MaxCompletionTokens),
    ("n", Place::N),
    ("sampling_params", Place::Sampling),
    ("stream", Place::ParametersStream),
]);

/// `instances[]`: a prompt in SGLang's `/vertex_generate` (python/sglang/srt/entrypoints/http_server.py), a full
/// request in TGI's `/vertex` (router/src/vertex.rs).
static INSTANCE: Keys<Place> = Keys::new(&[
    ("text", Place::Telling(Shapes::INSTANCE_TEXT)),
    ("input_ids", Place::Telling(Shapes::INSTANCE_TEXT)),
    ("input_embeds", Place::Telling(Shapes::INSTANCE_TEXT)),
    ("inputs", Place::Telling(Shapes::INSTANCE_INPUTS)),
    ("messages", Place::Telling(Shapes::INSTANCE_MESSAGES)),
    ("parameters", Place::InstanceSampling),
    ("max_tokens", Place::InstanceMaxTokens),
]);

/// `instances[].parameters`
static INSTANCE_SAMPLING: Keys<Place> = Keys::new(&[("max_new_tokens", Place::InstanceMaxTokens)]);

static STREAM_OPTIONS: Keys<Place> =
    Keys::new(&[("include_usage", Place::IncludeUsage), ("continuous_usage_stats", Place::ContinuousUsage)]);

impl scan::Place for Place {
    fn shape(self) -> Shape<Place> {
        match self {
            Place::Body => Shape::Object(&BODY),
            Place::StreamOptions => Shape::Object(&STREAM_OPTIONS),
            Place::Sampling => Shape::Object(&SAMPLING),
            Place::Parameters => Shape::Object(&PARAMETERS),
            Place::Instances => Shape::Array(Place::Instance),
            Place::Instance => Shape::Object(&INSTANCE),
            Place::InstanceSampling => Shape::Object(&INSTANCE_SAMPLING),
            Place::Prompt => Shape::Array(Place::PromptItem),
            Place::Documents => Shape::Array(Place::Document),
            Place::Model => Shape::Word,
            Place::N
            | Place::MaxTokens
            | Place::MaxCompletionTokens
            | Place::MaxOutputTokens
            | Place::InstanceMaxTokens => Shape::Number,
            Place::Unread
            | Place::Stream
            | Place::IncludeUsage
            | Place::ContinuousUsage
            | Place::ReturnTokenIds
            | Place::Echo
            | Place::Telling(_)
            | Place::PromptItem
            | Place::Document
            | Place::ParametersStream => Shape::Mark,
        }
    }
}
