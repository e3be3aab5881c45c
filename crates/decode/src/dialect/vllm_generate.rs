//! `/inference/v1/generate` of vLLM 0.33 and Dynamo 1.6: tokens in, tokens out (vllm/entrypoints/serve/disagg). Every
//! event has the ids of its tokens, so the count is exact; `[DONE]` ends it.

use super::Place;
use crate::scan::Keys;

/// The whole event or body, or an error in its place. Its choices are those of a completion, with text or without.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("request_id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::CompletionChoices),
    ("usage", Place::Usage),
    ("metrics", Place::Metrics),
    ("error", Place::Error),
    ("type", Place::FlatErrorType),
]);
