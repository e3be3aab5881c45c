//! What a request asks for, read from its body and checked as vLLM checks it.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde::de::MapAccess;
use serde::de::SeqAccess;
use serde::de::Visitor;

use crate::sim::server::fault::Fault;
use crate::sim::server::settings::Settings;

/// Which of the two APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
}

/// A generation that was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) api: Api,
    pub(crate) model: String,
    pub(crate) fault: Option<Fault>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    /// Sequences to generate: `n` times the number of prompts.
    pub(crate) choices: u32,
    pub(crate) prompt_tokens: u64,
    pub(crate) max_tokens: u64,
    pub(crate) ignore_eos: bool,
}

/// A request that is refused: what goes into the error envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) param: Option<&'static str>,
    pub(crate) message: String,
}

#[derive(Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Messages>,
    prompt: Option<Messages>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    n: Option<u32>,
    #[serde(default)]
    ignore_eos: bool,
    #[serde(default)]
    return_token_ids: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StreamOptions {
    include_usage: bool,
    continuous_usage_stats: bool,
}

/// The size of a prompt: its text is measured and forgotten.
#[derive(Debug, Default, PartialEq, Eq)]
struct Messages {
    /// Bytes of all strings.
    bytes: u64,
    /// Numbers: a prompt may be given as token ids.
    numbers: u64,
    /// Elements, if it is a list.
    elements: u64,
    /// Whether the elements are prompts of their own: strings or lists.
    several: bool,
}

impl Messages {
    /// A simulated tokenizer: four bytes a token, and a few tokens around each message.
    fn tokens(&self, api: Api) -> u64 {
        let frame = if api == Api::Chat { 3 + 4 * self.elements } else { 0 };
        (frame + self.bytes.div_ceil(4) + self.numbers).max(1)
    }
}

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Messages, D::Error> {
        deserializer.deserialize_any(Measure)
    }
}

struct Measure;

impl<'de> Visitor<'de> for Measure {
    type Value = Messages;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_str<E>(self, text: &str) -> Result<Messages, E> {
        Ok(Messages { bytes: text.len() as u64, ..Messages::default() })
    }

    fn visit_u64<E>(self, _: u64) -> Result<Messages, E> {
        Ok(Messages { numbers: 1, ..Messages::default() })
    }

