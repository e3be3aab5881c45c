//! Which engine is imitated, and which of its APIs a request is for.

use std::fmt;
use std::str::FromStr;

use crate::server::job::Body;

/// An engine. Its native paths are served whatever is set; it decides how the paths are answered that several engines
/// have.
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
    /// Every engine with its name.
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

/// An engine that is not imitated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no engine is called {text:?}; there are: {}", Imitation::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "))]
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
    /// OpenAI Responses, as vLLM has them.
    Responses,
    /// Anthropic Messages, as vLLM has them.
    Messages,
    /// Anthropic's count of a prompt's tokens.
    CountTokens,
    /// `/generate`: SGLang's, LMDeploy's or TGI's; the body tells which.
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
    /// TGI's `/`, which does what `stream` says.
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
    /// OpenAI's transcription of audio, on vLLM.
    Transcription,
    /// OpenAI's translation of audio, on vLLM.
    Translation,
    /// Vectors of texts.
    Embeddings,
    /// The same in Ollama's newer form.
    OllamaEmbed,
    /// The same in Ollama's older form.
    OllamaEmbeddings,
    /// vLLM's raw outputs of a pooling model.
    Pooling,
    /// vLLM's classes of texts.
    Classify,
    /// vLLM's similarity of pairs.
    Score,
    /// Documents by relevance.
    Rerank,
}

/// The paths to which requests are POSTed.
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

    /// Which of the APIs it is that share a path.
    pub(crate) fn told_apart(self, body: &Body, engine: Imitation) -> Api {
        match self {
            Api::Generate if body.inputs.is_some() => Api::TgiGenerate,
            Api::Generate if engine == Imitation::LmDeploy || body.prompt.is_some() => Api::LmDeploy,
            Api::Generate => Api::Sglang,
            api => api,
        }
    }

    /// The engine whose answer it gets.
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

    /// Whether tokens are generated, or a prompt only read.
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

    /// Whether its body is a form.
    pub(crate) fn takes_a_form(self) -> bool {
        matches!(self, Api::Transcription | Api::Translation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_is_read_back_from_its_name() {
        for (name, engine) in Imitation::NAMES {
            assert_eq!(name.parse(), Ok(*engine));
            assert_eq!(engine.to_string(), *name);
        }
        assert!("vLLM".parse::<Imitation>().unwrap_err().to_string().contains("vllm, sglang, lmdeploy"));
    }

    #[test]
    fn a_path_that_engines_share_is_told_apart_by_the_body() {
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
