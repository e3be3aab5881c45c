//! Decodes the messages of a gRPC response.

use super::{Flag, ResponseState};
use crate::dialect::Place;
use crate::dialect::grpc::{Field, Method};
use crate::scan::protobuf::{Scanner, Sink};
use crate::scan::{Capture, Sink as _};
use crate::{Channels, EngineFacts, FinishReason, StreamEvent};

/// The name of the text tensor in Triton's vLLM and TensorRT-LLM backends.
const TEXT_TENSOR: &[u8] = b"text_output";

/// The parameter that marks the last response to a request.
const FINAL_RESPONSE: &[u8] = b"triton_final_response";

/// Decodes the messages of one response.
#[derive(Clone, Debug)]
pub(super) struct GrpcResponse {
    scanner: Scanner<Field>,
    engine: EngineFacts,
    message: Message,
    /// A name or finish reason. Longer values are truncated and so match no known word.
    word: Capture<24>,
}

/// State of the current message that is not part of the event's draft.
#[derive(Clone, Copy, Debug, Default)]
struct Message {
    /// The current word is kept.
    wanted: bool,
    /// Number of tensor descriptions, and of raw tensors, in the message so far.
    described: u8,
    raw: u8,
    /// The index of the text tensor.
    text: Option<u8>,
    /// The name of the current parameter is [`FINAL_RESPONSE`].
    at_final: bool,
    /// This is the last response.
    is_final: bool,
    /// At least one tensor is not empty.
    filled: bool,
}

impl GrpcResponse {
    /// Decoder for responses of this method.
    pub(super) fn new(method: &Method) -> GrpcResponse {
        let scanner = Scanner::new(method.response);
        GrpcResponse { scanner, engine: method.engine, message: Message::default(), word: Capture::default() }
    }

    /// Processes the next bytes of a message.
    pub(super) fn feed(&mut self, bytes: &[u8], reading: &mut ResponseState) {
        let GrpcResponse { scanner, message, word, .. } = self;
        scanner.feed(bytes, &mut Taking { reading, message, word });
    }

    /// Ends the message and returns its event.
    pub(super) fn end_message(&mut self, reading: &mut ResponseState) -> StreamEvent {
        reading.mark(self.engine);
        let whole = self.scanner.finish();
        let Message { is_final, filled, text, .. } = std::mem::take(&mut self.message);
        let event = reading.take(!whole);
        StreamEvent { end: event.end || is_final, unread: filled && text.is_none(), ..event }
    }
}

/// Fills the event's draft with the values that the scanner finds.
struct Taking<'a> {
    reading: &'a mut ResponseState,
    message: &'a mut Message,
    word: &'a mut Capture<24>,
}

impl Taking<'_> {
    fn usage(&mut self, count: Place, value: u64) {
        let draft = self.reading.draft();
        draft.facts.set(Flag::Usage);
        draft.put(count, value);
    }

    fn word_of(spot: Field) -> Option<Place> {
        match spot {
            Field::Id => Some(Place::Id),
            Field::Model => Some(Place::Model),
            Field::Finish => Some(Place::FinishReason),
            _ => None,
        }
    }
}

impl Sink<Field> for Taking<'_> {
    fn begin(&mut self, spot: Field, length: u64) {
        match spot {
            Field::Chunk | Field::Complete => {
                self.reading.begin(Place::CompletionChoice, b'{');
                if spot == Field::Chunk {
                    self.reading.draft().add(Place::TokenId, 0);
                }
            }
            Field::Text if length > 0 => self.reading.draft().facts.channels.insert(Channels::CONTENT),
            Field::ErrorMessage if length > 0 => self.reading.draft().facts.set(Flag::Error),
            Field::Parameter => self.message.at_final = false,
            Field::TensorText if length > 0 => {
                self.message.filled = true;
                if self.message.text.map(|text| text + 1) == Some(self.message.described) {
                    self.reading.draft().facts.channels.insert(Channels::CONTENT);
                }
            }
            Field::Tensor => self.message.described = self.message.described.saturating_add(1),
            Field::RawTensor => self.message.raw = self.message.raw.saturating_add(1),
            Field::ParameterName | Field::TensorName => self.word.clear(),
            _ => {
                if let Some(place) = Self::word_of(spot) {
                    self.message.wanted = self.reading.wants_word(place);
                }
            }
        }
    }

    fn part(&mut self, spot: Field, part: &[u8]) {
        match spot {
            Field::ParameterName | Field::TensorName => self.word.push(part),
            Field::RawTensor => {
                // Strings are encoded with their lengths, so all bytes are 0 only if all strings are empty.
                let filled = part.iter().any(|byte| *byte != 0);
                self.message.filled |= filled;
                if filled && self.message.text.map(|text| text + 1) == Some(self.message.raw) {
                    self.reading.draft().facts.channels.insert(Channels::CONTENT);
                }
            }
            _ => {
                if let Some(place) = Self::word_of(spot).filter(|_| self.message.wanted) {
                    self.reading.word_part(place, part);
                }
            }
        }
    }

    fn end(&mut self, spot: Field) {
        match spot {
            Field::ParameterName => self.message.at_final = self.word.bytes() == FINAL_RESPONSE,
            Field::TensorName if self.word.bytes() == TEXT_TENSOR => {
                self.message.text = self.message.described.checked_sub(1);
            }
            _ => {
                if let Some(place) = Self::word_of(spot).filter(|_| self.message.wanted) {
                    self.reading.word_end(place);
                }
            }
        }
    }

    fn number(&mut self, spot: Field, value: u64) {
        match spot {
            Field::Index => self.reading.draft().facts.choice = u32::try_from(value).unwrap_or(u32::MAX),
            Field::TokenId => self.reading.draft().add(Place::TokenId, 1),
            Field::NewTokens => self.reading.draft().add(Place::TokenId, value),
            Field::PromptTokens => self.usage(Place::PromptTokens, value),
            Field::OutputTokens => self.usage(Place::CompletionTokens, value),
            Field::CachedTokens => self.usage(Place::CachedTokens, value),
            Field::ReasoningTokens => self.usage(Place::ReasoningTokens, value),
            Field::FinishCode => {
                let reason = match value {
                    0 => return,
                    1 => FinishReason::Length,
                    2 => FinishReason::Stop,
                    3 => FinishReason::Abort,
                    _ => FinishReason::Other,
                };
                self.reading.draft().finishes.push(reason);
            }
            Field::ParameterFlag if self.message.at_final => self.message.is_final |= value != 0,
            _ => {}
        }
    }
}
