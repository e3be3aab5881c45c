//! The paths of every API.

use super::Route;
use super::Work;

/// What is not one of the APIs.
pub(super) const OTHER: &str = "other";

/// A row of the table of routes.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) route: Route,
    /// What configuration calls it.
    pub(super) name: &'static str,
    pub(super) operation: &'static str,
    pub(super) work: Work,
    /// Paths of its own, that may stand behind any prefix (`/engine1/v1/chat/completions`). `*` is any one segment.
    pub(super) paths: &'static [&'static str],
    /// Paths too short to be known behind a prefix: `/images/generate` is not TGI's. They are the whole path.
    pub(super) whole: &'static [&'static str],
}

/// The routes. `operation` is `gen_ai.operation.name`: the words of the OpenTelemetry GenAI conventions where they have one
/// (`chat`, `text_completion`, `embeddings`), else our own.
///
/// Paths that look like one of these and are not generations of one answer, and so are `other`: `/v1/messages/count_tokens`,
/// `/v1/responses/ID/cancel`, `…/render` and `/tokenize` (nothing is generated), LMDeploy's `/v1/encode` (a tokenizer), and
/// vLLM's `/v1/chat/completions/batch` (its times are no single request's).
///
/// The paths of probes are for GET and HEAD alone, and so is `/`, which by POST is TGI's.
pub(super) static ROUTES: [Api; 25] = [
    Api {
        route: Route::Chat,
        name: "chat",
        operation: "chat",
        work: Work::Generates,
        paths: &["/chat/completions"],
        whole: &[],
    },
    Api {
        route: Route::Completions,
        name: "completions",
        operation: "text_completion",
        work: Work::Generates,
        paths: &["/v1/completions"],
        whole: &[],
    },
    Api {
        route: Route::Responses,
        name: "responses",
        operation: "chat",
        work: Work::Generates,
        paths: &["/v1/responses"],
        whole: &["/responses"],
    },
    Api {
        route: Route::Messages,
        name: "messages",
        operation: "chat",
        work: Work::Generates,
        paths: &["/v1/messages"],
        whole: &[],
    },
    Api {
        route: Route::Generate,
        name: "generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/generate"],
    },
    Api {
        route: Route::TgiStream,
        name: "tgi_stream",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/generate_stream"],
    },
    Api {
        route: Route::TgiCompat,
        name: "tgi_compat",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/"],
    },
    Api {
        route: Route::LlamaCompletion,
        name: "llama_completion",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/completion", "/completions"],
    },
    Api {
        route: Route::Infill,
        name: "infill",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[],
        whole: &["/infill"],
    },
    Api {
        route: Route::OllamaChat,
        name: "ollama_chat",
        operation: "chat",
        work: Work::Generates,
        paths: &["/api/chat"],
        whole: &[],
    },
    Api {
        route: Route::OllamaGenerate,
        name: "ollama_generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &["/api/generate"],
        whole: &[],
    },
    Api {
        route: Route::TritonGenerate,
        name: "triton_generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &[
            "/v2/models/*/generate",
            "/v2/models/*/generate_stream",
            "/v2/models/*/versions/*/generate",
            "/v2/models/*/versions/*/generate_stream",
        ],
        whole: &[],
    },
    Api {
        route: Route::VllmGenerate,
        name: "vllm_generate",
        operation: "text_completion",
        work: Work::Generates,
        paths: &["/inference/v1/generate"],
        whole: &[],
    },
    Api {
        route: Route::CohereChat,
        name: "cohere_chat",
        operation: "chat",
        work: Work::Generates,
        paths: &["/v2/chat"],
        whole: &[],
    },
    Api {
        route: Route::AudioTranscription,
        name: "audio_transcription",
        operation: "transcription",
        work: Work::Generates,
        paths: &["/audio/transcriptions"],
        whole: &[],
    },
    Api {
        route: Route::AudioTranslation,
        name: "audio_translation",
        operation: "translation",
        work: Work::Generates,
        paths: &["/audio/translations"],
        whole: &[],
    },
    Api {
        route: Route::Realtime,
        name: "realtime",
        operation: "realtime",
        work: Work::Generates,
        paths: &["/v1/realtime"],
        whole: &[],
    },
    Api {
        route: Route::Embeddings,
        name: "embeddings",
        operation: "embeddings",
        work: Work::TakesInput,
        paths: &["/v1/embeddings", "/v2/embed", "/api/embed", "/api/embeddings"],
        whole: &["/embeddings", "/embedding", "/embed", "/encode"],
    },
    Api {
        route: Route::Rerank,
        name: "rerank",
        operation: "rerank",
        work: Work::TakesInput,
        paths: &["/v1/rerank", "/v2/rerank", "/v1/reranking"],
        whole: &["/rerank", "/reranking"],
    },
    Api {
        route: Route::Score,
        name: "score",
        operation: "score",
        work: Work::TakesInput,
        paths: &["/v1/score"],
        whole: &["/score"],
    },
    Api {
        route: Route::Classify,
        name: "classify",
        operation: "classify",
        work: Work::TakesInput,
        paths: &["/v1/classify"],
        whole: &["/classify"],
    },
    Api {
        route: Route::Pooling,
        name: "pooling",
        operation: "pooling",
        work: Work::TakesInput,
        paths: &["/v1/pooling"],
        whole: &["/pooling"],
    },
    Api {
        route: Route::Invocations,
        name: "invocations",
        operation: OTHER,
        work: Work::Neither,
        paths: &[],
        whole: &["/invocations", "/vertex", "/vertex_generate"],
    },
    Api {
        route: Route::Probe,
        name: "probe",
        operation: OTHER,
        work: Work::Neither,
        paths: &[
            "/health",
            "/healthz",
            "/livez",
            "/readyz",
            "/metrics",
            "/v1/models",
            "/v1/models/*",
            "/v2/health/live",
            "/v2/health/ready",
            "/v2/models/*/ready",
        ],
        whole: &[
            "/api/ps",
            "/api/tags",
            "/api/version",
            "/get_model_info",
            "/get_server_info",
            "/health_generate",
            "/info",
            "/live",
            "/load",
            "/model_info",
            "/models",
            "/perf_metrics",
            "/ping",
            "/props",
            "/ready",
            "/server_info",
            "/slots",
            "/version",
        ],
    },
    Api { route: Route::Other, name: OTHER, operation: OTHER, work: Work::Neither, paths: &[], whole: &[] },
];
