//! Text Generation Inference 3.3 (router/src/lib.rs): `/generate_stream`, `/generate`, and `/`, which is either of them.
//!
//! One event is one token, always, be its text empty or special. The last event has the whole text and, if the request
//! asked for them, `details`. There is no `[DONE]`. The answer of `/` that is not streamed is an array of one.

use super::Place;
use crate::scan::Keys;

/// `null` until the last event.
pub(super) const GENERATED_TEXT: (&str, Place) = ("generated_text", Place::GeneratedText);

/// With `parameters.details` alone.
pub(super) const DETAILS: (&str, Place) = ("details", Place::Details);

/// All that `/vertex` tells of its answers, be they asked for as texts or as chats.
pub(super) const PREDICTIONS: (&str, Place) = ("predictions", Place::PredictedTexts);

/// The whole event or body, or an error in its place. `index` counts tokens: there is one choice.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("token", Place::TgiToken),
    GENERATED_TEXT,
    DETAILS,
    PREDICTIONS,
    ("error", Place::Error),
    ("error_type", Place::OuterErrorType),
]);

/// `token`
pub(super) static TOKEN: Keys<Place> = Keys::new(&[("text", Place::Content), ("special", Place::Special)]);

/// `details`: of a stream with `input_length`, of a whole answer with `tokens`, which are not read.
pub(super) static DETAILS_KEYS: Keys<Place> = Keys::new(&[
    ("finish_reason", Place::FinishReason),
    ("generated_tokens", Place::TotalOutput),
    ("input_length", Place::CounterInput),
]);
