//! Cohere's `/v2/chat` as implemented by vLLM 0.33 (`/cohere/v2/chat`, vllm/entrypoints/cohere/serving.py): events with
//! a `type` and deeply nested text, ended by `message-end` and `[DONE]`; and bodies.

use super::Place;
use crate::scan::Keys;

/// A whole event
pub(super) static EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("id", Place::Id),
    ("delta", Place::CohereDelta),
    ("error", Place::Error),
    ("object", Place::Object),
]);

/// `delta`; `message-end` has all keys but the first
pub(super) static DELTA: Keys<Place> = Keys::new(&[
    ("message", Place::CohereMessage),
    ("finish_reason", Place::FinishReason),
    ("usage", Place::CohereUsage),
    ("error", Place::Error),
]);

/// `delta.message`: one block and one call at a time. `tool_plan` is the plan that a model without reasoning writes
/// before its calls.
pub(super) static MESSAGE: Keys<Place> =
    Keys::new(&[("content", Place::CohereContent), ("tool_plan", Place::Reasoning), ("tool_calls", Place::ToolCall)]);

/// `content`, and each of `content`
pub(super) static CONTENT: Keys<Place> = Keys::new(&[("text", Place::Content), ("thinking", Place::Reasoning)]);

/// The body of a non-streamed response, or of an error
pub(super) static BODY: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("message", Place::CohereWhole),
    ("finish_reason", Place::FinishReason),
    ("usage", Place::CohereUsage),
    ("error", Place::Error),
    ("object", Place::Object),
    ("type", Place::FlatErrorType),
]);

/// `message` of a body
pub(super) static WHOLE: Keys<Place> =
    Keys::new(&[("content", Place::CohereContents), ("tool_plan", Place::Reasoning), ("tool_calls", Place::ToolCalls)]);

/// `usage`. The billed tokens (`billed_units`) are not read: they are not the computed ones.
pub(super) static USAGE: Keys<Place> =
    Keys::new(&[("tokens", Place::CohereTokens), ("cached_tokens", Place::CachedTokens)]);
