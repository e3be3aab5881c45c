//! Selection of the imitated engine and of the API that a request targets.

use std::fmt;
use std::str::FromStr;

use crate::server::job::Body;

/// An inference engine. The native paths of all engines are always served; this selects the behaviour of the paths that
/// several engines share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Imitation {
    /// vLLM 0.32.0, Python front end.
    #[default]
    Vllm,
    /// SGLang 0.5.23.
    Sglang,
    /// LMDeploy 0.18: `/generate` like SGLang's, but incremental.
    LmDeploy,
    /// llama.cpp's llama-server, 0.5.0.
    LlamaCpp,
    /// Text Generation Inference 3.3.6.
    Tgi,
    /// Ollama 0.17.4.
    Ollama,
    /// NVIDIA Dynamo 1.6.1.
    Dynamo,
    /// TensorRT-LLM's `trtllm-serve` of 2025 and 2026.
    TensorRtLlm,
    /// Triton 2.73.
    Triton,
}

impl Imitation {
    /// Every engine with its option name.
    pub const NAMES: &[(&str, Imitation)] = &[
        ("vllm", Imitation::Vllm),
        ("sglang", Imitation::Sglang),
        ("lmdeploy", Imitation::LmDeploy),
        ("llama_cpp", Imitation::LlamaCpp),
        ("tgi", Imitation::Tgi),
        ("ollama", Imitation::Ollama),
        ("dynamo", Imitation::Dynamo),
        ("tensorrt_llm", Imitation::TensorRtLlm),
        ("triton", Imitation::Triton),
    ];
}

impl fmt::Display for Imitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Imitation::NAMES.iter().find(|(_, engine)| engine == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// An unknown engine name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown engine {text:?}; expected one of: {}", Imitation::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))]
pub struct UnknownImitation {
    text: String,
}

impl FromStr for Imitation {
    type Err = UnknownImitation;

    fn from_str(text: &str) -> Result<Imitation, UnknownImitation> {
        let found = Imitation::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, engine)| *engine).ok_or_else(|| UnknownImitation { text: text.to_owned() })
    }
}

/// An API of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// OpenAI chat completions: vLLM, Dynamo, TensorRT-LLM, SGLang, llama.cpp, TGI.
    Chat,
    /// OpenAI completions.
    Completions,
    /// OpenAI Responses, as served by vLLM.
    Responses,
    /// Anthropic Messages, as served by vLLM.
    Messages,
    /// Anthropic's token count of a prompt.
    CountTokens,
    /// `/generate`: SGLang's, LMDeploy's or TGI's, depending on the body.
    Generate,
    /// SGLang's, cumulative.
    Sglang,
    /// LMDeploy's, incremental.
    LmDeploy,
    /// llama.cpp's `/completion`.
    LlamaCompletion,
    /// llama.cpp's `/infill`.
    LlamaInfill,
    /// TGI's `/generate`.
    TgiGenerate,
    /// TGI's `/generate_stream`.
    TgiStream,
    /// TGI's `/`; `stream` in the body selects the kind of response.
    TgiCompat,
    /// Ollama's `/api/chat`.
    OllamaChat,
    /// Ollama's `/api/generate`.
    OllamaGenerate,
    /// Triton's `generate`.
    TritonGenerate,
    /// Triton's `generate_stream`.
    TritonStream,
    /// vLLM's `/inference/v1/generate`: tokens in, tokens out.
    VllmGenerate,
    /// Cohere's v2 chat on vLLM.
    CohereChat,
    /// OpenAI audio transcription, on vLLM.
    Transcription,
    /// OpenAI audio translation, on vLLM.
    Translation,
    /// Embeddings.
    Embeddings,
    /// Embeddings in Ollama's newer form.
    OllamaEmbed,
    /// Embeddings in Ollama's older form.
    OllamaEmbeddings,
    /// vLLM's raw outputs of a pooling model.
    Pooling,
    /// vLLM's text classification.
    Classify,
    /// vLLM's similarity of text pairs.
    Score,
    /// Documents ranked by relevance.
    Rerank,
}

