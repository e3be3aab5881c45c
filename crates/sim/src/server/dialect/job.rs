//! Generation parameters, read from the request body and validated as engines validate them.
//!
//! Three fields of a recording define which parts of the body to read. `prompt` is a list of keys: the first is the
//! prompt (`a|b`: alternatives; `a?`: optional), `+key` adds to the prompt, and `*key` contains texts to compare the
//! prompt with. `limits` is a list of locations of the maximum number of tokens; `default` is the maximum if none is
//! given.

use serde_json::{Map, Value, json};

use crate::server::dialect::Dialect;
use crate::server::generation::Job;
use crate::server::settings::{Imitation, Settings};

/// A rejected request: the contents of the error envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) param: Option<&'static str>,
    pub(crate) message: String,
}

impl Refusal {
    /// The error response for an injected status.
    pub(crate) fn injected(status: u16) -> Refusal {
        let kind = match status {
            404 => "NotFoundError",
            429 => "TooManyRequestsError",
            503 => "ServiceUnavailableError",
            500..=599 => "InternalServerError",
            _ => "BadRequestError",
        };
        Refusal { status, kind, param: None, message: "The simulated server was asked to fail.".to_owned() }
    }
}

pub(crate) fn bad_request(param: Option<&'static str>, message: String) -> Refusal {
    Refusal { status: 400, kind: "BadRequestError", param, message }
}

impl Job {
    /// Reads a job from a request body and the size of its prompt.
    pub(crate) fn read(
        dialect: &Dialect,
        body: &Value,
        prompt: Option<Prompt>,
        engine: Imitation,
        settings: &Settings,
    ) -> Result<Job, Refusal> {
        let engine = dialect.engine(engine);
        let server = Dialect::named(&format!("server_{engine}"));
        let at = |place: &str| place.split('/').try_fold(body, |value, key| value.get(key));
        let number = |place: &str| at(place).and_then(Value::as_u64);
        let yes = |place: &str| at(place) == Some(&Value::Bool(true));
        let model = at("model").and_then(Value::as_str).unwrap_or(&settings.model).to_owned();
        let fault = model.strip_prefix("fault/").and_then(|fault| fault.parse().ok());
        // The other engines accept any model name.
        if server.is("strict_model") && fault.is_none() && model != settings.model {
            let message = match engine {
                Imitation::Ollama => format!("model '{model}' not found"),
                _ => format!("The model `{model}` does not exist. Valid aliases: {}.", settings.model),
            };
            return Err(Refusal { status: 404, kind: "NotFoundError", param: Some("model"), message });
        }
        let Some(prompt) = prompt else {
            let key = dialect.field("prompt").and_then(|keys| keys.split([' ', '|']).next()).unwrap_or_default();
            return Err(bad_request(Some(key), format!("1 validation error:\n  {key}: Field required")));
        };
        let prompts = if dialect.is("several") { prompt.prompts() } else { 1 };
        let prompt_tokens = if dialect.is("chat") { prompt.chat_tokens() } else { prompt.tokens() };
        let room = settings.max_model_len.saturating_sub(prompt_tokens);
        let limit = dialect.field("limits").and_then(|places| places.split(' ').find_map(number));
        if room == 0 || limit.is_some_and(|limit| limit > room) {
            let message = format!(
                "{} tokens were asked for after a prompt of {prompt_tokens}, but max_model_len={}. Please request \
                 fewer output tokens.",
                limit.unwrap_or(1),
                settings.max_model_len
            );
            return Err(bad_request(Some("max_tokens"), message));
        }
        let usual = dialect.field("default").and_then(|tokens| tokens.parse().ok()).unwrap_or(room);
        let forced = settings.force_include_usage;
        // TensorRT-LLM defaults to true if `stream_options` is present without this option.
        let implied = engine == Imitation::TensorRtLlm && at("stream_options").is_some_and(Value::is_object);
        let include_usage = at("stream_options/include_usage").and_then(Value::as_bool).unwrap_or(implied);
        let several = number("n").or_else(|| number("sampling_params/n")).unwrap_or(1).clamp(1, 128) as u32;
        let cached_tokens = (prompt_tokens as f64 * settings.cached_share.clamp(0.0, 1.0)) as u64;
        let timing = at("nvext/extra_fields").and_then(Value::as_array);
        Ok(Job {
            model,
            fault,
            stream: match dialect.field("stream") {
                Some("always") => true,
                Some("never") => false,
                _ => {
                    let requested = at("stream").and_then(Value::as_bool);
                    requested.unwrap_or(server.is("streams")) && dialect.generates()
                }
            },
            include_usage: include_usage || forced,
            continuous_usage: (include_usage && yes("stream_options/continuous_usage_stats")) || forced,
            return_token_ids: yes("return_token_ids"),
            details: yes("parameters/details") || timing.is_some_and(|fields| fields.contains(&"timing".into())),
            choices: if dialect.is("single") || server.is("single") { 1 } else { several * prompts },
            inputs: u64::from(prompt.prompts()),
            empty: prompt == Prompt::default(),
            prompt_tokens,
            // The last prompt token is never served from the cache: its logits are needed.
            cached_tokens: cached_tokens.min(prompt_tokens.saturating_sub(1)),
            max_tokens: limit.unwrap_or(usual.min(room)).max(1),
            ignore_eos: yes("ignore_eos") || yes("sampling_params/ignore_eos"),
        })
    }
}

