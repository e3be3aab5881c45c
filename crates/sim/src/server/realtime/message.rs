//! Client messages of a session, and the input collected until a response is requested.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::server::api::Api;
use crate::server::form;
use crate::server::job::Body;
use crate::server::prompt::Prompt;

/// A client message, with every key that the server reads.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(super) struct Message {
    #[serde(rename = "type")]
    pub(super) kind: String,
    /// `session.update` of vLLM.
    model: Option<String>,
    /// `session.update` of OpenAI.
    pub(super) session: Option<Value>,
    /// `input_audio_buffer.append`.
    audio: Option<String>,
    /// `input_audio_buffer.commit` of vLLM: end of the audio.
    #[serde(rename = "final")]
    last: bool,
    /// `conversation.item.create`.
    pub(super) item: Option<Value>,
    /// `response.create`.
    response: Option<Response>,
}

/// Parameters of a requested response.
#[derive(Clone, Deserialize, Debug, Default)]
#[serde(default)]
struct Response {
    instructions: Option<Prompt>,
    input: Option<Prompt>,
    /// A number, or `"inf"`.
    max_output_tokens: Option<Value>,
}

/// A requested response.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) api: Api,
    pub(super) body: Body,
}

/// Input of a session so far.
#[derive(Debug)]
pub(super) struct Input {
    openai: bool,
    /// vLLM rejects clients that named no model.
    model: Option<String>,
    audio_bytes: usize,
    /// All audio of the request has arrived.
    complete: bool,
    conversation: Prompt,
    response: Option<Response>,
}

impl Input {
    pub(super) fn new(openai: bool) -> Input {
        let conversation = Prompt::default();
        Input { openai, model: None, audio_bytes: 0, complete: openai, conversation, response: None }
    }

    /// Processes a message and returns whether it requests a response.
    ///
    /// # Errors
    /// An error code and a text for unsupported input.
    pub(super) fn take(&mut self, message: &Message) -> Result<bool, (&'static str, String)> {
        match (message.kind.as_str(), self.openai) {
            ("session.update", _) => {
                self.model = message.model.clone().or(self.model.take());
                Ok(false)
            }
            ("input_audio_buffer.append", _) => self.append(message).map(|()| false),
            ("input_audio_buffer.commit", false) if self.model.is_none() => {
                let text = "Model not validated. Make sure to validate the model by sending a session.update event.";
                Err(("model_not_validated", text.to_owned()))
            }
            ("input_audio_buffer.commit", false) => {
                self.complete |= message.last;
                Ok(!message.last)
            }
            ("input_audio_buffer.commit" | "response.cancel", true) => Ok(false),
            ("conversation.item.create", true) => {
                let item = message.item.as_ref().and_then(|item| Prompt::deserialize(item).ok());
                self.conversation = self.conversation.join(item);
                Ok(false)
            }
            ("response.create", true) => {
                self.response = message.response.clone();
                Ok(true)
            }
            (kind, _) => Err(("unknown_event", format!("Unknown event type: {kind}"))),
        }
    }

    /// Processes a message during a response: only audio counts then.
    pub(super) fn take_during_answer(&mut self, message: &Message) {
        match message.kind.as_str() {
            "input_audio_buffer.append" => self.append(message).unwrap_or_default(),
            "input_audio_buffer.commit" => self.complete |= message.last,
            _ => {}
        }
    }

    fn append(&mut self, message: &Message) -> Result<(), (&'static str, String)> {
        let audio = BASE64_STANDARD.decode(message.audio.as_deref().unwrap_or_default()).unwrap_or_default();
        if audio.is_empty() {
            return Err(("invalid_audio", "Invalid audio data".to_owned()));
        }
        self.audio_bytes += audio.len();
        Ok(())
    }

    /// Whether the response may end.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Parameters of the next response.
    pub(super) fn asked(&mut self) -> Asked {
        let audio = (self.audio_bytes > 0).then(|| form::audio(self.audio_bytes));
        if !self.openai {
            let input = Some(audio.unwrap_or_else(|| form::audio(0)));
            return Asked {
                api: Api::Transcription,
                body: Body { model: self.model.clone(), input, ..Body::default() },
            };
        }
        let response = self.response.take().unwrap_or_default();
        let input = response.input.unwrap_or(self.conversation).join(response.instructions).join(audio);
        let max_output_tokens = response.max_output_tokens.and_then(|limit| limit.as_u64());
        Asked { api: Api::Responses, body: Body { input: Some(input), max_output_tokens, ..Body::default() } }
    }

    /// Resets the input after a response.
    pub(super) fn answered(&mut self) {
        (self.audio_bytes, self.complete) = (0, self.openai);
    }
}
