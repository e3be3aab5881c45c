//! The APIs that the load generator supports, and their request bodies.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;
use serde_json::json;

use crate::load::settings::Settings;

/// An API of an inference server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// OpenAI chat completions.
    #[default]
    Chat,
    /// OpenAI completions.
    Completions,
    /// OpenAI Responses.
    Responses,
    /// Anthropic Messages.
    Messages,
    /// SGLang's `/generate`.
    Generate,
    /// LMDeploy's `/generate`.
    LmDeployGenerate,
    /// llama.cpp's `/completion`.
    LlamaCompletion,
    /// llama.cpp's `/infill`.
    Infill,
    /// TGI's `/generate_stream` and `/generate`.
    TgiGenerate,
    /// TGI's `/`.
    TgiCompat,
    /// Ollama's `/api/chat`.
    OllamaChat,
    /// Ollama's `/api/generate`.
    OllamaGenerate,
    /// Triton's `generate_stream` and `generate`.
    TritonGenerate,
    /// vLLM's `/inference/v1/generate`: tokens in, tokens out.
    VllmGenerate,
    /// Cohere's v2 chat, as served by vLLM.
    CohereChat,
    /// OpenAI audio transcription.
    AudioTranscription,
    /// OpenAI audio translation.
    AudioTranslation,
}

impl Api {
    /// Every API with its option name.
    pub const NAMES: &[(&str, Api)] = &[
        ("chat", Api::Chat),
        ("completions", Api::Completions),
        ("responses", Api::Responses),
        ("messages", Api::Messages),
        ("generate", Api::Generate),
        ("lmdeploy_generate", Api::LmDeployGenerate),
        ("llama_completion", Api::LlamaCompletion),
        ("infill", Api::Infill),
        ("tgi_generate", Api::TgiGenerate),
        ("tgi_compat", Api::TgiCompat),
        ("ollama_chat", Api::OllamaChat),
        ("ollama_generate", Api::OllamaGenerate),
        ("triton_generate", Api::TritonGenerate),
        ("vllm_generate", Api::VllmGenerate),
        ("cohere_chat", Api::CohereChat),
        ("audio_transcription", Api::AudioTranscription),
        ("audio_translation", Api::AudioTranslation),
    ];

    /// The API that a path belongs to, if only one API uses that path.
    pub(crate) fn at(path: &str) -> Option<Api> {
        let path = path.split('?').next().unwrap_or_default();
        let alone = |api: &Api| !matches!(api, Api::Generate | Api::LmDeployGenerate | Api::TritonGenerate);
        let is_at = |api: &Api| path.ends_with(&api.path(&Settings::default())) && *api != Api::TgiCompat;
        Api::NAMES.iter().map(|(_, api)| *api).filter(alone).find(is_at)
    }

    /// Default request path, used if the target URL has none.
    pub(crate) fn path(self, settings: &Settings) -> String {
        let or_streamed = |streamed: &str, whole: &str| if settings.stream { streamed } else { whole }.to_owned();
        match self {
            Api::Chat => "/v1/chat/completions".to_owned(),
            Api::Completions => "/v1/completions".to_owned(),
            Api::Responses => "/v1/responses".to_owned(),
            Api::Messages => "/v1/messages".to_owned(),
            Api::Generate | Api::LmDeployGenerate => "/generate".to_owned(),
            Api::LlamaCompletion => "/completion".to_owned(),
            Api::Infill => "/infill".to_owned(),
            Api::TgiGenerate => or_streamed("/generate_stream", "/generate"),
            Api::TgiCompat => "/".to_owned(),
            Api::OllamaChat => "/api/chat".to_owned(),
            Api::OllamaGenerate => "/api/generate".to_owned(),
            Api::TritonGenerate => {
                format!("/v2/models/{}/{}", settings.model, or_streamed("generate_stream", "generate"))
            }
            Api::VllmGenerate => "/inference/v1/generate".to_owned(),
            Api::CohereChat => "/cohere/v2/chat".to_owned(),
            Api::AudioTranscription => "/v1/audio/transcriptions".to_owned(),
            Api::AudioTranslation => "/v1/audio/translations".to_owned(),
        }
    }

    /// The `Content-Type` of a request.
    pub(crate) fn content_type(self) -> String {
        match self {
            Api::AudioTranscription | Api::AudioTranslation => format!("multipart/form-data; boundary={BOUNDARY}"),
            _ => "application/json".to_owned(),
        }
    }

    /// The request body.
    pub(crate) fn body(self, settings: &Settings) -> Vec<u8> {
        match self {
            Api::AudioTranscription | Api::AudioTranslation => form(settings),
            _ => self.object(settings).to_string().into_bytes(),
        }
    }

