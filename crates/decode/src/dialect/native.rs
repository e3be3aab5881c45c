//! The engines' own APIs: SGLang, LMDeploy, TGI, llama.cpp, Ollama and Triton.

use super::Place;
use crate::scan::Keys;

// `/generate` of SGLang 0.5 and of LMDeploy 0.18, which adopted SGLang's format. TGI's `/generate` returns a single
// text and is distinguished by its keys.
//
// In SGLang, `text` and `output_ids` contain the whole output so far in every event, unless the server runs with
// `--incremental-streaming-output`. In LMDeploy, they contain only the new part. These keys therefore do not show how
// much an event adds. `meta_info.completion_tokens` is the running count in both engines. If a request has several
// prompts or `n`, its events have an `index`, and a whole body is an array of responses.

/// The whole event or body, or an error instead.
pub(super) static GENERATE: Keys<Place> = Keys::new(&[
    ("text", Place::Content),
    ("meta_info", Place::MetaInfo),
    ("index", Place::Index),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
    ("object", Place::Object),
    ("type", Place::FlatErrorType),
    // LightLLM: `generated_text` is a list.
    ("prompt_tokens", Place::CounterInput),
    ("count_output_tokens", Place::TotalOutput),
    // TGI: both are `null` until the last event; `details` requires `parameters.details`.
    ("generated_text", Place::GeneratedText),
    ("details", Place::Details),
    // `/vertex_generate`
    ("predictions", Place::Predictions),
]);

/// `predictions[]`
pub(super) static PREDICTED: Keys<Place> = Keys::new(&[("text", Place::Content), ("meta_info", Place::MetaInfo)]);

/// `meta_info`. LMDeploy has only the counts, the finish reason and `routed_experts`.
pub(super) static META_INFO: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("finish_reason", Place::FinishObject),
    ("prompt_tokens", Place::CounterInput),
    ("completion_tokens", Place::RunningOutput),
    ("cached_tokens", Place::CounterCached),
    ("reasoning_tokens", Place::CounterReasoning),
    ("queue_time", Place::QueueSeconds),
    ("e2e_latency", Place::TotalSeconds),
    ("weight_version", Place::SglangMark),
    ("routed_experts", Place::LmdeployMark),
]);

/// `meta_info.finish_reason`: `null` until the end.
pub(super) static FINISH_OBJECT: Keys<Place> = Keys::new(&[("type", Place::FinishReason)]);

/// The same object as `choices[].finish_reason`
pub(super) static CHOICE_FINISH_OBJECT: Keys<Place> = Keys::new(&[("type", Place::ChoiceFinish)]);

// Text Generation Inference 3.3 (router/src/lib.rs): `/generate_stream`, `/generate`, and `/`, which acts as either of
// the two.
//
// Every event is exactly one token, even if the token is special or its text is empty. The last event has the whole
// text and, if requested, `details`. There is no `[DONE]`. A non-streamed response of `/` is an array with one element.

/// The whole event or body, or an error instead. `index` is the token number: there is only one choice.
pub(super) static TGI: Keys<Place> = Keys::new(&[
    ("token", Place::TgiToken),
    // Both are `null` until the last event; `details` requires `parameters.details`.
    ("generated_text", Place::GeneratedText),
    ("details", Place::Details),
    // LightLLM: both above are always `null`.
    ("finish_reason", Place::FinishReason),
    ("finished", Place::LightllmMark),
    // The only content of `/vertex` responses.
    ("predictions", Place::PredictedTexts),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
]);

/// `token`
pub(super) static TGI_TOKEN: Keys<Place> = Keys::new(&[("text", Place::Content), ("special", Place::Special)]);

/// `details`. A stream also has `input_length`; a whole response has `tokens`, which are skipped.
pub(super) static DETAILS: Keys<Place> = Keys::new(&[
    ("finish_reason", Place::FinishReason),
    ("generated_tokens", Place::TotalOutput),
    ("input_length", Place::CounterInput),
]);

// llama.cpp's own `/completion` and `/infill` (tools/server/server-task.cpp, `to_json_non_oaicompat`).
//
// `tokens_predicted` is the running count, including tokens whose text is held back. `tokens` has the ids of the most
// recent tokens, or is empty. There is no `[DONE]`: the event with `stop: true` is the last of its choice, and contains
// the prompt and all settings.

/// The whole event or body, or an error instead; several prompts yield an array. Versions before `stop_type` (December
/// 2024) send the `stopped_` keys.
///
/// The path `/completions` is also used by servers of the OpenAI format (LiteLLM), so the keys include those of
/// completions.
pub(super) static LLAMA_CPP: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::CompletionChoices),
    ("usage", Place::Usage),
    ("index", Place::Index),
    ("content", Place::Content),
    ("tokens_predicted", Place::TokensPredicted),
    ("tokens_evaluated", Place::CounterInput),
    ("stop", Place::Stop),
    ("stop_type", Place::StopType),
    ("stopped_eos", Place::StoppedAtEnd),
    ("stopped_word", Place::StoppedAtEnd),
    ("stopped_limit", Place::StoppedAtLimit),
    ("timings", Place::Timings),
    ("prompt_progress", Place::PromptProgress),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
]);

// Ollama's own `/api/chat` and `/api/generate` (api/types.go), and SGLang's copy of these APIs, which omits counts and
// durations.
//
// Events are JSON lines. The last event has `done: true`, and the counts and durations (nanoseconds) of the whole
// response; zero values are omitted. A request that only loads or unloads the model (`done_reason: "load"` or
// `"unload"`) has no counts.

/// The whole event or body, or an error instead: `message` for chats, the text keys for `/api/generate`.
pub(super) static OLLAMA: Keys<Place> = Keys::new(&[
    ("model", Place::Model),
    ("message", Place::OllamaMessage),
    ("response", Place::Content),
    // Image models: only in the last event.
    ("image", Place::Image),
    ("thinking", Place::Reasoning),
    ("tool_calls", Place::ToolCalls),
    ("done", Place::Stop),
    ("done_reason", Place::FinishReason),
    ("logprobs", Place::LogprobList),
    ("total_duration", Place::TotalNs),
    ("load_duration", Place::LoadNs),
    ("prompt_eval_count", Place::CounterInput),
    // Part of `prompt_eval_count` (Ollama since September 2026).
    ("prompt_eval_cached_count", Place::CounterCached),
    ("prompt_eval_duration", Place::PromptNs),
    ("eval_count", Place::TotalOutput),
    ("eval_duration", Place::DecodeNs),
    ("error", Place::Error),
]);

/// `message`. SGLang sends `images: null`; Ollama omits the key.
pub(super) static OLLAMA_MESSAGE: Keys<Place> = Keys::new(&[
    ("role", Place::Role),
    ("content", Place::Content),
    ("thinking", Place::Reasoning),
    ("tool_calls", Place::ToolCalls),
    ("images", Place::Images),
]);

// Triton's generate extension, `/v2/models/M/generate` and `generate_stream` (server 2.73,
// docs/protocol/extension_generate.md): the output tensors by name, one event per response of the model. Responses have
// no token count, and a stream ends only with its body. An error after the headers is an event `{"error": "..."}`.

/// The whole event or body. `text_output` is the output of the vLLM and TensorRT-LLM backends.
pub(super) static TRITON: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("model_name", Place::Model),
    ("model_version", Place::TritonMark),
    ("text_output", Place::Content),
    ("error", Place::Error),
]);
