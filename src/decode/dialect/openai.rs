//! Keys that chats and completions share (vLLM 0.33, SGLang 0.5, llama.cpp, Ollama, TGI, TensorRT-LLM, Dynamo).

use super::Place;

/// Known keys of an object, the frequent ones first.
pub(super) type Keys = &'static [(&'static str, Place)];

/// `error`. TGI says `error_type` beside it.
pub(super) const ERROR: Keys = &[("type", Place::ErrorType)];

/// `choices[].logprobs`: `content` in chats, `tokens` in completions.
pub(super) const LOGPROBS: Keys = &[("content", Place::LogprobList), ("tokens", Place::LogprobList)];

/// `usage`. SGLang has `reasoning_tokens` on the top level too.
pub(super) const USAGE: Keys = &[
    ("prompt_tokens", Place::PromptTokens),
    ("completion_tokens", Place::CompletionTokens),
    ("prompt_tokens_details", Place::PromptDetails),
    ("completion_tokens_details", Place::CompletionDetails),
    ("reasoning_tokens", Place::OuterReasoningTokens),
];

/// `usage.prompt_tokens_details`
pub(super) const PROMPT_DETAILS: Keys = &[("cached_tokens", Place::CachedTokens)];

/// `usage.completion_tokens_details`
pub(super) const COMPLETION_DETAILS: Keys = &[("reasoning_tokens", Place::ReasoningTokens)];

/// `metrics`: vLLM with `--enable-per-request-metrics`.
pub(super) const METRICS: Keys = &[
    ("time_to_first_token_ms", Place::PrefillMs),
    ("generation_time_ms", Place::DecodeMs),
    ("queue_time_ms", Place::QueueMs),
    ("mean_itl_ms", Place::MeanItlMs),
    ("speculative_decoding", Place::Speculation),
];

/// `metrics.speculative_decoding`
pub(super) const SPECULATION: Keys =
    &[("num_draft_tokens", Place::DraftTokens), ("num_accepted_draft_tokens", Place::AcceptedTokens)];

/// `timings`: llama.cpp.
pub(super) const TIMINGS: Keys = &[
    ("cache_n", Place::CacheN),
    ("prompt_n", Place::PromptN),
    ("prompt_ms", Place::PromptMs),
    ("predicted_n", Place::PredictedN),
    ("predicted_ms", Place::DecodeMs),
    ("draft_n", Place::DraftTokens),
    ("draft_n_accepted", Place::AcceptedTokens),
];
