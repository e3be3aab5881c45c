//! Generation parameters, read from the request body and validated as engines validate them.

use serde::Deserialize;
use serde_json::Value;

use crate::server::api::Api;
use crate::server::api::Imitation;
use crate::server::fault::Fault;
use crate::server::prompt::Prompt;
use crate::server::settings::Settings;

/// A requested generation.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) api: Api,
    pub(crate) engine: Imitation,
    pub(crate) model: String,
    pub(crate) fault: Option<Fault>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    /// Optional details that only some APIs have: TGI's `details`, Dynamo's `nvext.timing`.
    pub(crate) details: bool,
    /// Sequences to generate: `n` times the number of prompts.
    pub(crate) choices: u32,
    /// Texts in the request, for APIs that return a result for each of them.
    pub(crate) inputs: u64,
    /// The request has no prompt.
    pub(crate) empty: bool,
    pub(crate) prompt_tokens: u64,
    /// Prompt tokens found in the cache.
    pub(crate) cached_tokens: u64,
    pub(crate) max_tokens: u64,
    pub(crate) ignore_eos: bool,
}

/// A rejected request: the contents of the error envelope.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) param: Option<&'static str>,
    pub(crate) message: String,
}

/// Every key of every API that the server reads.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct Body {
    pub(crate) model: Option<String>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    /// OpenAI, vLLM.
    pub(crate) messages: Option<Prompt>,
    pub(crate) prompt: Option<Prompt>,
    pub(crate) max_tokens: Option<u64>,
    pub(crate) max_completion_tokens: Option<u64>,
    pub(crate) n: Option<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) return_token_ids: bool,
    /// OpenAI Responses; embeddings and related APIs.
    pub(crate) input: Option<Prompt>,
    pub(crate) instructions: Option<Prompt>,
    pub(crate) max_output_tokens: Option<u64>,
    /// Anthropic.
    pub(crate) system: Option<Prompt>,
    /// SGLang; vLLM's tokens in, tokens out; scores.
    pub(crate) text: Option<Prompt>,
    pub(crate) input_ids: Option<Prompt>,
    pub(crate) token_ids: Option<Prompt>,
    pub(crate) sampling_params: Sampling,
    /// llama.cpp.
    pub(crate) n_predict: Option<u64>,
    pub(crate) input_prefix: Option<Prompt>,
    pub(crate) input_suffix: Option<Prompt>,
    /// TGI.
    pub(crate) inputs: Option<Prompt>,
    pub(crate) parameters: Sampling,
    /// Ollama.
    pub(crate) options: Sampling,
    /// Triton.
    pub(crate) text_input: Option<Prompt>,
    /// Rerank, score.
    pub(crate) query: Option<Prompt>,
    pub(crate) documents: Option<Prompt>,
    pub(crate) text_1: Option<Prompt>,
    pub(crate) text_2: Option<Prompt>,
    /// Dynamo.
    pub(crate) nvext: Option<Value>,
}

/// Keys that some APIs nest in an object.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct Sampling {
    max_new_tokens: Option<u64>,
    max_tokens: Option<u64>,
    num_predict: Option<u64>,
    n: Option<u32>,
    ignore_eos: bool,
    details: bool,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
    pub(crate) continuous_usage_stats: bool,
}

/// The prompt of a request.
struct Asked {
    /// Its key, for the error message if it is missing.
    key: &'static str,
    prompt: Option<Prompt>,
    /// A conversation: the chat template adds tokens around its messages.
    chat: bool,
    max_tokens: Option<u64>,
    /// Default number of generated tokens; `None` for as many as the context has room for.
    usual: Option<u64>,
}

