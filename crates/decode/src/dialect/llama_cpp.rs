//! llama.cpp's own `/completion` and `/infill` (tools/server/server-task.cpp, `to_json_non_oaicompat`).
//!
//! `tokens_predicted` is the running count, including tokens whose text is held back; `tokens` has the ids of the most
//! recent of them, or none. There is no `[DONE]`: the event with `stop: true` is the last of its choice, and contains
//! the prompt and all settings.

use super::Place;
use crate::scan::Keys;

/// The whole event or body, or an error in its place; several prompts yield an array of them. The `stopped_` keys are
/// from versions before `stop_type` (December 2024).
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("index", Place::Index),
    ("content", Place::Content),
    ("model", Place::Model),
    ("tokens_predicted", Place::TokensPredicted),
    ("tokens_evaluated", Place::CounterInput),
    ("stop", Place::Stop),
    ("stop_type", Place::StopType),
    ("stopped_eos", Place::StoppedAtEnd),
    ("stopped_word", Place::StoppedAtEnd),
    ("stopped_limit", Place::StoppedAtLimit),
    ("timings", Place::Timings),
    ("prompt_progress", Place::PromptProgress),
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
]);
