//! `/inference/v1/generate` of vLLM 0.33 and Dynamo 1.6, with tokens as input and output
//! (vllm/entrypoints/serve/disagg). Every event has the ids of its tokens, so the count is exact; `[DONE]` ends the
//! stream.

use super::Place;
use crate::scan::Keys;

/// The whole event or body, or an error in its place. Its choices have the keys of a completion's, with or without
/// text.
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
