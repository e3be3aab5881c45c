//! Keys shared by chats and completions (vLLM 0.33, SGLang 0.5, llama.cpp, Ollama, TGI, TensorRT-LLM, Dynamo).

use super::Place;
use crate::scan::Keys;

/// `error`. TGI sends `error_type` next to it.
pub(super) static ERROR: Keys<Place> = Keys::new(&[("type", Place::ErrorType)]);

/// `choices[].logprobs`: `content` in chats, `tokens` in completions.
pub(super) static LOGPROBS: Keys<Place> = Keys::new(&[("content", Place::LogprobList), ("tokens", Place::LogprobList)]);

/// `usage`. SGLang also has `reasoning_tokens` at the top level.
pub(super) static USAGE: Keys<Place> = Keys::new(&[
    ("prompt_tokens", Place::PromptTokens),
    ("completion_tokens", Place::CompletionTokens),
    ("prompt_tokens_details", Place::PromptDetails),
    ("completion_tokens_details", Place::CompletionDetails),
    ("reasoning_tokens", Place::OuterReasoningTokens),
]);

/// `usage.prompt_tokens_details`, `usage.input_tokens_details`. Tokens written to the cache have two names: OpenAI's
/// and vLLM's.
pub(super) static PROMPT_DETAILS: Keys<Place> = Keys::new(&[
    ("cached_tokens", Place::CachedTokens),
    ("cache_write_tokens", Place::CacheCreationTokens),
    ("created_cache_tokens", Place::CacheCreationTokens),
    ("audio_tokens", Place::InputAudioTokens),
    ("image_tokens", Place::InputImageTokens),
    ("multimodal_tokens", Place::MultimodalTokens),
]);

/// `usage.prompt_tokens_details.multimodal_tokens` (vLLM 0.33)
pub(super) static MULTIMODAL_TOKENS: Keys<Place> =
    Keys::new(&[("audio", Place::InputAudioTokens), ("image", Place::InputImageTokens)]);

/// `usage.completion_tokens_details`, `usage.output_tokens_details` (Anthropic's reasoning tokens are `thinking_tokens`)
pub(super) static COMPLETION_DETAILS: Keys<Place> = Keys::new(&[
    ("reasoning_tokens", Place::ReasoningTokens),
    ("thinking_tokens", Place::ReasoningTokens),
    ("audio_tokens", Place::OutputAudioTokens),
]);

/// `metrics`: vLLM with `--enable-per-request-metrics`.
pub(super) static METRICS: Keys<Place> = Keys::new(&[
    ("time_to_first_token_ms", Place::PrefillMs),
    ("generation_time_ms", Place::DecodeMs),
    ("queue_time_ms", Place::QueueMs),
    ("mean_itl_ms", Place::MeanItlMs),
    ("speculative_decoding", Place::Speculation),
]);

/// `metrics.speculative_decoding`
pub(super) static SPECULATION: Keys<Place> =
    Keys::new(&[("num_draft_tokens", Place::DraftTokens), ("num_accepted_draft_tokens", Place::AcceptedTokens)]);

/// `timings`: llama.cpp.
pub(super) static TIMINGS: Keys<Place> = Keys::new(&[
    ("cache_n", Place::CacheN),
    ("prompt_n", Place::PromptN),
    ("prompt_ms", Place::PromptMs),
    ("predicted_n", Place::PredictedN),
    ("predicted_ms", Place::DecodeMs),
    ("draft_n", Place::DraftTokens),
    ("draft_n_accepted", Place::AcceptedTokens),
]);
