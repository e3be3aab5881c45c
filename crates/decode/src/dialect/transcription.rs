//! `/v1/audio/transcriptions` and `/v1/audio/translations`: vLLM 0.33's `transcription.chunk` and `translation.chunk`,
//! which have the format of chat chunks but one finish reason per segment of a long recording; `transcript.text.*`
//! events (OpenAI, llama.cpp); and bodies. `usage` is often a duration instead of tokens.

use super::Place;
use crate::scan::Keys;

/// A whole event
pub(super) static EVENT: Keys<Place> = Keys::new(&[
    ("type", Place::EventType),
    ("delta", Place::EventDelta),
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("choices", Place::ChatChoices),
    ("usage", Place::TokenUsage),
    ("error", Place::Error),
]);

/// The body of a non-streamed response, or of an error
pub(super) static BODY: Keys<Place> = Keys::new(&[
    ("text", Place::Content),
    ("id", Place::Id),
    ("object", Place::Object),
    ("model", Place::Model),
    ("usage", Place::TokenUsage),
    ("error", Place::Error),
]);