    fn visit_i64<E>(self, _: i64) -> Result<Messages, E> {
        Ok(Messages::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Messages, E> {
        Ok(Messages::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Messages, E> {
        Ok(Messages::default())
    }

    fn visit_unit<E>(self) -> Result<Messages, E> {
        Ok(Messages::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Messages, A::Error> {
        let mut all = Messages::default();
        while let Some(element) = elements.next_element::<Messages>()? {
            all.bytes += element.bytes;
            all.numbers += element.numbers;
            all.elements += 1;
            all.several |= element.bytes > 0 || element.elements > 0;
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Messages, A::Error> {
        let mut all = Messages::default();
        while let Some(key) = members.next_key::<String>()? {
            if matches!(key.as_str(), "content" | "text") {
                let value = members.next_value::<Messages>()?;
                all.bytes += value.bytes;
                all.numbers += value.numbers;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(all)
    }
}

/// Tokens that `/v1/completions` generates when the request does not say (the OpenAI default).
const COMPLETION_TOKENS: u64 = 16;

impl Job {
    /// Reads a request's body.
    pub(crate) fn read(api: Api, body: &[u8], settings: &Settings) -> Result<Job, Refusal> {
        let body: Body = serde_json::from_slice(body).map_err(|error| bad_request(None, error.to_string()))?;
        let model = body.model.unwrap_or_else(|| settings.model.clone());
        let fault = model.strip_prefix("fault/").and_then(|fault| fault.parse().ok());
        if model != settings.model && fault.is_none() {
            return Err(Refusal {
                status: 404,
                kind: "NotFoundError",
                param: Some("model"),
                message: format!("The model `{model}` does not exist. Valid aliases: {}.", settings.model),
            });
        }
        let (prompt, name) = match api {
            Api::Chat => (body.messages, "messages"),
            Api::Completions => (body.prompt, "prompt"),
        };
        let Some(prompt) = prompt else {
            return Err(bad_request(Some(name), format!("1 validation error:\n  {name}: Field required")));
        };
        let prompts = match api {
            Api::Completions if prompt.several => prompt.elements.min(64) as u32,
            _ => 1,
        };
        let prompt_tokens = prompt.tokens(api);
        let room = settings.max_model_len.saturating_sub(prompt_tokens);
        let asked = body.max_completion_tokens.or(body.max_tokens);
        if room == 0 || asked.is_some_and(|asked| asked > room) {
            let message = format!(
                "{} tokens were asked for after a prompt of {prompt_tokens}, but max_model_len={}. Please request \
                 fewer output tokens.",
                asked.unwrap_or(1),
                settings.max_model_len
            );
            return Err(bad_request(Some("max_tokens"), message));
        }
        let options = body.stream_options.unwrap_or_default();
        let forced = settings.force_include_usage;
        Ok(Job {
            api,
            model,
            fault,
            stream: body.stream,
            include_usage: options.include_usage || forced,
            continuous_usage: (options.include_usage && options.continuous_usage_stats) || forced,
            return_token_ids: body.return_token_ids,
            choices: body.n.unwrap_or(1).clamp(1, 128) * prompts,
            prompt_tokens,
            max_tokens: asked
                .unwrap_or(if api == Api::Completions { COMPLETION_TOKENS.min(room) } else { room })
                .max(1),
            ignore_eos: body.ignore_eos,
        })
    }
}

fn bad_request(param: Option<&'static str>, message: String) -> Refusal {
    Refusal { status: 400, kind: "BadRequestError", param, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(api: Api, body: &str) -> Result<Job, Refusal> {
        Job::read(api, body.as_bytes(), &Settings { max_model_len: 100, ..Settings::default() })
    }

    #[test]
    fn prompts_of_every_shape_are_measured() {
        for (api, body, tokens, choices) in [
            (Api::Completions, r#"{"prompt":"12345678"}"#, 2, 1),
            (Api::Completions, r#"{"prompt":[7,8,9]}"#, 3, 1),
            (Api::Completions, r#"{"prompt":["1234","5678"],"n":2}"#, 2, 4),
            (Api::Completions, r#"{"prompt":[[1,2],[3]]}"#, 3, 2),
            (Api::Completions, r#"{"prompt":""}"#, 1, 1),
            (Api::Chat, r#"{"messages":[{"role":"user","content":"12345678"}]}"#, 9, 1),
            (Api::Chat, r#"{"messages":[{"content":[{"type":"text","text":"\u00e9456"},{"x":1}]}]}"#, 9, 1),
            (Api::Chat, r#"{"messages":[{"content":null,"tool_calls":[{"id":"a"}]}],"n":3}"#, 7, 3),
        ] {
            let job = read(api, body).unwrap();
            assert_eq!((job.prompt_tokens, job.choices), (tokens, choices), "{body}");
        }
    }

    #[test]
    fn an_answer_is_as_long_as_asked_and_as_there_is_room() {
        assert_eq!(read(Api::Completions, r#"{"prompt":"1234"}"#).unwrap().max_tokens, 16);
        assert_eq!(read(Api::Chat, r#"{"messages":[]}"#).unwrap().max_tokens, 97);
        let both = r#"{"messages":[],"max_tokens":5,"max_completion_tokens":6}"#;
        assert_eq!(read(Api::Chat, both).unwrap().max_tokens, 6);
        for body in [r#"{"messages":[],"max_tokens":98}"#, r#"{"max_tokens":1}"#, "{", "[]", ""] {
            assert_eq!(read(Api::Chat, body).unwrap_err().status, 400, "{body}");
        }
    }

    #[test]
    fn continuous_usage_needs_usage_unless_it_is_forced() {
        let body = r#"{"messages":[],"stream_options":{"continuous_usage_stats":true}}"#;
        let job = read(Api::Chat, body).unwrap();
        assert_eq!((job.include_usage, job.continuous_usage), (false, false));
        let forced = Settings { force_include_usage: true, ..Settings::default() };
        let job = Job::read(Api::Chat, br#"{"messages":[]}"#, &forced).unwrap();
        assert_eq!((job.include_usage, job.continuous_usage), (true, true));
    }
}
