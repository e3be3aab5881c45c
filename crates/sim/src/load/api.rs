//! The APIs that the load generator supports: their requests, and the locations of the measured fields in their events.

use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::names::named;

named! {
    /// An API of an inference server.
    Api, "API", {
        /// OpenAI chat completions.
        #[default]
        Chat = "chat",
        /// OpenAI completions.
        Completions = "completions",
        /// OpenAI Responses.
        Responses = "responses",
        /// Anthropic Messages.
        Messages = "messages",
        /// SGLang's `/generate`.
        Generate = "generate",
        /// LMDeploy's `/generate`.
        LmDeployGenerate = "lmdeploy_generate",
        /// llama.cpp's `/completion`.
        LlamaCompletion = "llama_completion",
        /// llama.cpp's `/infill`.
        Infill = "infill",
        /// TGI's `/generate_stream` and `/generate`.
        TgiGenerate = "tgi_generate",
        /// TGI's `/`.
        TgiCompat = "tgi_compat",
        /// Ollama's `/api/chat`.
        OllamaChat = "ollama_chat",
        /// Ollama's `/api/generate`.
        OllamaGenerate = "ollama_generate",
        /// Triton's `generate_stream` and `generate`.
        TritonGenerate = "triton_generate",
        /// vLLM's `/inference/v1/generate`: tokens in, tokens out.
        VllmGenerate = "vllm_generate",
        /// Cohere's v2 chat, as served by vLLM.
        CohereChat = "cohere_chat",
        /// OpenAI audio transcription.
        AudioTranscription = "audio_transcription",
        /// OpenAI audio translation.
        AudioTranslation = "audio_translation",
    }
}

/// How a client recognizes that a stream is complete.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    /// `[DONE]`.
    Done,
    /// An event of one of these types.
    Types(Vec<String>),
    /// An event with `true` or a string at this location.
    At(String),
    /// Only the end of the body.
    End,
}

/// An API; locations are JSON pointers (RFC 6901).
#[derive(Debug, Deserialize)]
pub(crate) struct Description {
    api: String,
    /// Request path of a stream.
    pub(crate) path: String,
    /// Request path of a response that is not streamed, if it differs.
    pub(crate) whole_path: Option<String>,
    /// Whether other APIs have the same path.
    #[serde(default)]
    shared: bool,
    /// The request body; `$name` is replaced by a setting. Absent for a multipart form.
    pub(crate) body: Option<Value>,
    /// Whether the final usage has to be requested.
    #[serde(default)]
    pub(crate) usage_option: bool,
    /// A non-empty string or list at any of these locations contains tokens.
    #[serde(default)]
    tokens: Vec<String>,
    /// Location of the output token count so far.
    #[serde(default)]
    count: String,
    /// Location of the output token count in a non-streamed response; a transcription reports seconds instead.
    #[serde(default)]
    pub(crate) whole: String,
    pub(crate) mark: Mark,
}

static APIS: LazyLock<Vec<Description>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("apis.json")).expect("a unit test parses the built-in descriptions")
});

/// Contents of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) tokens: bool,
    pub(crate) count: Option<u64>,
    pub(crate) done: bool,
    pub(crate) error: bool,
}

impl Api {
    pub(crate) fn description(self) -> &'static Description {
        let found = APIS.iter().find(|description| description.api == self.to_string());
        found.expect("a unit test finds a description of every API")
    }

    /// The API that a path belongs to, if only one API uses that path.
    pub(crate) fn at(path: &str) -> Option<Api> {
        let path = path.split('?').next().unwrap_or_default();
        let is_at = |api: &Api| !api.description().shared && path.ends_with(&api.description().path);
        Api::NAMES.iter().map(|(_, api)| *api).find(is_at)
    }
}

impl Description {
    /// Extracts the contents of one event.
    pub(crate) fn read(&self, event: &Value) -> Contents {
        let full = |at: &String| match event.pointer(at) {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            _ => false,
        };
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        let fails = kind == "response.failed" || event.pointer("/delta/finish_reason") == Some(&Value::from("ERROR"));
        Contents {
            tokens: self.tokens.iter().any(full),
            count: event.pointer(&self.count).and_then(Value::as_u64),
            done: match &self.mark {
                Mark::Types(types) => types.iter().any(|known| known == kind),
                Mark::At(at) => matches!(event.pointer(at), Some(Value::Bool(true) | Value::String(_))),
                Mark::Done | Mark::End => false,
            },
            error: fails || event.get("error").is_some_and(|error| !error.is_null()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_api_name_parses_back() {
        for (name, api) in Api::NAMES {
            assert_eq!(name.parse(), Ok(*api));
            assert_eq!(api.to_string(), *name);
            assert_eq!(api.description().api, *name);
        }
        assert!("Chat".parse::<Api>().unwrap_err().to_string().contains("chat, completions, responses"));
    }

    #[test]
    fn unambiguous_path_selects_its_api() {
        assert_eq!(Api::at("/v1/completions?x=1"), Some(Api::Completions));
        assert_eq!(Api::at("/engine1/v1/chat/completions"), Some(Api::Chat));
        assert_eq!(Api::at("/cohere/v2/chat"), Some(Api::CohereChat));
        assert_eq!(Api::at("/generate"), None);
        assert_eq!(Api::at("/"), None);
    }

    #[test]
    fn events_of_every_api_are_read() {
        for (api, event, expected) in [
            (Api::Responses, json!({"type": "response.output_text.delta", "delta": "a"}), (true, None, false, false)),
            (
                Api::Responses,
                json!({"type": "response.completed", "response": {"usage": {"output_tokens": 7}}}),
                (false, Some(7), true, false),
            ),
            (Api::Responses, json!({"type": "response.failed", "response": {}}), (false, None, true, true)),
            (Api::Messages, json!({"type": "content_block_delta", "delta": {"text": "a"}}), (true, None, false, false)),
            (Api::Messages, json!({"type": "message_stop"}), (false, None, true, false)),
            (Api::Messages, json!({"type": "error", "error": {}}), (false, None, false, true)),
            (
                Api::Generate,
                json!({"text": "", "output_ids": [5], "meta_info": {"completion_tokens": 1}}),
                (true, Some(1), false, false),
            ),
            (
                Api::LlamaCompletion,
                json!({"content": "", "stop": true, "tokens_predicted": 9}),
                (false, Some(9), true, false),
            ),
            (
                Api::TgiGenerate,
                json!({"token": {"text": "a"}, "generated_text": null, "details": null}),
                (true, None, false, false),
            ),
            (
                Api::TgiGenerate,
                json!({"token": {"text": "</s>"}, "generated_text": "", "details": {"generated_tokens": 3}}),
                (true, Some(3), true, false),
            ),
            (
                Api::OllamaChat,
                json!({"message": {"content": ""}, "done": true, "eval_count": 4}),
                (false, Some(4), true, false),
            ),
            (Api::OllamaGenerate, json!({"response": "a", "done": false}), (true, None, false, false)),
            (Api::TritonGenerate, json!({"text_output": "a"}), (true, None, false, false)),
            (Api::VllmGenerate, json!({"choices": [{"token_ids": [1]}], "usage": null}), (true, None, false, false)),
            (
                Api::CohereChat,
                json!({"type": "message-end", "delta": {"finish_reason": "ERROR"}}),
                (false, None, true, true),
            ),
        ] {
            let Contents { tokens, count, done, error } = api.description().read(&event);
            assert_eq!((tokens, count, done, error), expected, "{api}: {event}");
        }
    }
}
