//! APIs whose events have a `type`: OpenAI Responses and realtime, Anthropic Messages, Cohere chat.

use super::Place;
use crate::scan::Keys;

// `/v1/responses`: events with a `type`, and `response` bodies (vLLM 0.33, SGLang 0.5, llama.cpp, transformers serve
// 5.19, Ollama 0.17, Dynamo 1.6, openai-python 3.52). Realtime APIs send such events as messages (OpenAI; vLLM's and
// SGLang's `/v1/realtime`).

/// A whole event. `type` determines the meaning of `delta`. In vLLM's realtime API, the server sends `usage` and the
/// client sends `model` at this level.
pub(super) static RESPONSE_EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("delta", Place::EventDelta),
    ("text", Place::WholeText),
    ("arguments", Place::WholeText),
    ("input", Place::WholeText),
    ("refusal", Place::WholeText),
    ("transcript", Place::WholeText),
    ("part", Place::WholePart),
    ("response", Place::Response),
    ("item", Place::Item),
    ("sequence_number", Place::SequenceNumber),
    ("error", Place::CodedError),
    ("code", Place::EventCode),
    ("object", Place::Object),
    ("timings", Place::Timings),
    ("usage", Place::Usage),
    ("model", Place::Model),
    ("session", Place::Session),
]);

/// `delta`, if it is not a string
pub(super) static EVENT_DELTA: Keys<Place> = Keys::new(&[("text", Place::EventDelta), ("content", Place::EventDelta)]);

/// `response`, and the body of a non-streamed response. A `completed` event repeats the whole output; in servers that
/// send no deltas, it is the only event with text.
pub(super) static RESPONSE: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("status", Place::Status),
    ("output", Place::ResponseOutput),
    ("incomplete_details", Place::StatusDetails),
    ("status_details", Place::StatusDetails),
    ("usage", Place::Usage),
    ("metrics", Place::Metrics),
    ("timings", Place::Timings),
    ("kv_transfer_params", Place::VllmMark),
    ("error", Place::CodedError),
    ("type", Place::FlatErrorType),
]);

/// `incomplete_details`, and realtime's `status_details`
pub(super) static STATUS_DETAILS: Keys<Place> =
    Keys::new(&[("reason", Place::StatusReason), ("error", Place::CodedError)]);

/// `error` with a `code`; bodies of rejected requests also have a `type`
pub(super) static CODED_ERROR: Keys<Place> = Keys::with_others(
    &[("type", Place::ErrorType), ("code", Place::ErrorCode), ("message", Place::ErrorMessage)],
    Place::ErrorDetail,
);

/// `item`, and each element of `output`: the keys of a tool call, and the texts of a message or of reasoning
pub(super) static ITEM: Keys<Place> = Keys::new(&[
    ("name", Place::ItemText),
    ("arguments", Place::ItemText),
    ("input", Place::ItemText),
    ("content", Place::WholeParts),
    ("summary", Place::WholeParts),
]);

/// `part`, and each element of an item's `content` or `summary`
pub(super) static WHOLE_PART: Keys<Place> = Keys::new(&[
    ("type", Place::WholeType),
    ("text", Place::WholeText),
    ("refusal", Place::WholeText),
    ("transcript", Place::WholeText),
]);

/// `session` (realtime). Transcription sessions nest the model deeper.
pub(super) static SESSION: Keys<Place> =
    Keys::new(&[("model", Place::Model), ("type", Place::SessionType), ("audio", Place::SessionAudio)]);

/// `session.audio`
pub(super) static SESSION_AUDIO: Keys<Place> = Keys::new(&[("input", Place::SessionInput)]);

/// `session.audio.input`
pub(super) static SESSION_INPUT: Keys<Place> = Keys::new(&[("transcription", Place::SessionTranscription)]);

/// `session.audio.input.transcription`
pub(super) static SESSION_TRANSCRIPTION: Keys<Place> = Keys::new(&[("model", Place::Model)]);

// `/v1/messages`: events with a `type`, and `message` bodies (anthropic-python 2.12, vLLM 0.33, SGLang 0.5, llama.cpp,
// Ollama 0.17, Dynamo 1.6, LMDeploy).
//
// `usage` is sent twice. `message_start` has the input and an output placeholder (0 or 1), which is ignored.
// `message_delta` has the output and, in some engines, the input again. vLLM includes cached tokens in the input of
// `message_start` but excludes them in `message_delta`. SGLang and llama.cpp send the input only in `message_start`;
// Ollama only estimates it there. Dynamo also sends `usage` in each `content_block_delta`; it repeats the estimate of the
// input until its backend reports counts.

