//! What a client of a session says, and what comes together of it until an answer is asked for.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::Value;

use crate::server::api::Api;
use crate::server::form;
use crate::server::job::Body;
use crate::server::prompt::Prompt;

/// A message of a client: every key that matters in any of them.
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
    /// `input_audio_buffer.commit` of vLLM: no more audio comes.
    #[serde(rename = "final")]
    last: bool,
    /// `conversation.item.create`.
    pub(super) item: Option<Value>,
    /// `response.create`.
    response: Option<Response>,
}

/// What a response should be like.
#[derive(Clone, Deserialize, Debug, Default)]
#[serde(default)]
struct Response {
    instructions: Option<Prompt>,
    input: Option<Prompt>,
    /// A number, or `"inf"`.
    max_output_tokens: Option<Value>,
}

/// An answer that is asked for.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) api: Api,
    pub(super) body: Body,
}

/// What came in a session so far.
#[derive(Debug)]
pub(super) struct Input {
    openai: bool,
    /// vLLM answers nobody who named no model.
    model: Option<String>,
    audio_bytes: usize,
    /// All audio of the answer is there.
    complete: bool,
    conversation: Prompt,
    response: Option<Response>,
}

impl Input {
    pub(super) fn new(openai: bool) -> Input {
        let conversation = Prompt::default();
        Input { openai, model: None, audio_bytes: 0, complete: openai, conversation, response: None }
    }

    /// Takes a message and tells whether it asks for an answer.
    ///
    /// # Errors
    /// A code and a text, for what the server cannot do.
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

    /// Takes a message while an answer is on its way: only audio counts then.
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

    /// Whether the answer may end.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// What the next answer is to be.
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

    /// The answer is over.
    pub(super) fn answered(&mut self) {
        (self.audio_bytes, self.complete) = (0, self.openai);
    }
}
