//! Embeddings, rerank, score, classify, pooling: the bodies contain numbers, which are skipped, and the input token
//! count (vLLM 0.33, SGLang 0.5.23, llama.cpp, Ollama 0.17, Dynamo 1.6, Cohere).

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

/// One element of a body that is an array. SGLang's `/v1/rerank`, and its `/encode` and `/classify` for several texts,
/// report the input tokens of each element; llama.cpp's `/embedding` and its `/rerank` of `texts` do not. With `top_n`
/// the array is incomplete, so the sum is not that of the request, which had more documents.
pub(super) static ONE_OF_SEVERAL: Keys<Place> = Keys::new(&[("meta_info", Place::MetaInfo)]);

/// `meta` of Cohere's API (`/v2/embed`, `/v2/rerank`): the computed tokens and the billed ones. vLLM 0.33 sends only
/// the latter (vllm/entrypoints/pooling/embed).
pub(super) static META: Keys<Place> =
    Keys::new(&[("tokens", Place::InputTokens), ("billed_units", Place::BilledUnits)]);

/// `meta.tokens`
pub(super) static TOKENS: Keys<Place> = Keys::new(&[("input_tokens", Place::PromptTokens)]);

/// `meta.billed_units`
pub(super) static BILLED: Keys<Place> = Keys::new(&[("input_tokens", Place::BilledTokens)]);
