//! The parameters of a request, collected while its body is decoded.

use super::keys::{Place, Shapes};
use super::limits::{FoundLimits, Limits};
use crate::dialect::grpc::RequestField;
use crate::scan::{Capture, Sink, protobuf};

/// The parameters decoded so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parameters {
    pub(super) model: Capture<128>,
    pub(super) stream: Option<bool>,
    /// The body has several values for `stream`, or one that decoders read differently.
    pub(super) stream_is_odd: bool,
    pub(super) n: Option<u64>,
    pub(super) limits: FoundLimits,
    pub(super) echo: Option<bool>,
    pub(super) prompts: u64,
    /// The prompt list contains token ids, so it is a single prompt (in llama.cpp even if it also contains text).
    pub(super) prompt_in_tokens: bool,
    pub(super) documents: u64,
    pub(super) shape: Shapes,
    /// The number of requests in `instances`.
    pub(super) instances: Option<u64>,
    /// `parameters.stream`, which applies to all instances.
    pub(super) parameters_stream: Option<bool>,
    /// `kv_transfer_params.do_remote_decode`: another engine does the decoding.
    pub(super) remote_decode: Option<bool>,
    /// `disaggregated_params.request_type` is `context_only`.
    pub(super) context_only: bool,
    request_type: Capture<16>,
}

impl Parameters {
    /// The number of prompts: the prompts in a list plus the documents to rank. In a chat, `documents` are not prompts
    /// but input for the chat template (vLLM).
    pub(super) fn prompts(&self) -> Option<u64> {
        let listed = if self.prompt_in_tokens { 0 } else { self.prompts };
        let ranked = if self.shape.has(Shapes::MESSAGES) { 0 } else { self.documents };
        self.instances.or(Some(listed.saturating_add(ranked)).filter(|number| *number > 0))
    }

    /// Processes a form field (vLLM 0.33: vllm/entrypoints/speech_to_text/transcription/protocol.py).
    pub(super) fn field(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b"model" => {
                self.model.clear();
                self.model.push(value);
                self.model.settle();
            }
            b"stream" => self.stream = boolean_of_form(value),
            b"max_completion_tokens" => self.limits.number(Limits::MAX_COMPLETION_TOKENS, value),
            _ => {}
        }
    }
}

/// A boolean in a form, as parsed by pydantic (used by vLLM and SGLang).
fn boolean_of_form(value: &[u8]) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| value.eq_ignore_ascii_case(word.as_bytes()));
    if is(&["true", "1", "on", "yes", "t", "y"]) {
        Some(true)
    } else {
        is(&["false", "0", "off", "no", "f", "n"]).then_some(false)
    }
}

impl protobuf::Sink<RequestField> for Parameters {
    fn begin(&mut self, _: RequestField, _: u64) {}

    fn part(&mut self, field: RequestField, part: &[u8]) {
        if field == RequestField::Model {
            self.model.push(part);
        }
    }

    fn end(&mut self, field: RequestField) {
        if field == RequestField::Model {
            self.model.settle();
        }
    }

    fn number(&mut self, field: RequestField, value: u64) {
        match field {
            RequestField::N => self.n = Some(value),
            RequestField::MaxTokens => self.limits.whole(Limits::MAX_TOKENS, Some(value)),
            RequestField::Stream => self.stream = Some(value != 0),
            RequestField::Model | RequestField::Options => {}
        }
    }
}

impl Sink<Place> for Parameters {
    fn begin(&mut self, place: Place, first: u8) {
        let boolean = match first {
            b't' => Some(true),
            b'f' => Some(false),
            _ => None,
        };
        match place {
            Place::Stream => {
                self.stream_is_odd |= (self.stream.is_some() && self.stream != boolean) || !b"tfn".contains(&first);
                self.stream = boolean;
            }
            Place::OddStream => self.stream_is_odd = true,
            Place::OddLimit => self.limits.odd_key(),
            Place::Limit(key) => self.limits.begin(key, first),
            Place::ParametersStream => self.parameters_stream = boolean,
            Place::Instance => self.instances = Some(self.instances.unwrap_or(0).saturating_add(1)),
            Place::Echo => self.echo = boolean,
            Place::RemoteDecode => self.remote_decode = boolean,
            Place::Prompt => self.shape.insert(Shapes::PROMPT),
            Place::Distinct(shape) => self.shape.insert(shape),
            Place::Documents => self.shape.insert(Shapes::DOCUMENTS),
            Place::PromptItem => match first {
                b'"' | b'[' | b'{' => self.prompts = self.prompts.saturating_add(1),
                _ => self.prompt_in_tokens |= first.is_ascii_digit(),
            },
            Place::Document => self.documents = self.documents.saturating_add(1),
            _ => {}
        }
    }

    fn text(&mut self, _: Place, _: bool) {}

    fn wants_word(&mut self, place: Place) -> bool {
        match place {
            Place::Model => self.model.clear(),
            Place::RequestType => self.request_type.clear(),
            _ => return false,
        }
        true
    }

    fn word_part(&mut self, place: Place, part: &[u8]) {
        match place {
            Place::RequestType => self.request_type.push(part),
            _ => self.model.push(part),
        }
    }

    fn word_end(&mut self, place: Place) {
        match place {
            Place::RequestType => self.context_only = self.request_type.bytes() == b"context_only",
            _ => self.model.settle(),
        }
    }

    fn number(&mut self, place: Place, written: &[u8]) {
        match place {
            Place::N => self.n = std::str::from_utf8(written).ok().and_then(|written| written.parse().ok()),
            Place::Limit(key) => self.limits.number(key, written),
            _ => {}
        }
    }
}
