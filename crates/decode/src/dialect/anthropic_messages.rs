//! `/v1/messages`: events with a `type`, and `message` bodies (anthropic-python 2.12, vLLM 0.33, SGLang 0.5, llama.cpp,
//! Ollama 0.17, Dynamo 1.6, LMDeploy).
//!
//! `usage` is sent twice. `message_start` has the input and a placeholder for the output (0 or 1), which is not read.
//! `message_delta` has the output and, in some engines, the input again; vLLM excludes the cached tokens there, but
//! includes them in `message_start`. SGLang and llama.cpp send the input only in `message_start`; Ollama's value there
//! is an estimate.

use super::Place;
use crate::scan::Keys;

/// A whole event
pub(super) static EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("message", Place::MessageStart),
    ("content_block", Place::ContentBlock),
    ("delta", Place::BlockDelta),
    ("usage", Place::MessageUsage),
    ("error", Place::Error),
    ("object", Place::Object),
]);

/// `message` of `message_start`
pub(super) static START: Keys<Place> =
    Keys::new(&[("id", Place::Id), ("model", Place::Model), ("usage", Place::MessageStartUsage)]);

/// `delta` of `content_block_delta` and of `message_delta`. Signatures and citations are not tokens.
pub(super) static DELTA: Keys<Place> = Keys::new(&[
    ("text", Place::Content),
    ("thinking", Place::Reasoning),
    ("partial_json", Place::FunctionText),
    ("stop_reason", Place::FinishReason),
]);

/// `content_block`, and each of `content`: `name` is the name of a tool
pub(super) static BLOCK: Keys<Place> =
    Keys::new(&[("text", Place::Content), ("thinking", Place::Reasoning), ("name", Place::FunctionText)]);

/// The body of a non-streamed response, or of an error
pub(super) static MESSAGE: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("model", Place::Model),
    ("content", Place::ContentBlocks),
    ("stop_reason", Place::FinishReason),
    ("usage", Place::MessageUsage),
    ("error", Place::Error),
    ("object", Place::Object),
    ("type", Place::FlatErrorType),
]);

/// `usage`: the whole input is the sum of its three parts
pub(super) static USAGE: Keys<Place> = Keys::new(&[
    ("input_tokens", Place::PromptTokens),
    ("cache_read_input_tokens", Place::CachedTokens),
    ("cache_creation_input_tokens", Place::CacheCreationTokens),
    ("output_tokens", Place::CompletionTokens),
    ("output_tokens_details", Place::CompletionDetails),
]);

/// `message.usage` of `message_start`
pub(super) static START_USAGE: Keys<Place> = Keys::new(&[
    ("input_tokens", Place::PromptTokens),
    ("cache_read_input_tokens", Place::CachedTokens),
    ("cache_creation_input_tokens", Place::CacheCreationTokens),
]);