impl Asked {
    fn of(api: Api, body: &mut Body) -> Asked {
        let chat = |prompt, max_tokens| Asked { key: "messages", prompt, chat: true, max_tokens, usual: None };
        let plain = |key, prompt, max_tokens, usual| Asked { key, prompt, chat: false, max_tokens, usual };
        let asked = body.max_completion_tokens.or(body.max_tokens);
        match api {
            Api::Chat | Api::CohereChat => chat(body.messages.take(), asked),
            Api::Messages | Api::CountTokens => {
                chat(body.messages.take().map(|messages| messages.join(body.system.take())), asked)
            }
            Api::Responses => {
                let input = body.input.take().map(|input| input.join(body.instructions.take()));
                Asked { key: "input", ..chat(input, body.max_output_tokens) }
            }
            Api::OllamaChat => chat(body.messages.take(), body.options.num_predict),
            // Default in the OpenAI API.
            Api::Completions => plain("prompt", body.prompt.take(), asked, Some(16)),
            Api::Generate | Api::Sglang => {
                let text = body.text.take().or(body.input_ids.take());
                plain("text", text, body.sampling_params.max_new_tokens, Some(128))
            }
            Api::LmDeploy => plain("prompt", body.prompt.take().or(body.input_ids.take()), asked, Some(128)),
            Api::LlamaCompletion => plain("prompt", body.prompt.take(), body.n_predict.or(asked), None),
            Api::LlamaInfill => {
                let prefix = body.input_prefix.take().map(|prefix| prefix.join(body.input_suffix.take()));
                plain("input_prefix", prefix, body.n_predict.or(asked), None)
            }
            Api::TgiGenerate | Api::TgiStream | Api::TgiCompat => {
                plain("inputs", body.inputs.take(), body.parameters.max_new_tokens, Some(100))
            }
            // An empty prompt is valid: it loads the model.
            Api::OllamaGenerate => {
                plain("prompt", Some(body.prompt.take().unwrap_or_default()), body.options.num_predict, None)
            }
            Api::TritonGenerate | Api::TritonStream => plain("text_input", body.text_input.take(), asked, Some(16)),
            Api::VllmGenerate => {
                plain("token_ids", body.token_ids.take(), body.sampling_params.max_tokens.or(asked), Some(16))
            }
            Api::Transcription | Api::Translation => plain("file", body.input.take(), asked, None),
            Api::Embeddings | Api::OllamaEmbed | Api::Pooling | Api::Classify => {
                plain("input", body.input.take().or(body.messages.take()), None, None)
            }
            Api::OllamaEmbeddings => plain("prompt", body.prompt.take(), None, None),
            Api::Score => {
                let texts = body.text_2.take();
                plain("text_1", body.text_1.take().map(|first| first.against(texts)), None, None)
            }
            Api::Rerank => {
                let documents = body.documents.take();
                plain("query", body.query.take().map(|query| query.against(documents)), None, None)
            }
        }
    }

    fn prompt_tokens(&self, prompt: &Prompt) -> u64 {
        if self.chat { prompt.chat_tokens() } else { prompt.tokens() }
    }
}

impl Job {
    /// Builds a job from a request body.
    pub(crate) fn read(api: Api, mut body: Body, engine: Imitation, settings: &Settings) -> Result<Job, Refusal> {
        let api = api.told_apart(&body, engine);
        let engine = api.engine(engine);
        let model = body.model.take().unwrap_or_else(|| settings.model.clone());
        let fault = model.strip_prefix("fault/").and_then(|fault| fault.parse().ok());
        // The other engines accept any model name.
        let strict = matches!(engine, Imitation::Vllm | Imitation::Ollama | Imitation::Dynamo);
        if strict && fault.is_none() && model != settings.model {
            return Err(no_model(engine, &model, settings));
        }
        let mut asked = Asked::of(api, &mut body);
        let Some(prompt) = asked.prompt.take() else {
            let key = asked.key;
            return Err(bad_request(Some(key), format!("1 validation error:\n  {key}: Field required")));
        };
        // Among the generating APIs only completions accepts several prompts.
        let prompts = if api == Api::Completions { prompt.prompts() } else { 1 };
        let prompt_tokens = asked.prompt_tokens(&prompt);
        let room = settings.max_model_len.saturating_sub(prompt_tokens);
        let limit = asked.max_tokens;
        if room == 0 || limit.is_some_and(|limit| limit > room) {
            let message = format!(
                "{} tokens were asked for after a prompt of {prompt_tokens}, but max_model_len={}. Please request \
                 fewer output tokens.",
                limit.unwrap_or(1),
                settings.max_model_len
            );
            return Err(bad_request(Some("max_tokens"), message));
        }
        let forced = settings.force_include_usage;
        // TensorRT-LLM defaults to true if `stream_options` is present without this option.
        let unsaid = engine == Imitation::TensorRtLlm && body.stream_options.is_some();
        let options = body.stream_options.unwrap_or_default();
        let include_usage = options.include_usage.unwrap_or(unsaid);
        let one = matches!(engine, Imitation::LlamaCpp | Imitation::Tgi | Imitation::Ollama | Imitation::Triton);
        let one = one || matches!(api, Api::Responses | Api::Messages | Api::CohereChat);
        let several = body.n.or(body.sampling_params.n).unwrap_or(1).clamp(1, 128);
        let cached_tokens = (prompt_tokens as f64 * settings.cached_share.clamp(0.0, 1.0)) as u64;
        Ok(Job {
            api,
            engine,
            model,
            fault,
            stream: match api {
                Api::TgiStream | Api::TritonStream => true,
                Api::TgiGenerate | Api::TritonGenerate => false,
                _ => body.stream.unwrap_or(engine == Imitation::Ollama) && api.generates(),
            },
            include_usage: include_usage || forced,
            continuous_usage: (include_usage && options.continuous_usage_stats) || forced,
            return_token_ids: body.return_token_ids,
            details: body.parameters.details || body.nvext.is_some_and(|nvext| asks_for_timing(&nvext)),
            choices: if one { 1 } else { several * prompts },
            inputs: u64::from(prompt.prompts()),
            empty: prompt == Prompt::default(),
            prompt_tokens,
            // The last prompt token is never served from the cache: its logits are needed.
            cached_tokens: cached_tokens.min(prompt_tokens.saturating_sub(1)),
            max_tokens: limit.unwrap_or(asked.usual.unwrap_or(room).min(room)).max(1),
            ignore_eos: body.ignore_eos || body.sampling_params.ignore_eos,
        })
    }
}