/// The size of a prompt in any of its JSON shapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    /// Total bytes of all strings.
    bytes: u64,
    /// Count of numbers: a prompt can be given as token ids.
    numbers: u64,
    /// Number of elements, if it is a list.
    elements: u64,
    /// Whether the elements are separate prompts: strings or lists.
    several: bool,
}

impl Prompt {
    /// The prompt in a request body.
    pub(crate) fn read(dialect: &Dialect, body: &Value) -> Option<Prompt> {
        if dialect.is("form") {
            return body.get("file").and_then(Value::as_u64).map(audio);
        }
        let value = |key: &str| body.get(key).filter(|value| !value.is_null()).map(Prompt::of);
        let mut keys = dialect.field("prompt")?.split(' ');
        let first = keys.next()?;
        let found = first.split('|').find_map(|key| value(key.trim_end_matches('?')));
        let prompt = found.or(first.ends_with('?').then(Prompt::default))?;
        Some(keys.fold(prompt, |prompt, key| match key.split_at(1) {
            ("*", key) => prompt.against(value(key)),
            (_, key) => prompt.join(value(key)),
        }))
    }

    /// The size of a JSON value; in an object, only the members with content count.
    pub(crate) fn of(value: &Value) -> Prompt {
        let mut all = Prompt::default();
        match value {
            Value::String(text) => all.bytes = text.len() as u64,
            Value::Number(number) if number.is_u64() => all.numbers = 1,
            Value::Array(elements) => {
                for element in elements.iter().map(Prompt::of) {
                    all = all.join(Some(element));
                    all.elements += 1;
                    all.several |= element.bytes > 0 || element.elements > 0;
                }
            }
            Value::Object(members) => {
                for key in ["content", "text", "input"] {
                    all = all.join(members.get(key).map(Prompt::of));
                }
            }
            _ => {}
        }
        all
    }

    /// Simulated token count: four bytes per token.
    fn tokens(&self) -> u64 {
        (self.bytes.div_ceil(4) + self.numbers).max(1)
    }

    /// Token count of a conversation: adds a few tokens per message and per conversation.
    fn chat_tokens(&self) -> u64 {
        3 + 4 * self.elements + self.bytes.div_ceil(4) + self.numbers
    }

    /// Number of prompts with separate generations.
    fn prompts(&self) -> u32 {
        if self.several { self.elements.min(64) as u32 } else { 1 }
    }

    /// The prompt for comparing one text with each of the others.
    fn against(self, others: Option<Prompt>) -> Prompt {
        let elements = others.as_ref().map_or(1, |others| u64::from(others.prompts()));
        Prompt { elements, several: true, ..self.join(others) }
    }

    /// Adds another part of the same prompt.
    pub(crate) fn join(mut self, other: Option<Prompt>) -> Prompt {
        let other = other.unwrap_or_default();
        self.bytes += other.bytes;
        self.numbers += other.numbers;
        self
    }
}

