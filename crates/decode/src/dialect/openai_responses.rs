//! `/v1/responses`: events with a `type`, and `response` bodies (vLLM 0.33, SGLang 0.5, llama.cpp, transformers serve
//! 5.19, Ollama 0.17, Dynamo 1.6, openai-python 3.52). The messages of the realtime APIs are such events too (OpenAI;
//! vLLM's and SGLang's `/v1/realtime`).

use super::Place;
use crate::scan::Keys;

/// A whole event. `type` determines the meaning of `delta`. vLLM's realtime sends `usage`, and the client `model`, at
/// this level.
pub(super) static EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("delta", Place::EventDelta),
    ("response", Place::Response),
    ("item", Place::Item),
    ("sequence_number", Place::SequenceNumber),
    ("error", Place::CodedError),
    ("code", Place::ErrorCode),
    ("object", Place::Object),
    ("timings", Place::Timings),
    ("usage", Place::TokenUsage),
    ("model", Place::Model),
    ("session", Place::Session),
]);

/// `response`, and the body of a non-streamed response. `output` is skipped: in a `completed` event it repeats the
/// whole output.
pub(super) static RESPONSE: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("status", Place::Status),
    ("incomplete_details", Place::StatusDetails),
    ("status_details", Place::StatusDetails),
    ("usage", Place::TokenUsage),
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
pub(super) static CODED_ERROR: Keys<Place> = Keys::new(&[("type", Place::ErrorType), ("code", Place::ErrorCode)]);

/// `item`: the keys that a tool call has when it begins
pub(super) static ITEM: Keys<Place> =
    Keys::new(&[("name", Place::ItemText), ("arguments", Place::ItemText), ("input", Place::ItemText)]);

/// `usage` of the Responses API, of realtime (`*_token_details`), and of vLLM's realtime and transcriptions, with the
/// key names of chats. `input_tokens` includes cached tokens.
pub(super) static USAGE: Keys<Place> = Keys::new(&[
    ("input_tokens", Place::PromptTokens),
    ("output_tokens", Place::CompletionTokens),
    ("input_tokens_details", Place::PromptDetails),
    ("output_tokens_details", Place::CompletionDetails),
    ("input_token_details", Place::PromptDetails),
    ("output_token_details", Place::CompletionDetails),
    ("prompt_tokens", Place::PromptTokens),
    ("completion_tokens", Place::CompletionTokens),
    ("prompt_tokens_details", Place::PromptDetails),
    ("completion_tokens_details", Place::CompletionDetails),
]);

/// `session` (realtime). Transcription sessions have the model at a deeper level.
pub(super) static SESSION: Keys<Place> =
    Keys::new(&[("model", Place::Model), ("type", Place::SessionType), ("audio", Place::SessionAudio)]);

/// `session.audio`
pub(super) static SESSION_AUDIO: Keys<Place> = Keys::new(&[("input", Place::SessionInput)]);

/// `session.audio.input`
pub(super) static SESSION_INPUT: Keys<Place> = Keys::new(&[("transcription", Place::SessionTranscription)]);

/// `session.audio.input.transcription`
pub(super) static SESSION_TRANSCRIPTION: Keys<Place> = Keys::new(&[("model", Place::Model)]);
