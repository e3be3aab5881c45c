//! Triton's generate extension, `/v2/models/M/generate` and `generate_stream` (server 2.73,
//! docs/protocol/extension_generate.md): the output tensors by name, one event per response of the model. Responses
//! have no token count, and only the end of the body ends a stream. An error after the headers is an event
//! `{"error": "..."}`.

use super::Place;
use crate::scan::Keys;

/// The whole event or body. `text_output` is the output of the vLLM and TensorRT-LLM backends.
pub(super) static ANSWER: Keys<Place> = Keys::new(&[
    ("id", Place::Id),
    ("model_name", Place::Model),
    ("model_version", Place::TritonMark),
    ("text_output", Place::Content),
    ("error", Place::Error),
]);