/// Bytes per second of audio: 16 kHz, 16 bits, mono.
const SECOND_BYTES: u64 = 32_000;

/// Tokens in Whisper's prompt: start, language, task, no timestamps.
const WHISPER_TOKENS: u64 = 4;

/// The prompt for this many bytes of audio; its elements are seconds.
pub(crate) fn audio(bytes: u64) -> Prompt {
    let elements = bytes.div_ceil(SECOND_BYTES).max(1);
    Prompt { numbers: WHISPER_TOKENS, elements, several: true, ..Prompt::default() }
}

/// Converts the fields that audio transcription needs from a multipart form (RFC 7578) to JSON, as the other APIs have
/// it. A file is replaced by its size in bytes.
pub(crate) fn form(body: &[u8], content_type: &str) -> Result<Value, Refusal> {
    let boundary = content_type.split(';').find_map(|part| part.trim().strip_prefix("boundary="));
    let Some(boundary) = boundary.map(|boundary| boundary.trim_matches('"')) else {
        return Err(bad_request(None, "the body is not a form: Content-Type has no boundary".to_owned()));
    };
    let (mut fields, mut options) = (Map::new(), Map::new());
    for part in parts(body, boundary) {
        let Some(at) = memchr::memmem::find(part, b"\r\n\r\n") else { continue };
        let (head, value) = part.split_at(at);
        let value = value.get(4..).unwrap_or_default();
        let head = String::from_utf8_lossy(head);
        let name = head.split("name=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let text = String::from_utf8_lossy(value);
        let yes = matches!(text.to_ascii_lowercase().as_str(), "true" | "1");
        match name {
            "file" => fields.insert(name.to_owned(), value.len().into()),
            "model" => fields.insert(name.to_owned(), text.into()),
            "stream" => fields.insert(name.to_owned(), yes.into()),
            "max_completion_tokens" => fields.insert(name.to_owned(), json!(text.parse::<u64>().ok())),
            "stream_include_usage" => options.insert("include_usage".to_owned(), yes.into()),
            "stream_continuous_usage_stats" => options.insert("continuous_usage_stats".to_owned(), yes.into()),
            _ => None,
        };
    }
    fields.insert("stream_options".to_owned(), options.into());
    Ok(fields.into())
}

/// The parts between the boundaries, each without the line end before the next boundary.
fn parts<'a>(body: &'a [u8], boundary: &str) -> Vec<&'a [u8]> {
    let mark = format!("--{boundary}");
    let starts: Vec<usize> = memchr::memmem::find_iter(body, mark.as_bytes()).collect();
    let ends = starts.iter().skip(1);
    starts.iter().zip(ends).filter_map(|(start, end)| body.get(start + mark.len() + 2..end.saturating_sub(2))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(api: &str, body: &str) -> Result<Job, Refusal> {
        let settings = Settings { max_model_len: 100, ..Settings::default() };
        let body: Value = serde_json::from_str(body).map_err(|error| bad_request(None, error.to_string()))?;
        let dialect = Dialect::named(api);
        Job::read(dialect, &body, Prompt::read(dialect, &body), Imitation::Vllm, &settings)
    }

    #[test]
    fn prompts_of_every_shape_are_measured() {
        for (api, body, tokens, choices) in [
            ("vllm_completions", r#"{"prompt":"12345678"}"#, 2, 1),
            ("vllm_completions", r#"{"prompt":[7,8,9]}"#, 3, 1),
            ("vllm_completions", r#"{"prompt":["1234","5678"],"n":2}"#, 2, 4),
            ("vllm_completions", r#"{"prompt":[[1,2],[3]]}"#, 3, 2),
            ("vllm_completions", r#"{"prompt":""}"#, 1, 1),
            ("vllm_chat", r#"{"messages":[{"role":"user","content":"12345678"}]}"#, 9, 1),
            ("vllm_chat", r#"{"messages":[{"content":[{"type":"text","text":"\u00e9456"},{"x":1}]}]}"#, 9, 1),
            ("vllm_chat", r#"{"messages":[{"content":null,"tool_calls":[{"id":"a"}]}],"n":3}"#, 7, 3),
            ("responses", r#"{"input":"12345678","instructions":"1234"}"#, 6, 1),
            ("responses", r#"{"input":[{"content":[{"type":"input_text","text":"1234"}]}],"n":2}"#, 8, 1),
            ("messages", r#"{"messages":[{"content":"1234"}],"system":[{"type":"text","text":"1234"}]}"#, 9, 1),
            ("sglang", r#"{"text":"12345678","sampling_params":{"n":2}}"#, 2, 2),
            ("tgi", r#"{"inputs":"12345678"}"#, 2, 1),
            ("llama_cpp_infill", r#"{"input_prefix":"1234","input_suffix":"1234"}"#, 2, 1),
            ("vllm_generate", r#"{"token_ids":[1,2,3,4]}"#, 4, 1),
            ("rerank", r#"{"query":"1234","documents":["1234","1234"]}"#, 3, 1),
        ] {
            let job = read(api, body).unwrap();
            assert_eq!((job.prompt_tokens, job.choices), (tokens, choices), "{body}");
        }
    }

    #[test]
    fn max_tokens_is_limited_by_context_length() {
        for (api, body, tokens) in [
            ("vllm_completions", r#"{"prompt":"1234"}"#, 16),
            ("vllm_chat", r#"{"messages":[]}"#, 97),
            ("vllm_chat", r#"{"messages":[],"max_tokens":5,"max_completion_tokens":6}"#, 6),
            ("responses", r#"{"input":"x","max_output_tokens":7}"#, 7),
            ("sglang", r#"{"text":"x","sampling_params":{"max_new_tokens":8}}"#, 8),
            ("tgi_stream", r#"{"inputs":"x","parameters":{"max_new_tokens":9}}"#, 9),
            ("ollama_chat", r#"{"messages":[],"options":{"num_predict":10}}"#, 10),
            ("llama_cpp", r#"{"prompt":"x","n_predict":11}"#, 11),
            ("vllm_generate", r#"{"token_ids":[1],"sampling_params":{"max_tokens":12}}"#, 12),
        ] {
            assert_eq!(read(api, body).unwrap().max_tokens, tokens, "{body}");
        }
        for body in [r#"{"messages":[],"max_tokens":98}"#, r#"{"max_tokens":1}"#, "{", "[]", ""] {
            assert_eq!(read("vllm_chat", body).unwrap_err().status, 400, "{body}");
        }
    }

    #[test]
    fn continuous_usage_requires_usage_unless_forced() {
        let body = r#"{"messages":[],"stream_options":{"continuous_usage_stats":true}}"#;
        let job = read("vllm_chat", body).unwrap();
        assert_eq!((job.include_usage, job.continuous_usage), (false, false));
        let forced = Settings { force_include_usage: true, ..Settings::default() };
        let body = json!({"messages": []});
        let prompt = Some(Prompt::default());
        let job = Job::read(Dialect::named("vllm_chat"), &body, prompt, Imitation::Vllm, &forced).unwrap();
        assert_eq!((job.include_usage, job.continuous_usage), (true, true));
    }

    #[test]
    fn only_ollama_streams_by_default() {
        assert!(read("ollama_chat", r#"{"messages":[]}"#).unwrap().stream);
        assert!(!read("ollama_chat", r#"{"messages":[],"stream":false}"#).unwrap().stream);
        assert!(!read("vllm_chat", r#"{"messages":[]}"#).unwrap().stream);
    }

    #[test]
    fn form_fields_and_file_length_are_read() {
        let mut body =
            b"--X\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ntiny\r\n--X\r\nContent-Disposition: \
            form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n"
                .to_vec();
        body.resize(body.len() + 2 * SECOND_BYTES as usize, 0);
        body.extend_from_slice(b"\r\n--X\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\nTrue\r\n--X--\r\n");
        let asked = form(&body, "multipart/form-data; boundary=X").unwrap();
        assert_eq!((&asked["model"], &asked["stream"]), (&json!("tiny"), &json!(true)));
        let input = audio(asked["file"].as_u64().unwrap());
        assert_eq!((input.tokens(), input.prompts()), (WHISPER_TOKENS, 2));
        assert_eq!(form(&body, "application/json").unwrap_err().status, 400);
    }
}