    fn object(self, settings: &Settings) -> Value {
        let Settings { model, prompt, max_tokens, stream, ignore_eos, .. } = settings;
        let messages = json!([{"role": "user", "content": prompt}]);
        let mut body = match self {
            Api::Chat => json!({"model": model, "messages": messages, "max_tokens": max_tokens}),
            Api::Messages | Api::CohereChat => json!({"model": model, "messages": messages, "max_tokens": max_tokens}),
            Api::Completions => json!({"model": model, "prompt": prompt, "max_tokens": max_tokens}),
            Api::Responses => json!({"model": model, "input": prompt, "max_output_tokens": max_tokens}),
            Api::Generate => json!({"text": prompt, "sampling_params": {"max_new_tokens": max_tokens}}),
            Api::LmDeployGenerate => json!({"prompt": prompt, "max_tokens": max_tokens}),
            Api::LlamaCompletion => json!({"prompt": prompt, "n_predict": max_tokens}),
            Api::Infill => json!({"input_prefix": prompt, "input_suffix": "", "n_predict": max_tokens}),
            // TGI returns token counts only with details.
            Api::TgiGenerate | Api::TgiCompat => {
                json!({"inputs": prompt, "parameters": {"max_new_tokens": max_tokens, "details": true}})
            }
            Api::OllamaChat => json!({"model": model, "messages": messages, "options": {"num_predict": max_tokens}}),
            Api::OllamaGenerate => json!({"model": model, "prompt": prompt, "options": {"num_predict": max_tokens}}),
            Api::TritonGenerate => json!({"text_input": prompt, "max_tokens": max_tokens}),
            // No tokenizer here: each byte is sent as one token id.
            Api::VllmGenerate => {
                json!({"model": model, "token_ids": prompt.as_bytes(), "sampling_params": {"max_tokens": max_tokens}})
            }
            Api::AudioTranscription | Api::AudioTranslation => Value::Null,
        };
        body["stream"] = (*stream).into();
        if *ignore_eos {
            match self {
                Api::Generate | Api::VllmGenerate => body["sampling_params"]["ignore_eos"] = true.into(),
                _ => body["ignore_eos"] = true.into(),
            }
        }
        if *stream && settings.include_usage && matches!(self, Api::Chat | Api::Completions | Api::VllmGenerate) {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Api::NAMES.iter().find(|(_, api)| api == self).map_or("", |(name, _)| name))
    }
}

/// An unknown API name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown API {text:?}; expected one of: {}", Api::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))]
pub struct UnknownApi {
    text: String,
}

impl FromStr for Api {
    type Err = UnknownApi;

    fn from_str(text: &str) -> Result<Api, UnknownApi> {
        let found = Api::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, api)| *api).ok_or_else(|| UnknownApi { text: text.to_owned() })
    }
}

const BOUNDARY: &str = "tokometer-load";

/// Length of the audio in seconds.
const SECONDS: u32 = 1;

/// A multipart form (RFC 7578) with a recording of silence.
fn form(settings: &Settings) -> Vec<u8> {
    let mut body = Vec::new();
    let mut part = |head: &str, value: &[u8]| {
        body.extend_from_slice(format!("--{BOUNDARY}\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes());
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    };
    part("name=\"file\"; filename=\"silence.wav\"\r\nContent-Type: audio/wav", &silence());
    for (name, value) in [
        ("model", settings.model.clone()),
        ("max_completion_tokens", settings.max_tokens.to_string()),
        ("stream", settings.stream.to_string()),
        ("stream_include_usage", settings.include_usage.to_string()),
    ] {
        part(&format!("name=\"{name}\""), value.as_bytes());
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    body
}

/// A WAV file of silence: 16 kHz, 16 bits, mono.
fn silence() -> Vec<u8> {
    const RATE: u32 = 16_000;
    let data = SECONDS * RATE * 2;
    let mut file = Vec::new();
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&(36 + data).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt ");
    for (value, bytes) in [(16, 4), (1, 2), (1, 2), (RATE, 4), (RATE * 2, 4), (2, 2), (16, 2)] {
        file.extend(value.to_le_bytes().iter().take(bytes));
    }
    file.extend_from_slice(b"data");
    file.extend_from_slice(&data.to_le_bytes());
    file.resize(file.len() + data as usize, 0);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_name_parses_back() {
        for (name, api) in Api::NAMES {
            assert_eq!(name.parse(), Ok(*api));
            assert_eq!(api.to_string(), *name);
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
    fn silence_wav_header_matches_its_length() {
        let file = silence();
        assert_eq!(&file[..4], b"RIFF");
        assert_eq!(u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize, file.len() - 8);
        assert_eq!(&file[36..40], b"data");
        assert_eq!(file.len(), 44 + 32_000);
    }
}
