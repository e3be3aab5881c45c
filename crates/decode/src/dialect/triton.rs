//! Triton's generate extension, `/v2/models/M/generate` and `generate_stream` (server 2.73, docs/protocol/extension_generate.md):
//! the output tensors by name, one event per response of the model. Nothing says how many tokens a response has, and
//! nothing ends a stream but the end of its body. An error after the head is an event `{"error": "..."}`.

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