fn asks_for_timing(nvext: &Value) -> bool {
    nvext
        .get("extra_fields")
        .and_then(Value::as_array)
        .is_some_and(|fields| fields.iter().any(|field| field == "timing"))
}

pub(crate) fn bad_request(param: Option<&'static str>, message: String) -> Refusal {
    Refusal { status: 400, kind: "BadRequestError", param, message }
}

fn no_model(engine: Imitation, model: &str, settings: &Settings) -> Refusal {
    let message = match engine {
        Imitation::Ollama => format!("model '{model}' not found"),
        _ => format!("The model `{model}` does not exist. Valid aliases: {}.", settings.model),
    };
    Refusal { status: 404, kind: "NotFoundError", param: Some("model"), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(api: Api, body: &str) -> Result<Job, Refusal> {
        let settings = Settings { max_model_len: 100, ..Settings::default() };
        let body = serde_json::from_str(body).map_err(|error| bad_request(None, error.to_string()))?;
        Job::read(api, body, Imitation::Vllm, &settings)
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
            (Api::Responses, r#"{"input":"12345678","instructions":"1234"}"#, 6, 1),
            (Api::Responses, r#"{"input":[{"content":[{"type":"input_text","text":"1234"}]}],"n":2}"#, 8, 1),
            (Api::Messages, r#"{"messages":[{"content":"1234"}],"system":[{"type":"text","text":"1234"}]}"#, 9, 1),
            (Api::Generate, r#"{"text":"12345678","sampling_params":{"n":2}}"#, 2, 2),
            (Api::Generate, r#"{"inputs":"12345678"}"#, 2, 1),
            (Api::LlamaInfill, r#"{"input_prefix":"1234","input_suffix":"1234"}"#, 2, 1),
            (Api::VllmGenerate, r#"{"token_ids":[1,2,3,4]}"#, 4, 1),
            (Api::Rerank, r#"{"query":"1234","documents":["1234","1234"]}"#, 3, 1),
        ] {
            let job = read(api, body).unwrap();
            assert_eq!((job.prompt_tokens, job.choices), (tokens, choices), "{body}");
        }
    }

    #[test]
    fn max_tokens_is_limited_by_context_length() {
        for (api, body, tokens) in [
            (Api::Completions, r#"{"prompt":"1234"}"#, 16),
            (Api::Chat, r#"{"messages":[]}"#, 97),
            (Api::Chat, r#"{"messages":[],"max_tokens":5,"max_completion_tokens":6}"#, 6),
            (Api::Responses, r#"{"input":"x","max_output_tokens":7}"#, 7),
            (Api::Generate, r#"{"text":"x","sampling_params":{"max_new_tokens":8}}"#, 8),
            (Api::TgiStream, r#"{"inputs":"x","parameters":{"max_new_tokens":9}}"#, 9),
            (Api::OllamaChat, r#"{"messages":[],"options":{"num_predict":10}}"#, 10),
            (Api::LlamaCompletion, r#"{"prompt":"x","n_predict":11}"#, 11),
            (Api::VllmGenerate, r#"{"token_ids":[1],"sampling_params":{"max_tokens":12}}"#, 12),
        ] {
            assert_eq!(read(api, body).unwrap().max_tokens, tokens, "{body}");
        }
        for body in [r#"{"messages":[],"max_tokens":98}"#, r#"{"max_tokens":1}"#, "{", "[]", ""] {
            assert_eq!(read(Api::Chat, body).unwrap_err().status, 400, "{body}");
        }
    }

    #[test]
    fn continuous_usage_requires_usage_unless_forced() {
        let body = r#"{"messages":[],"stream_options":{"continuous_usage_stats":true}}"#;
        let job = read(Api::Chat, body).unwrap();
        assert_eq!((job.include_usage, job.continuous_usage), (false, false));
        let forced = Settings { force_include_usage: true, ..Settings::default() };
        let body = serde_json::from_str(r#"{"messages":[]}"#).unwrap();
        let job = Job::read(Api::Chat, body, Imitation::Vllm, &forced).unwrap();
        assert_eq!((job.include_usage, job.continuous_usage), (true, true));
    }

    #[test]
    fn only_ollama_streams_by_default() {
        assert!(read(Api::OllamaChat, r#"{"messages":[]}"#).unwrap().stream);
        assert!(!read(Api::OllamaChat, r#"{"messages":[],"stream":false}"#).unwrap().stream);
        assert!(!read(Api::Chat, r#"{"messages":[]}"#).unwrap().stream);
    }
}
