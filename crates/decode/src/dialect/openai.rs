//! OpenAI APIs without typed events, and APIs in the same format: chats, completions, transcriptions, embeddings.

use super::Place;
use crate::scan::Keys;

// Keys shared by chats and completions (vLLM 0.33, SGLang 0.5, llama.cpp, Ollama, TGI, TensorRT-LLM, Dynamo).

/// `error`. TGI sends `error_type` next to it. Some servers always send the object: without a value in it, or with a
/// code and a message of success.
pub(super) static ERROR: Keys<Place> = Keys::with_others(
    &[("type", Place::ErrorType), ("code", Place::ErrorNumber), ("message", Place::ErrorMessage)],
    Place::ErrorDetail,
);

/// An object in `error`
pub(super) static ERROR_DETAIL: Keys<Place> = Keys::with_others(&[], Place::ErrorDetail);

/// `base_resp`
pub(super) static BASE_RESPONSE: Keys<Place> = Keys::new(&[("status_code", Place::BaseStatus)]);

/// `choices[].logprobs`: `content` in chats, `tokens` in completions. Some servers send both lists with the same tokens.
pub(super) static LOGPROBS: Keys<Place> = Keys::new(&[("content", Place::LogprobList), ("tokens", Place::LogprobList)]);

/// `usage` of all APIs except Messages: servers use the key names of chats (`prompt_tokens`), of the Responses API
/// (`input_tokens`; mlx-vlm in chats), of realtime (`*_token_details`), or camel case (Java and Go servers).
/// SGLang also has `reasoning_tokens` at the top level, Kimi `cached_tokens`, DeepSeek `prompt_cache_hit_tokens`, and
/// LiteLLM `cache_read_input_tokens`. The input always includes the cached tokens.
pub(super) static USAGE: Keys<Place> = Keys::new(&[
    ("prompt_tokens", Place::PromptTokens),
    ("completion_tokens", Place::CompletionTokens),
    ("prompt_tokens_details", Place::PromptDetails),
    ("completion_tokens_details", Place::CompletionDetails),
    ("reasoning_tokens", Place::OuterReasoningTokens),
    ("cached_tokens", Place::CachedTokens),
    ("prompt_cache_hit_tokens", Place::CachedTokens),
    ("cache_read_input_tokens", Place::CachedTokens),
    ("cache_creation_input_tokens", Place::CacheCreationTokens),
    ("input_tokens", Place::PromptTokens),
    ("output_tokens", Place::CompletionTokens),
    ("input_tokens_details", Place::PromptDetails),
    ("output_tokens_details", Place::CompletionDetails),
    ("input_token_details", Place::PromptDetails),
    ("output_token_details", Place::CompletionDetails),
    ("promptTokens", Place::PromptTokens),
    ("completionTokens", Place::CompletionTokens),
    ("inputTokens", Place::PromptTokens),
    ("outputTokens", Place::CompletionTokens),
]);

/// `x_groq`: the usage or the error of a stream
pub(super) static X_GROQ: Keys<Place> = Keys::new(&[("usage", Place::Usage), ("error", Place::Error)]);

/// `usage.prompt_tokens_details`, `usage.input_tokens_details`. OpenAI and vLLM use different names for tokens written
/// to the cache.
pub(super) static PROMPT_DETAILS: Keys<Place> = Keys::new(&[
    ("cached_tokens", Place::CachedTokens),
    ("cache_write_tokens", Place::CacheCreationTokens),
    ("created_cache_tokens", Place::CacheCreationTokens),
    ("audio_tokens", Place::InputAudioTokens),
    ("image_tokens", Place::InputImageTokens),
    // SGLang since June 2026.
    ("video_tokens", Place::InputVideoTokens),
    ("multimodal_tokens", Place::MultimodalTokens),
]);

/// `usage.prompt_tokens_details.multimodal_tokens` (vLLM 0.33, openai/chat_completion/serving.py): the tokens of each
/// modality in the prompt.
pub(super) static MULTIMODAL_TOKENS: Keys<Place> = Keys::new(&[
    ("audio", Place::InputAudioTokens),
    ("image", Place::InputImageTokens),
    ("video", Place::InputVideoTokens),
]);

/// `usage.completion_tokens_details`, `usage.output_tokens_details` (Anthropic's reasoning key: `thinking_tokens`)
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

// `/v1/chat/completions`: `chat.completion.chunk` events and `chat.completion` bodies.

