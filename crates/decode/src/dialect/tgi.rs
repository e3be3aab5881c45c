//! Text Generation Inference 3.3 (router/src/lib.rs): `/generate_stream`, `/generate`, and `/`, which is either of
//! them.
//!
//! Every event is exactly one token, even if its text is empty or it is a special token. The last event has the whole
//! text and, if the request asked for them, `details`. There is no `[DONE]`. A non-streamed response of `/` is an array
//! with one element.

use super::Place;
use crate::scan::Keys;

/// `null` until the last event.
pub(super) const GENERATED_TEXT: (&str, Place) = ("generated_text", Place::GeneratedText);

/// Only with `parameters.details`.
pub(super) const DETAILS: (&str, Place) = ("details", Place::Details);

/// The only content of `/vertex` responses, for texts as well as for chats.
pub(super) const PREDICTIONS: (&str, Place) = ("predictions", Place::PredictedTexts);

/// The whole event or body, or an error in its place. `index` is the number of the token: there is only one choice.
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

/// `details`: in a stream it has `input_length`, in a whole response `tokens`, which are not read.
pub(super) static DETAILS_KEYS: Keys<Place> = Keys::new(&[
    ("finish_reason", Place::FinishReason),
    ("generated_tokens", Place::TotalOutput),
    ("input_length", Place::CounterInput),
]);
