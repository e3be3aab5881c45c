//! Where the JSON of each API holds what the load generator measures.
//!
//! Chat and completions have a faster parser ([`crate::load::events`]) because benchmarks use them.

use serde_json::Value;

use crate::load::api::Api;

/// How a client recognizes that a stream is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// `[DONE]`.
    Done,
    /// An event of one of these types.
    Types(&'static [&'static str]),
    /// An event with `true` or a string at this place.
    At(&'static str),
    /// Only the end of the body.
    End,
}

/// The places of values in an API's events, as JSON pointers (RFC 6901).
#[derive(Debug)]
pub(crate) struct Shape {
    /// A non-empty string or list at any of these places contains tokens.
    tokens: &'static [&'static str],
    /// Output tokens so far.
    count: &'static str,
    /// Output tokens in a response that is not streamed.
    pub(crate) whole: &'static str,
    mark: Mark,
}

/// Contents of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) tokens: bool,
    pub(crate) count: Option<u64>,
    pub(crate) done: bool,
    pub(crate) error: bool,
}

impl Shape {
    pub(crate) fn of(api: Api) -> Shape {
        let shape = |tokens, count, whole, mark| Shape { tokens, count, whole, mark };
        match api {
            Api::Chat | Api::Completions => shape(&[], "", "/usage/completion_tokens", Mark::Done),
            Api::Responses => shape(
                &["/delta"],
                "/response/usage/output_tokens",
                "/usage/output_tokens",
                Mark::Types(&["response.completed", "response.incomplete", "response.failed"]),
            ),
            Api::Messages => shape(
                &["/delta/text", "/delta/thinking", "/delta/partial_json"],
                "/usage/output_tokens",
                "/usage/output_tokens",
                Mark::Types(&["message_stop"]),
            ),
            Api::Generate | Api::LmDeployGenerate => {
                shape(&["/output_ids"], "/meta_info/completion_tokens", "/meta_info/completion_tokens", Mark::Done)
            }
            Api::LlamaCompletion | Api::Infill => {
                shape(&["/content"], "/tokens_predicted", "/tokens_predicted", Mark::At("/stop"))
            }
            Api::TgiGenerate => shape(
                &["/token/text"],
                "/details/generated_tokens",
                "/details/generated_tokens",
                Mark::At("/generated_text"),
            ),
            Api::TgiCompat => shape(
                &["/token/text"],
                "/details/generated_tokens",
                "/0/details/generated_tokens",
                Mark::At("/generated_text"),
            ),
            Api::OllamaChat => shape(
                &["/message/content", "/message/thinking", "/message/tool_calls"],
                "/eval_count",
                "/eval_count",
                Mark::At("/done"),
            ),
            Api::OllamaGenerate => shape(&["/response", "/thinking"], "/eval_count", "/eval_count", Mark::At("/done")),
            Api::TritonGenerate => shape(&["/text_output"], "", "", Mark::End),
            Api::VllmGenerate => {
                shape(&["/choices/0/token_ids"], "/usage/completion_tokens", "/usage/completion_tokens", Mark::Done)
            }
            Api::CohereChat => shape(
                &["/delta/message/content/text"],
                "/delta/usage/tokens/output_tokens",
                "/usage/tokens/output_tokens",
                Mark::Types(&["message-end"]),
            ),
            // A non-streamed transcription reports seconds, not tokens.
            Api::AudioTranscription | Api::AudioTranslation => {
                shape(&["/choices/0/delta/content"], "/usage/completion_tokens", "", Mark::Done)
            }
        }
    }

    /// Whether only the end of the body marks the end of a stream.
    pub(crate) fn ends_unmarked(&self) -> bool {
        self.mark == Mark::End
    }

    /// Whether `[DONE]` marks the end of a stream.
    pub(crate) fn ends_with_done(&self) -> bool {
        self.mark == Mark::Done
    }

    /// Reads one event.
    pub(crate) fn read(&self, event: &Value) -> Said {
        let full = |at: &&str| match event.pointer(at) {
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            _ => false,
        };
        let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
        let fails = kind == "response.failed" || event.pointer("/delta/finish_reason") == Some(&Value::from("ERROR"));
        Said {
            tokens: self.tokens.iter().any(full),
            count: event.pointer(self.count).and_then(Value::as_u64),
            done: match self.mark {
                Mark::Types(types) => types.contains(&kind),
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
            let Said { tokens, count, done, error } = Shape::of(api).read(&event);
            assert_eq!((tokens, count, done, error), expected, "{api}: {event}");
        }
    }
}