/// The whole event or body, or an error instead.
pub(super) static CHAT: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::ChatChoices),
    ("usage", Place::Usage),
    ("x_groq", Place::XGroq),
    ("system_fingerprint", Place::Fingerprint),
    ("prompt_token_ids", Place::VllmMark),
    ("kv_transfer_params", Place::VllmMark),
    ("metrics", Place::Metrics),
    ("timings", Place::Timings),
    ("prompt_progress", Place::PromptProgress),
    ("nvext", Place::Nvext),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
    ("type", Place::FlatErrorType),
    ("base_resp", Place::BaseResponse),
    // TGI `/vertex`.
    ("predictions", Place::PredictedTexts),
]);

/// `choices[]`
pub(super) static CHAT_CHOICE: Keys<Place> = Keys::new(&[
    ("index", Place::Index),
    ("delta", Place::Delta),
    ("logprobs", Place::Logprobs),
    ("finish_reason", Place::ChoiceFinish),
    ("finishReason", Place::ChoiceFinish),
    ("token_ids", Place::TokenIds),
    ("matched_stop", Place::SglangMark),
    ("avg_decoded_tokens_per_iter", Place::TensorrtLlmMark),
    ("message", Place::Message),
    // The key of completions.
    ("text", Place::ChatText),
    // Kimi.
    ("usage", Place::Usage),
    // OpenRouter.
    ("error", Place::Error),
    ("disaggregated_params", Place::TensorrtLlmMark),
]);

/// `choices[].delta`, `choices[].message`
pub(super) static MESSAGE: Keys<Place> = Keys::new(&[
    ("content", Place::Content),
    ("role", Place::Role),
    ("reasoning", Place::Reasoning),
    ("reasoning_content", Place::Reasoning),
    ("reasoningContent", Place::Reasoning),
    // OpenRouter.
    ("images", Place::Image),
    ("reasoning_details", Place::ReasoningDetails),
    // Ollama's key, and LiteLLM's list.
    ("thinking", Place::Reasoning),
    ("thinking_blocks", Place::ReasoningDetails),
    ("tool_calls", Place::ToolCalls),
    ("toolCalls", Place::ToolCalls),
    ("refusal", Place::Refusal),
    ("function_call", Place::Function),
    ("functionCall", Place::Function),
    ("audio", Place::Audio),
    ("gen_tokens", Place::LmdeployMark),
    ("usage", Place::Usage),
]);

/// An image, or a part with an image
pub(super) static IMAGE: Keys<Place> =
    Keys::new(&[("url", Place::Image), ("image_url", Place::Image), ("b64_json", Place::Image)]);

/// A part of `content`. Magistral's parts of reasoning contain a list of texts.
pub(super) static CONTENT_PART: Keys<Place> = Keys::new(&[
    ("text", Place::ContentPart),
    ("content", Place::ContentPart),
    ("thinking", Place::Reasoning),
    ("reasoning", Place::Reasoning),
    ("refusal", Place::Refusal),
    ("image_url", Place::Image),
]);

/// A part of the reasoning (OpenRouter's `reasoning_details`)
pub(super) static REASONING_PART: Keys<Place> = Keys::new(&[
    ("text", Place::ReasoningPart),
    ("content", Place::ReasoningPart),
    ("summary", Place::ReasoningPart),
    ("thinking", Place::ReasoningPart),
]);

/// `tool_calls[]`, or `tool_calls` in events of TGI 2.4. Some servers omit `function` around its keys.
pub(super) static TOOL_CALL: Keys<Place> = Keys::new(&[
    ("function", Place::Function),
    ("custom", Place::Function),
    ("name", Place::FunctionText),
    ("arguments", Place::FunctionText),
]);

/// `function_call`, `tool_calls[].function`, and `tool_calls[].custom`, which has an `input`
pub(super) static FUNCTION: Keys<Place> =
    Keys::new(&[("arguments", Place::FunctionText), ("name", Place::FunctionText), ("input", Place::FunctionText)]);

/// `audio`
pub(super) static AUDIO: Keys<Place> = Keys::new(&[("data", Place::AudioText), ("transcript", Place::AudioText)]);

// `/v1/completions`: `text_completion` events and bodies.

/// The whole event or body, or an error instead.
pub(super) static COMPLETION: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::CompletionChoices),
    ("usage", Place::Usage),
    ("system_fingerprint", Place::Fingerprint),
    ("kv_transfer_params", Place::VllmMark),
    ("metrics", Place::Metrics),
    ("timings", Place::Timings),
    ("prompt_progress", Place::PromptProgress),
    ("nvext", Place::Nvext),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
    ("type", Place::FlatErrorType),
]);