/// A whole event
pub(super) static MESSAGE_EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("message", Place::MessageStart),
    ("content_block", Place::ContentBlock),
    ("delta", Place::BlockDelta),
    ("usage", Place::MessageUsage),
    ("error", Place::Error),
    ("object", Place::Object),
]);

/// `message` of `message_start`
pub(super) static MESSAGE_START: Keys<Place> =
    Keys::new(&[("id", Place::Id), ("model", Place::Model), ("usage", Place::MessageStartUsage)]);

/// `delta` of `content_block_delta` and of `message_delta`. Signatures and citations are not tokens.
pub(super) static BLOCK_DELTA: Keys<Place> = Keys::new(&[
    ("text", Place::Content),
    ("thinking", Place::Reasoning),
    ("partial_json", Place::FunctionText),
    ("stop_reason", Place::FinishReason),
]);

/// `content_block`, and each element of `content`: `name` is a tool name
pub(super) static CONTENT_BLOCK: Keys<Place> =
    Keys::new(&[("text", Place::Content), ("thinking", Place::Reasoning), ("name", Place::FunctionText)]);

/// The body of a non-streamed response, or of an error
pub(super) static MESSAGE_BODY: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("model", Place::Model),
    ("content", Place::ContentBlocks),
    ("stop_reason", Place::FinishReason),
    ("usage", Place::MessageUsage),
    ("error", Place::Error),
    ("object", Place::Object),
    ("type", Place::FlatErrorType),
]);

/// `usage`: the total input is the sum of the three input counts
pub(super) static MESSAGE_USAGE: Keys<Place> = Keys::new(&[
    ("input_tokens", Place::PromptTokens),
    ("cache_read_input_tokens", Place::CachedTokens),
    ("cache_creation_input_tokens", Place::CacheCreationTokens),
    ("output_tokens", Place::CompletionTokens),
    ("output_tokens_details", Place::CompletionDetails),
]);

/// `message.usage` of `message_start`
pub(super) static MESSAGE_START_USAGE: Keys<Place> = Keys::new(&[
    ("input_tokens", Place::PromptTokens),
    ("cache_read_input_tokens", Place::CachedTokens),
    ("cache_creation_input_tokens", Place::CacheCreationTokens),
]);

// Cohere's `/v2/chat` as implemented by vLLM 0.33 (`/cohere/v2/chat`, vllm/entrypoints/cohere/serving.py): events with
// a `type` and deeply nested text, ended by `message-end` and `[DONE]`; also non-streamed bodies.

/// A whole event
pub(super) static COHERE_EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("id", Place::Id),
    ("delta", Place::CohereDelta),
    ("error", Place::Error),
    ("object", Place::Object),
]);

/// `delta`; `message-end` has all keys except the first
pub(super) static COHERE_DELTA: Keys<Place> = Keys::new(&[
    ("message", Place::CohereMessage),
    ("finish_reason", Place::FinishReason),
    ("usage", Place::CohereUsage),
    ("error", Place::Error),
]);

/// `delta.message`: one block and one call at a time. Models without reasoning write a `tool_plan` before their calls.
pub(super) static COHERE_MESSAGE: Keys<Place> =
    Keys::new(&[("content", Place::CohereContent), ("tool_plan", Place::Reasoning), ("tool_calls", Place::ToolCall)]);

/// `content`, and each element of `content`
pub(super) static COHERE_CONTENT: Keys<Place> = Keys::new(&[("text", Place::Content), ("thinking", Place::Reasoning)]);

/// The body of a non-streamed response, or of an error
pub(super) static COHERE_BODY: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("message", Place::CohereWhole),
    ("finish_reason", Place::FinishReason),
    ("usage", Place::CohereUsage),
    ("error", Place::Error),
    ("object", Place::Object),
    ("type", Place::FlatErrorType),
]);

/// `message` of a body
pub(super) static COHERE_WHOLE: Keys<Place> =
    Keys::new(&[("content", Place::CohereContents), ("tool_plan", Place::Reasoning), ("tool_calls", Place::ToolCalls)]);

/// `usage`. `billed_units` are ignored: billed tokens are not the computed tokens.
pub(super) static COHERE_USAGE: Keys<Place> =
    Keys::new(&[("tokens", Place::CohereTokens), ("cached_tokens", Place::CachedTokens)]);
