//! Ollama's own `/api/chat` and `/api/generate` (api/types.go), and SGLang's copy of them, which omits counts and
//! durations.
//!
//! Events are JSON lines. The last one has `done: true`, and the counts and durations (nanoseconds) of the whole
//! response; zero values are omitted. A request that only loads or unloads the model (`done_reason: "load"` or
//! `"unload"`) has none.

use super::Place;
use crate::scan::Keys;

/// The whole event or body, or an error in its place: `message` for chats, the text keys for `/api/generate`.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("model", Place::Model),
    ("message", Place::OllamaMessage),
    ("response", Place::Content),
    ("thinking", Place::Reasoning),
    ("tool_calls", Place::ToolCalls),
    ("done", Place::OllamaDone),
    ("done_reason", Place::FinishReason),
    ("logprobs", Place::LogprobList),
    ("total_duration", Place::TotalNs),
    ("load_duration", Place::LoadNs),
    ("prompt_eval_count", Place::CounterInput),
    ("prompt_eval_duration", Place::PromptNs),
    ("eval_count", Place::TotalOutput),
    ("eval_duration", Place::DecodeNs),
    ("error", Place::Error),
]);

/// `message`. SGLang sends `images: null`; Ollama omits the key.
pub(super) static MESSAGE: Keys<Place> = Keys::new(&[
    ("role", Place::Role),
    ("content", Place::Content),
    ("thinking", Place::Reasoning),
    ("tool_calls", Place::ToolCalls),
    ("images", Place::Images),
]);
