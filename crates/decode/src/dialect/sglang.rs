//! `/generate` of SGLang 0.5 and of LMDeploy 0.18, which adopted its format. TGI's `/generate`, which returns a single
//! text, is distinguished from them by its keys.
//!
//! SGLang's `text` and `output_ids` hold the whole output so far in every event, unless it runs with
//! `--incremental-streaming-output`; LMDeploy's hold only the new part. So neither determines how much an event adds.
//! `meta_info.completion_tokens` is the running count in both. Several prompts, or `n`, yield events with an `index`,
//! or an array of responses.

use super::Place;
use super::tgi;
use crate::scan::Keys;

/// The whole event or body, or an error in its place.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("text", Place::Content),
    ("meta_info", Place::MetaInfo),
    ("index", Place::Index),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
    ("object", Place::Object),
    ("type", Place::FlatErrorType),
    tgi::GENERATED_TEXT,
    tgi::DETAILS,
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
    ("weight_version", Place::SglangMark),
    ("routed_experts", Place::LmdeployMark),
]);

/// `meta_info.finish_reason`: `null` until the end.
pub(super) static FINISH: Keys<Place> = Keys::new(&[("type", Place::FinishReason)]);