/// `choices[]`
pub(super) static COMPLETION_CHOICE: Keys<Place> = Keys::new(&[
    ("index", Place::Index),
    ("text", Place::CompletionText),
    // The key of chats.
    ("delta", Place::Delta),
    ("logprobs", Place::Logprobs),
    ("finish_reason", Place::ChoiceFinish),
    ("finishReason", Place::ChoiceFinish),
    ("token_ids", Place::TokenIds),
    ("prompt_token_ids", Place::VllmMark),
    ("matched_stop", Place::SglangMark),
    ("avg_decoded_tokens_per_iter", Place::TensorrtLlmMark),
    ("gen_tokens", Place::LmdeployMark),
    ("usage", Place::Usage),
    ("error", Place::Error),
    ("disaggregated_params", Place::TensorrtLlmMark),
]);

// `nvext`, which NVIDIA Dynamo 1.6 adds to OpenAI responses on request (`nvext.extra_fields`).

/// `nvext`
pub(super) static NVEXT: Keys<Place> = Keys::new(&[("timing", Place::NvextTiming)]);

/// `nvext.timing`, on the last event
pub(super) static NVEXT_TIMING: Keys<Place> = Keys::new(&[
    ("prefill_wait_time_ms", Place::QueueMs),
    ("prefill_time_ms", Place::PrefillMs),
    ("total_time_ms", Place::TotalMs),
]);

// `/inference/v1/generate` of vLLM 0.33 and Dynamo 1.6, with token ids as input and output
// (vllm/entrypoints/serve/disagg). Every event has its token ids, so the count is exact; `[DONE]` ends the stream.

/// The whole event or body, or an error instead. Choices have the keys of completion choices, with or without text.
pub(super) static VLLM_GENERATE: Keys<Place> = Keys::new(&[
    ("request_id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::CompletionChoices),
    ("usage", Place::Usage),
    ("metrics", Place::Metrics),
    ("error", Place::Error),
    ("type", Place::FlatErrorType),
]);

// `/v1/audio/transcriptions` and `/v1/audio/translations`. Events: vLLM 0.33's `transcription.chunk` and
// `translation.chunk` (chat chunks with one finish reason per segment of a long recording), and `transcript.text.*`
// (OpenAI, llama.cpp). Also non-streamed bodies. `usage` is often a duration instead of tokens.

/// A whole event
pub(super) static TRANSCRIPT_EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("delta", Place::EventDelta),
    ("text", Place::WholeText),
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::ChatChoices),
    ("usage", Place::Usage),
    ("error", Place::Error),
]);

/// The body of a non-streamed response, or of an error
pub(super) static TRANSCRIPT_BODY: Keys<Place> = Keys::new(&[
    ("text", Place::Content),
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("usage", Place::Usage),
    ("error", Place::Error),
]);

// Embeddings, rerank, score, classify, pooling (vLLM 0.33, SGLang 0.5.23, llama.cpp, Ollama 0.17, Dynamo 1.6, Cohere).
// Only the input token count is used; the numbers in the bodies are skipped.

/// The whole body, or an error instead.
pub(super) static INPUT_ONLY: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("usage", Place::InputUsage),
    ("kv_transfer_params", Place::VllmMark),
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

/// `usage`. Without output, the total is the input: older vLLM sends only the total in `/rerank`.
pub(super) static INPUT_USAGE: Keys<Place> = Keys::new(&[
    ("prompt_tokens", Place::PromptTokens),
    ("completion_tokens", Place::CompletionTokens),
    ("prompt_tokens_details", Place::PromptDetails),
    ("cached_tokens", Place::CachedTokens),
    ("input_tokens", Place::PromptTokens),
    ("input_tokens_details", Place::PromptDetails),
    ("promptTokens", Place::PromptTokens),
    ("inputTokens", Place::PromptTokens),
    ("total_tokens", Place::SpareInput),
]);

/// One element of a body that is an array. Each element reports its input tokens in SGLang's `/v1/rerank`, and in its
/// `/encode` and `/classify` for several texts, but not in llama.cpp's `/embedding` and its `/rerank` of `texts`. With
/// `top_n`, the array omits documents of the request, so the sum over its elements is too low.
pub(super) static INPUT_ONLY_ELEMENT: Keys<Place> = Keys::new(&[("meta_info", Place::MetaInfo)]);

/// `meta` of Cohere's API (`/v2/embed`, `/v2/rerank`): computed and billed tokens. vLLM 0.33 sends only billed tokens
/// (vllm/entrypoints/pooling/embed).
pub(super) static INPUT_META: Keys<Place> =
    Keys::new(&[("tokens", Place::InputTokens), ("billed_units", Place::BilledUnits)]);

/// `meta.tokens`
pub(super) static INPUT_TOKENS: Keys<Place> = Keys::new(&[("input_tokens", Place::PromptTokens)]);

/// `meta.billed_units`
pub(super) static BILLED_UNITS: Keys<Place> = Keys::new(&[("input_tokens", Place::SpareInput)]);
