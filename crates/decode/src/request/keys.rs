//! The known places in a request body, and how its keys determine the API.

use super::limits::Limits;
use crate::scan::{Keys, Shape};
use crate::{Route, scan};

/// A known place in a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Unread,
    Body,
    Model,
    Stream,
    N,
    /// A limit on output tokens.
    Limit(Limits),
    Echo,
    Prompt,
    PromptItem,
    Documents,
    Document,
    Sampling,
    /// A key that distinguishes the APIs.
    Distinct(Shapes),
    /// `instances`: several requests in one (Vertex AI).
    Instances,
    Instance,
    InstanceSampling,
    Options,
    Parameters,
    /// `parameters.stream`, which applies to all instances
    ParametersStream,
    /// `kv_transfer_params` (vLLM)
    KvTransfer,
    /// `kv_transfer_params.do_remote_decode`
    RemoteDecode,
    /// `disaggregated_params` (TensorRT-LLM)
    Disaggregated,
    /// `disaggregated_params.request_type`
    RequestType,
    /// A key that Go's JSON decoder takes for `stream`, and other decoders do not.
    OddStream,
    /// The same for a key that leads to a limit.
    OddLimit,
}

static BODY: Keys<Place> = Keys::new(&[
    ("model", Place::Model),
    ("stream", Place::Stream),
    ("max_tokens", Place::Limit(Limits::MAX_TOKENS)),
    ("max_completion_tokens", Place::Limit(Limits::MAX_COMPLETION_TOKENS.and(Limits::OF_COMPLETIONS))),
    ("max_output_tokens", Place::Limit(Limits::MAX_OUTPUT_TOKENS)),
    ("n", Place::N),
    ("prompt", Place::Prompt),
    ("echo", Place::Echo),
    // The engines' own routes.
    ("n_predict", Place::Limit(Limits::N_PREDICT)),
    ("n_cmpl", Place::N),
    ("text", Place::Prompt),
    ("input_ids", Place::Prompt),
    ("sampling_params", Place::Sampling),
    ("parameters", Place::Parameters),
    ("options", Place::Options),
    // A text with all parameters, which overrides the others (Triton's vLLM backend).
    ("sampling_parameters", Place::Limit(Limits::PARAMETERS)),
    // Keys that distinguish the APIs of a shared path.
    ("messages", Place::Distinct(Shapes::MESSAGES)),
    ("input", Place::Distinct(Shapes::INPUT)),
    ("inputs", Place::Distinct(Shapes::INPUTS)),
    ("query", Place::Distinct(Shapes::QUERY)),
    ("documents", Place::Documents),
    ("text_1", Place::Distinct(Shapes::TEXT_1)),
    ("instances", Place::Instances),
    ("kv_transfer_params", Place::KvTransfer),
    ("disaggregated_params", Place::Disaggregated),
]);

/// `kv_transfer_params`, as vLLM's NIXL connector and llm-d's routing proxy use them.
static KV_TRANSFER: Keys<Place> = Keys::new(&[("do_remote_decode", Place::RemoteDecode)]);

/// `disaggregated_params` (TensorRT-LLM 1.2, tensorrt_llm/serve/openai_protocol.py)
static DISAGGREGATED: Keys<Place> = Keys::new(&[("request_type", Place::RequestType)]);

/// `sampling_params` of SGLang, and of vLLM's `/inference/v1/generate`.
static SAMPLING: Keys<Place> = Keys::new(&[
    ("max_new_tokens", Place::Limit(Limits::MAX_NEW_TOKENS)),
    ("max_tokens", Place::Limit(Limits::SAMPLING_MAX_TOKENS)),
    ("n", Place::N),
]);

/// Ollama `options`.
static OPTIONS: Keys<Place> = Keys::new(&[("num_predict", Place::Limit(Limits::NUM_PREDICT))]);

/// `parameters` of TGI and Triton, and of SGLang's `/vertex_generate`, where it contains everything except the prompts.
static PARAMETERS: Keys<Place> = Keys::new(&[
    ("max_new_tokens", Place::Limit(Limits::PARAMETERS)),
    ("max_tokens", Place::Limit(Limits::PARAMETERS)),
    ("n", Place::N),
    ("sampling_params", Place::Sampling),
    ("stream", Place::ParametersStream),
]);