/// The paths that accept POST requests.
const PATHS: &[(&str, Api)] = &[
    ("/v1/chat/completions", Api::Chat),
    ("/v1/completions", Api::Completions),
    ("/v1/responses", Api::Responses),
    ("/v1/messages", Api::Messages),
    ("/v1/messages/count_tokens", Api::CountTokens),
    ("/generate", Api::Generate),
    ("/completion", Api::LlamaCompletion),
    ("/infill", Api::LlamaInfill),
    ("/generate_stream", Api::TgiStream),
    ("/", Api::TgiCompat),
    ("/api/chat", Api::OllamaChat),
    ("/api/generate", Api::OllamaGenerate),
    ("/inference/v1/generate", Api::VllmGenerate),
    ("/cohere/v2/chat", Api::CohereChat),
    ("/v1/audio/transcriptions", Api::Transcription),
    ("/v1/audio/translations", Api::Translation),
    ("/v1/embeddings", Api::Embeddings),
    ("/api/embed", Api::OllamaEmbed),
    ("/api/embeddings", Api::OllamaEmbeddings),
    ("/pooling", Api::Pooling),
    ("/classify", Api::Classify),
    ("/score", Api::Score),
    ("/v1/score", Api::Score),
    ("/rerank", Api::Rerank),
    ("/v1/rerank", Api::Rerank),
    ("/v2/rerank", Api::Rerank),
];

impl Api {
    /// The API at a path.
    pub(crate) fn at(path: &str) -> Option<Api> {
        if let Some(model) = path.strip_prefix("/v2/models/") {
            return match model.rsplit('/').next() {
                Some("generate") => Some(Api::TritonGenerate),
                Some("generate_stream") => Some(Api::TritonStream),
                _ => None,
            };
        }
        PATHS.iter().find(|(at, _)| *at == path).map(|(_, api)| *api)
    }

    /// Resolves APIs that share a path, by the body and the configured engine.
    pub(crate) fn told_apart(self, body: &Body, engine: Imitation) -> Api {
        match self {
            Api::Generate if body.inputs.is_some() => Api::TgiGenerate,
            Api::Generate if engine == Imitation::LmDeploy || body.prompt.is_some() => Api::LmDeploy,
            Api::Generate => Api::Sglang,
            api => api,
        }
    }

    /// The engine that is imitated in the response.
    pub(crate) fn engine(self, set: Imitation) -> Imitation {
        match self {
            Api::Chat | Api::Completions => set,
            Api::Sglang => Imitation::Sglang,
            Api::LmDeploy => Imitation::LmDeploy,
            Api::LlamaCompletion | Api::LlamaInfill => Imitation::LlamaCpp,
            Api::TgiGenerate | Api::TgiStream | Api::TgiCompat => Imitation::Tgi,
            Api::OllamaChat | Api::OllamaGenerate | Api::OllamaEmbed | Api::OllamaEmbeddings => Imitation::Ollama,
            Api::TritonGenerate | Api::TritonStream => Imitation::Triton,
            _ => Imitation::Vllm,
        }
    }

    /// Whether it generates tokens, rather than only reading a prompt.
    pub(crate) fn generates(self) -> bool {
        !matches!(
            self,
            Api::CountTokens
                | Api::Embeddings
                | Api::OllamaEmbed
                | Api::OllamaEmbeddings
                | Api::Pooling
                | Api::Classify
                | Api::Score
                | Api::Rerank
        )
    }

    /// Whether its body is a multipart form.
    pub(crate) fn takes_a_form(self) -> bool {
        matches!(self, Api::Transcription | Api::Translation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_name_parses_back() {
        for (name, engine) in Imitation::NAMES {
            assert_eq!(name.parse(), Ok(*engine));
            assert_eq!(engine.to_string(), *name);
        }
        assert!("vLLM".parse::<Imitation>().unwrap_err().to_string().contains("vllm, sglang, lmdeploy"));
    }

    #[test]
    fn body_selects_the_engine_of_a_shared_path() {
        let api = |body: &str, engine| {
            let body: Body = serde_json::from_str(body).unwrap();
            Api::at("/generate").unwrap().told_apart(&body, engine)
        };
        assert_eq!(api(r#"{"inputs":"x"}"#, Imitation::Vllm), Api::TgiGenerate);
        assert_eq!(api(r#"{"prompt":"x"}"#, Imitation::Vllm), Api::LmDeploy);
        assert_eq!(api(r#"{"text":"x"}"#, Imitation::Vllm), Api::Sglang);
        assert_eq!(api(r#"{"input_ids":[1]}"#, Imitation::LmDeploy), Api::LmDeploy);
        assert_eq!(Api::at("/v2/models/m/versions/1/generate_stream"), Some(Api::TritonStream));
        assert_eq!(Api::at("/v2/models/m"), None);
    }
}
