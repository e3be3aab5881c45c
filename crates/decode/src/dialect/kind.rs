//! What the `type` of an event says: of the dialects whose events name themselves (OpenAI Responses and realtime, Anthropic
//! Messages, Cohere chat, OpenAI transcription).
//!
//! The word may stand before or after what it tells about, so it is kept as a fact of the event and weighed at its end.

use crate::Channels;

/// The longest of the words, `conversation.item.input_audio_transcription.completed`, has 53 bytes.
pub(super) const LONGEST: usize = 56;

/// What an event is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// It does not say, or says nothing that matters here.
    #[default]
    Other,
    /// A piece of the answer's text.
    Text,
    /// A piece of reasoning, or of its summary.
    Reasoning,
    /// A piece of a call's arguments, input or code.
    Call,
    /// A piece of a refusal.
    Refusal,
    /// A piece of speech, or of its transcript.
    Audio,
    /// A piece of what a speaker said: the answer itself in a session that transcribes, else nothing of the answer.
    Heard,
    /// The end of that.
    HeardAll,
    /// An item of the answer begins; that of a call has its name.
    ItemAdded,
    /// The last event of an answer.
    End,
    /// The last event of an answer that failed.
    Failed,
    /// An error.
    Error,
    /// A sign of life, in the shape of an event.
    Ping,
    /// A client's message that asks for an answer.
    Ask,
}

impl Kind {
    /// The kind that this word on the wire names.
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
            b"response.failed" => Kind::Failed,
            b"error" => Kind::Error,
            b"ping" => Kind::Ping,
            b"response.create" | b"input_audio_buffer.commit" => Kind::Ask,
            b"conversation.item.input_audio_transcription.delta" => Kind::Heard,
            b"conversation.item.input_audio_transcription.completed"
            | b"conversation.item.input_audio_transcription.failed" => Kind::HeardAll,
            _ => word.strip_suffix(b".delta").map_or(Kind::Other, Kind::of_piece),
        }
    }

    /// The kind of a `*.delta` event of the Responses and realtime APIs (openai-python 3.52).
    fn of_piece(name: &[u8]) -> Kind {
        match name {
            b"transcript.text" | b"transcription" => return Kind::Text,
            b"session.output_audio" | b"session.output_transcript" => return Kind::Audio,
            // What a tool put out, not the model.
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

    /// The same in a session that transcribes, or does not.
    pub(super) fn in_session(self, transcribes: bool) -> Kind {
        match self {
            // SGLang 0.5, and OpenAI's transcription sessions.
            Kind::Heard if transcribes => Kind::Text,
            Kind::HeardAll if transcribes => Kind::End,
            kind => kind,
        }
    }

    /// The channel of an event of this kind with text in its `delta`.
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

    /// The answer ends here.
    pub(super) fn ends(self) -> bool {
        matches!(self, Kind::End | Kind::Failed)
    }

    /// The answer failed.
    pub(super) fn fails(self) -> bool {
        matches!(self, Kind::Error | Kind::Failed)
    }
}
