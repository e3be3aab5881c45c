//! Embeddings, rerank, score, classify, pooling: bodies of numbers that are stepped over, and the count of what went in
//! (vLLM 0.33, SGLang 0.5.23, llama.cpp, Ollama 0.17, Dynamo 1.6, Cohere).

use super::Place;
use crate::scan::Keys;

/// The whole body, or an error in its place.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("usage", Place::Usage),
    // SGLang `/encode`, `/classify`.
    ("meta_info", Place::MetaInfo),
    // Ollama `/api/embed`.
    ("prompt_eval_count", Place::CounterInput),
    ("load_duration", Place::OllamaMark),
    ("meta", Place::InputMeta),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
    ("type", Place::FlatErrorType),
]);

/// One answer of a body that is an array. SGLang's `/v1/rerank`, and its `/encode` and `/classify` of several texts, tell
/// of each what went in; llama.cpp's `/embedding` and its `/rerank` of `texts` tell nothing. With `top_n` the array lacks
/// some: then the sum is not that of the request, which asked for more answers than there are.
pub(super) static ONE_OF_SEVERAL: Keys<Place> = Keys::new(&[("meta_info", Place::MetaInfo)]);

/// `meta` of Cohere's API (`/v2/embed`, `/v2/rerank`): the tokens that were computed, and those that are billed. vLLM
/// 0.33 tells the latter alone (vllm/entrypoints/pooling/embed).
pub(super) static META: Keys<Place> =
    Keys::new(&[("tokens", Place::InputTokens), ("billed_units", Place::BilledUnits)]);

/// `meta.tokens`
pub(super) static TOKENS: Keys<Place> = Keys::new(&[("input_tokens", Place::PromptTokens)]);

/// `meta.billed_units`
pub(super) static BILLED: Keys<Place> = Keys::new(&[("input_tokens", Place::BilledTokens)]);
