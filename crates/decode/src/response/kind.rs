//! The meaning of an event's `type`, for dialects with typed events (OpenAI Responses and realtime, Anthropic Messages,
//! Cohere chat, OpenAI transcription).
//!
//! The `type` may precede or follow the data it describes, so it is stored with the event's facts and applied when the
//! event ends.

use crate::Channels;

/// The end of the `type` of an event that repeats all pieces of a text (Responses, realtime).
pub(super) const DONE: &[u8] = b".done";

/// The longest known `type`, `conversation.item.input_audio_transcription.completed`, has 53 bytes.
pub(super) const LONGEST: usize = 56;

/// The kind of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// No `type`, or a `type` without effect here.
    #[default]
    Other,
    /// A piece of the response text.
    Text,
    /// A piece of reasoning or of a reasoning summary.
    Reasoning,
    /// A piece of a tool call's arguments, input or code.
    Call,
    /// A piece of a refusal.
    Refusal,
    /// A piece of speech or of its transcript.
    Audio,
    /// A piece of the transcribed input. In a transcription session, it is the response; otherwise, it is not part of
    /// the response.
    InputTranscript,
    /// The end of the transcribed input.
    InputTranscriptEnd,
    /// An output item begins. For a tool call, this event has the tool name.
    ItemAdded,
    /// A piece of a block (Messages), which has a place of its own.
    BlockDelta,
    /// The last event of a response.
    End,
    /// The last event of a canceled response.
    Canceled,
    /// The last event of a failed response.
    Failed,
    /// An error.
    Error,
    /// A keep-alive event.
    Ping,
    /// A client message that requests a response.
    ResponseRequest,
}

impl Kind {
    /// The kind for this `type` on the wire.
    pub(super) fn from_wire(word: &[u8]) -> Kind {
        match word {
            b"response.output_text.delta" => Kind::Text,
            b"response.reasoning_text.delta" | b"response.reasoning_summary_text.delta" => Kind::Reasoning,
            b"response.function_call_arguments.delta" => Kind::Call,
            b"response.output_item.added" => Kind::ItemAdded,
            // `transcript.text.done`: OpenAI, llama.cpp; `transcription.done`: vLLM 0.33's realtime.
            b"response.completed"
            | b"response.incomplete"
            | b"response.done"
            | b"message_stop"
            | b"message-end"
            | b"transcript.text.done"
            | b"transcription.done" => Kind::End,
            b"response.cancelled" => Kind::Canceled,
            b"content_block_delta" => Kind::BlockDelta,
            b"response.failed" => Kind::Failed,
            b"error" => Kind::Error,
            b"ping" => Kind::Ping,
            b"response.create" | b"input_audio_buffer.commit" => Kind::ResponseRequest,
            b"conversation.item.input_audio_transcription.delta" => Kind::InputTranscript,
            b"conversation.item.input_audio_transcription.completed"
            | b"conversation.item.input_audio_transcription.failed" => Kind::InputTranscriptEnd,
            _ => {
                let name = word.strip_suffix(b".delta").or_else(|| word.strip_suffix(DONE));
                name.map_or(Kind::Other, Kind::of_piece)
            }
        }
    }

    /// The kind of a `*.delta` or `*.done` event of the Responses and realtime APIs (openai-python 3.52).
    fn of_piece(name: &[u8]) -> Kind {
        match name {
            b"transcript.text" | b"transcription" => return Kind::Text,
            b"session.output_audio" | b"session.output_transcript" => return Kind::Audio,
            // Output of a tool, not of the model.
            b"response.shell_call_output_content" => return Kind::Other,
            _ => {}
        }
        let Some(what) = name.strip_prefix(b"response.") else { return Kind::Other };
        let has = |part: &[u8]| what.windows(part.len()).any(|window| window == part);
        if what.starts_with(b"reasoning") {
            Kind::Reasoning
        } else if has(b"call") {
            Kind::Call
        } else if has(b"audio") {
            Kind::Audio
        } else if what == b"refusal" {
            Kind::Refusal
        } else {
            Kind::Text
        }
    }

    /// The kind of this event in its session. `transcribes`: it is a transcription session.
    pub(super) fn in_session(self, transcribes: bool) -> Kind {
        match self {
            // SGLang 0.5, and OpenAI's transcription sessions.
            Kind::InputTranscript if transcribes => Kind::Text,
            Kind::InputTranscriptEnd if transcribes => Kind::End,
            kind => kind,
        }
    }

    /// The channel of a non-empty `delta` in an event of this kind.
    pub(super) fn channel(self) -> Channels {
        match self {
            Kind::Text => Channels::CONTENT,
            Kind::Reasoning => Channels::REASONING,
            Kind::Call => Channels::TOOL,
            Kind::Refusal => Channels::REFUSAL,
            Kind::Audio => Channels::AUDIO,
            _ => Channels::default(),
        }
    }

    /// True if the response ends here.
    pub(super) fn ends(self) -> bool {
        matches!(self, Kind::End | Kind::Canceled | Kind::Failed)
    }

    /// True if the response failed.
    pub(super) fn fails(self) -> bool {
        matches!(self, Kind::Error | Kind::Failed)
    }
}
