//! `/v1/completions`: `text_completion` events and bodies.

use super::Place;
use crate::scan::Keys;

/// The whole event or body, or an error in its place.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
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
pub(super) static CHOICE: Keys<Place> = Keys::new(&[
    ("index", Place::Index),
    ("text", Place::CompletionText),
    ("logprobs", Place::Logprobs),
    ("finish_reason", Place::FinishReason),
    ("token_ids", Place::TokenIds),
    ("prompt_token_ids", Place::VllmMark),
    ("matched_stop", Place::SglangMark),
    ("avg_decoded_tokens_per_iter", Place::TensorrtMark),
    ("gen_tokens", Place::LmdeployMark),
]);