/// `instances[]`: a prompt in SGLang's `/vertex_generate` (python/sglang/srt/entrypoints/http_server.py), a full
/// request in TGI's `/vertex` (router/src/vertex.rs).
static INSTANCE: Keys<Place> = Keys::new(&[
    ("text", Place::Distinct(Shapes::INSTANCE_TEXT)),
    ("input_ids", Place::Distinct(Shapes::INSTANCE_TEXT)),
    ("input_embeds", Place::Distinct(Shapes::INSTANCE_TEXT)),
    ("inputs", Place::Distinct(Shapes::INSTANCE_INPUTS)),
    ("messages", Place::Distinct(Shapes::INSTANCE_MESSAGES)),
    ("parameters", Place::InstanceSampling),
    ("max_tokens", Place::Limit(Limits::INSTANCE)),
]);

/// `instances[].parameters`
static INSTANCE_SAMPLING: Keys<Place> = Keys::new(&[("max_new_tokens", Place::Limit(Limits::INSTANCE))]);

impl scan::Place for Place {
    fn shape(self) -> Shape<Place> {
        match self {
            Place::Body => Shape::Object(&BODY),
            Place::Sampling => Shape::Object(&SAMPLING),
            Place::Options => Shape::Object(&OPTIONS),
            Place::Parameters => Shape::Object(&PARAMETERS),
            Place::KvTransfer => Shape::Object(&KV_TRANSFER),
            Place::Disaggregated => Shape::Object(&DISAGGREGATED),
            Place::RequestType => Shape::Word,
            Place::Instances => Shape::Array(Place::Instance),
            Place::Instance => Shape::Object(&INSTANCE),
            Place::InstanceSampling => Shape::Object(&INSTANCE_SAMPLING),
            Place::Prompt => Shape::Array(Place::PromptItem),
            Place::Documents => Shape::Array(Place::Document),
            Place::Model => Shape::Word,
            Place::N | Place::Limit(_) => Shape::Number,
            _ => Shape::Mark,
        }
    }

    const FOLDS: bool = true;

    fn folded(self) -> Option<Place> {
        match self {
            Place::Stream | Place::ParametersStream => Some(Place::OddStream),
            Place::Limit(_) | Place::Options | Place::Sampling | Place::Parameters => Some(Place::OddLimit),
            _ => None,
        }
    }
}

/// The distinguishing keys found in a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shapes(u16);

impl Shapes {
    pub(super) const MESSAGES: Shapes = Shapes(1);
    pub(super) const PROMPT: Shapes = Shapes(2);
    pub(super) const INPUT: Shapes = Shapes(4);
    pub(super) const INPUTS: Shapes = Shapes(8);
    pub(super) const QUERY: Shapes = Shapes(16);
    pub(super) const DOCUMENTS: Shapes = Shapes(32);
    pub(super) const TEXT_1: Shapes = Shapes(64);
    /// An instance with a prompt (SGLang).
    pub(super) const INSTANCE_TEXT: Shapes = Shapes(128);
    /// An instance in TGI's own format.
    pub(super) const INSTANCE_INPUTS: Shapes = Shapes(256);
    /// An instance in chat format.
    pub(super) const INSTANCE_MESSAGES: Shapes = Shapes(512);
    /// An instance of any kind.
    const INSTANCES: Shapes = Shapes(Shapes::INSTANCE_TEXT.0 | Shapes::INSTANCE_INPUTS.0 | Shapes::INSTANCE_MESSAGES.0);

    pub(super) fn has(self, shape: Shapes) -> bool {
        self.0 & shape.0 != 0
    }

    pub(super) fn insert(&mut self, shape: Shapes) {
        self.0 |= shape.0;
    }

    /// The API of a body with these keys: at `/invocations` in vLLM 0.33, SGLang 0.5 and TGI 3.3, at `/vertex_generate`
    /// in SGLang, and at `/vertex` in TGI. `None` if the instances are of several kinds.
    pub(super) fn api(self) -> Option<Route> {
        match self {
            shape if shape.has(Shapes::INSTANCES) => match Shapes(shape.0 & Shapes::INSTANCES.0) {
                Shapes::INSTANCE_TEXT => Some(Route::Generate),
                Shapes::INSTANCE_INPUTS => Some(Route::TgiCompat),
                Shapes::INSTANCE_MESSAGES => Some(Route::Chat),
                _ => None,
            },
            shape if shape.has(Shapes::MESSAGES) => Some(Route::Chat),
            shape if shape.has(Shapes::PROMPT) => Some(Route::Completions),
            shape if shape.has(Shapes::QUERY) && shape.has(Shapes::DOCUMENTS) => Some(Route::Rerank),
            shape if shape.has(Shapes::TEXT_1) => Some(Route::Score),
            shape if shape.has(Shapes::INPUTS) => Some(Route::TgiCompat),
            shape if shape.has(Shapes::INPUT) => Some(Route::Embeddings),
            _ => None,
        }
    }
}
