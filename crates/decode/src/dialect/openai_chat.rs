//! `/v1/chat/completions`: `chat.completion.chunk` events and `chat.completion` bodies.

use super::Place;
use super::tgi;
use crate::scan::Keys;

/// The whole event or body, or an error in its place.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::ChatChoices),
    ("usage", Place::Usage),
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
    tgi::PREDICTIONS,
]);

/// `choices[]`
pub(super) static CHOICE: Keys<Place> = Keys::new(&[
    ("index", Place::Index),
    ("delta", Place::Delta),
    ("logprobs", Place::Logprobs),
    ("finish_reason", Place::FinishReason),
    ("token_ids", Place::TokenIds),
    ("matched_stop", Place::SglangMark),
    ("avg_decoded_tokens_per_iter", Place::TensorrtMark),
    ("message", Place::Message),
]);

/// `choices[].delta`, `choices[].message`
pub(super) static MESSAGE: Keys<Place> = Keys::new(&[
    ("content", Place::Content),
    ("role", Place::Role),
    ("reasoning", Place::Reasoning),
    ("reasoning_content", Place::Reasoning),
    ("tool_calls", Place::ToolCalls),
    ("refusal", Place::Refusal),
    ("function_call", Place::Function),
    ("audio", Place::Audio),
    ("gen_tokens", Place::LmdeployMark),
]);

/// `tool_calls[]`
pub(super) static TOOL_CALL: Keys<Place> = Keys::new(&[("function", Place::Function), ("custom", Place::Function)]);

/// `function_call`, `tool_calls[].function`, and `tool_calls[].custom` with its `input`
pub(super) static FUNCTION: Keys<Place> =
    Keys::new(&[("arguments", Place::FunctionText), ("name", Place::FunctionText), ("input", Place::FunctionText)]);

/// `audio`
pub(super) static AUDIO: Keys<Place> = Keys::new(&[("data", Place::AudioText), ("transcript", Place::AudioText)]);
