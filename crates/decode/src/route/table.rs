//! The routes: one table row per route.

use super::{Dialect, End, Row, Text};
use crate::dialect::{Place, grpc};
use crate::request::Limits;

/// The operation of paths that belong to no decoded API.
pub(super) const OTHER: &str = "other";

/// Declares [`Route`] and its rows: `Variant = "name": BASE { columns }`. Omitted columns have the value of
/// `Row::BASE`.
macro_rules! routes {
    ($( $(#[doc = $text:literal])+ $route:ident = $name:literal: $base:ident { $($column:ident: $value:expr,)* } )+) => {
        tokometer_metrics::closed_enum! {
            /// The API that a path belongs to.
            pub enum Route { $( $(#[doc = $text])+ $route = $name, )+ }
        }

        impl Route {
            pub(super) fn row(self) -> &'static Row {
                match self { $( Route::$route => {
                    static ROW: Row = Row { $($column: $value,)* ..Row::$base };
                    &ROW
                } )+ }
            }
        }
    };
}

// `/v3` is the prefix of OpenVINO's model server.
//
// `operation` is `gen_ai.operation.name`: a value of the OpenTelemetry GenAI conventions where one exists (`chat`,
// `text_completion`, `embeddings`), otherwise a value defined by tokometer.
//
// These paths resemble API paths but do not generate a single response, so they are `other`:
// `/v1/messages/count_tokens`, `…/render` and `/tokenize` (no generation), LMDeploy's `/v1/encode` (a tokenizer), and vLLM's `/v1/chat/completions/batch` (its timings are not those of a single request).
//
// The probe paths apply to GET, HEAD and OPTIONS only, and so does `/`; `POST /` belongs to TGI.
#[rustfmt::skip]
routes! {
    /// OpenAI `/v1/chat/completions`.
    Chat = "chat": GENERATES {
        limits: Limits::MAX_TOKENS,
        more_limits: Limits::MAX_COMPLETION_TOKENS.and(Limits::N_PREDICT),
        operation: "chat",
        paths: &["/chat/completions"],
        dialect: Dialect::Same(Place::Chat),
    }

    /// OpenAI `/v1/completions`.
    Completions = "completions": GENERATES {
        limits: Limits::MAX_TOKENS,
        more_limits: Limits::OF_COMPLETIONS.and(Limits::N_PREDICT),
        paths: &["/v1/completions", "/v3/completions"],
        dialect: Dialect::Same(Place::Completion),
    }

    /// OpenAI `/v1/responses`.
    Responses = "responses": GENERATES {
        limits: Limits::MAX_OUTPUT_TOKENS,
        more_limits: Limits::MAX_TOKENS.and(Limits::OF_COMPLETIONS).and(Limits::N_PREDICT),
        operation: "chat",
        paths: &["/v1/responses", "/v3/responses"],
        whole: &["/responses"],
        dialect: Dialect::Typed { event: Place::ResponseEvent, body: Place::Response },
        end: End::Named,
    }

    /// Anthropic `/v1/messages`.
    Messages = "messages": GENERATES {
        limits: Limits::MAX_TOKENS,
        operation: "chat",
        paths: &["/v1/messages"],
        dialect: Dialect::Typed { event: Place::MessageEvent, body: Place::MessageBody },
        end: End::Named,
    }

    /// `/generate` of SGLang, LMDeploy and TGI, distinguished by the body.
    Generate = "generate": GENERATES {
        more_limits: Limits::MAX_NEW_TOKENS.and(Limits::MAX_TOKENS).and(Limits::PARAMETERS),
        whole: &["/generate"],
        methods: &["POST", "PUT"],
        dialect: Dialect::Same(Place::Generate),
        text: Text::Bodies,
    }

    /// TGI `/generate_stream`.
    TgiStream = "tgi_stream": GENERATES {
        limits: Limits::PARAMETERS,
        whole: &["/generate_stream"],
        dialect: Dialect::Same(Place::Tgi),
    }

    /// TGI's compatibility route, `POST /`: streamed or not, depending on the request body.
    TgiCompat = "tgi_compat": GENERATES {
        limits: Limits::PARAMETERS,
        whole: &["/"],
        dialect: Dialect::Same(Place::Tgi),
    }

    /// llama.cpp's own `/completion`, and `/completions` without a prefix, also in OpenAI's format.
    LlamaCompletion = "llama_completion": GENERATES {
        limits: Limits::N_PREDICT.and(Limits::MAX_TOKENS),
        more_limits: Limits::OF_COMPLETIONS,
        whole: &["/completion", "/completions"],
        dialect: Dialect::Same(Place::LlamaCpp),
    }

    /// llama.cpp `/infill`.
    Infill = "infill": GENERATES {
        limits: Limits::N_PREDICT.and(Limits::MAX_TOKENS),
        more_limits: Limits::OF_COMPLETIONS,
        whole: &["/infill"],
        dialect: Dialect::Same(Place::LlamaCpp),
    }

    /// Ollama `/api/chat`; SGLang has it too.
    OllamaChat = "ollama_chat": GENERATES {
        more_limits: Limits::NUM_PREDICT.and(Limits::MAX_TOKENS).and(Limits::OF_COMPLETIONS).and(Limits::N_PREDICT),
        operation: "chat",
        paths: &["/api/chat"],
        dialect: Dialect::Same(Place::Ollama),
        streams_by_default: true,
    }

    /// Ollama `/api/generate`; SGLang has it too.
    OllamaGenerate = "ollama_generate": GENERATES {
        limits: Limits::NUM_PREDICT,
        paths: &["/api/generate"],
        dialect: Dialect::Same(Place::Ollama),
        streams_by_default: true,
    }

    /// Triton `/v2/models/M/generate` and `generate_stream`.
    TritonGenerate = "triton_generate": GENERATES {
        limits: Limits::MAX_TOKENS.and(Limits::PARAMETERS),
        paths: &[
            "/v2/models/*/generate", "/v2/models/*/generate_stream", "/v2/models/*/versions/*/generate",
            "/v2/models/*/versions/*/generate_stream",
        ],
        dialect: Dialect::Same(Place::Triton),
        end: End::Body,
    }

    /// vLLM `/inference/v1/generate`: tokens in, tokens out.
    VllmGenerate = "vllm_generate": GENERATES {
        limits: Limits::SAMPLING_MAX_TOKENS,
        paths: &["/inference/v1/generate"],
        dialect: Dialect::Same(Place::VllmGenerate),
        text: Text::Never,
    }

    /// Cohere `/v2/chat` (vLLM).
    CohereChat = "cohere_chat": GENERATES {
        limits: Limits::MAX_TOKENS,
        operation: "chat",
        paths: &["/v2/chat"],
        dialect: Dialect::Typed { event: Place::CohereEvent, body: Place::CohereBody },
        end: End::Named,
    }

    /// OpenAI `/v1/audio/transcriptions`.
    AudioTranscription = "audio_transcription": GENERATES {
        more_limits: Limits::MAX_COMPLETION_TOKENS,
        operation: "transcription",
        paths: &["/audio/transcriptions"],
        dialect: Dialect::Typed { event: Place::TranscriptEvent, body: Place::TranscriptBody },
        text: Text::Never,
        end: End::Named,
        plain_text: true,
    }

    /// OpenAI `/v1/audio/translations`.
    AudioTranslation = "audio_translation": GENERATES {
        more_limits: Limits::MAX_COMPLETION_TOKENS,
        operation: "translation",
        paths: &["/audio/translations"],
        dialect: Dialect::Typed { event: Place::TranscriptEvent, body: Place::TranscriptBody },
        text: Text::Never,
        end: End::Named,
        plain_text: true,
    }

    /// `/v1/realtime`, a WebSocket.
    Realtime = "realtime": GENERATES {
        operation: "realtime",
        paths: &["/v1/realtime"],
        methods: &["GET"],
        dialect: Dialect::Messages(Place::ResponseEvent),
        text: Text::Never,
        end: End::Named,
    }

    /// Embeddings: OpenAI, Cohere, Ollama, llama.cpp, SGLang.
    Embeddings = "embeddings": TAKES_INPUT {
        operation: "embeddings",
        methods: &["POST", "PUT"],
        paths: &["/v1/embeddings", "/v3/embeddings", "/v2/embed", "/api/embed", "/api/embeddings"],
        whole: &["/embeddings", "/embedding", "/embed", "/encode"],
    }

    /// Documents ranked by relevance to a query.
    Rerank = "rerank": TAKES_INPUT {
        operation: "rerank",
        methods: &["POST", "PUT"],
        paths: &["/v1/rerank", "/v2/rerank", "/v3/rerank", "/v1/reranking"],
        whole: &["/rerank", "/reranking"],
    }

    /// Similarity of two texts (vLLM, SGLang).
    Score = "score": TAKES_INPUT {
        operation: "score",
        paths: &["/v1/score"],
        whole: &["/score"],
    }

    /// Text classification (vLLM, SGLang).
    Classify = "classify": TAKES_INPUT {
        operation: "classify",
        methods: &["POST", "PUT"],
        paths: &["/v1/classify"],
        whole: &["/classify"],
    }

    /// The raw output of a pooling model (vLLM, Dynamo).
    Pooling = "pooling": TAKES_INPUT {
        operation: "pooling",
        paths: &["/v1/pooling"],
        whole: &["/pooling"],
    }

    /// A chat or completion for which this engine computes only the prefill; another engine decodes (vLLM, llm-d).
    /// Identified by the request body.
    Prefill = "prefill": TAKES_INPUT {
        operation: "prefill",
    }

    /// `/invocations` (SageMaker), `/vertex`, `/vertex_generate`: the body determines which of the APIs above is used.
    Invocations = "invocations": OTHER {
        whole: &["/invocations", "/vertex", "/vertex_generate"],
        shared: true,
    }

    /// A call that aborts other requests: `/abort_request` (SGLang, LMDeploy), `/abort_requests` (vLLM),
    /// `/v1/responses/ID/cancel`.
    Abort = "abort": OTHER {
        paths: &["/abort_request", "/abort_requests", "/responses/*/cancel"],
    }

    /// vLLM's Rust front end over gRPC, `vllm.Inference/Generate`.
    VllmInference = "vllm_inference": GRPC {
        paths: &["/vllm.Inference/Generate"],
        dialect: Dialect::Grpc(&grpc::VLLM),
    }

    /// vLLM's Rust front end over gRPC, streamed: `vllm.Inference/GenerateStream`.
    VllmInferenceStream = "vllm_inference_stream": GRPC {
        paths: &["/vllm.Inference/GenerateStream"],
        dialect: Dialect::Grpc(&grpc::VLLM_STREAM),
    }

    /// `vllm serve --grpc`: `vllm.grpc.engine.VllmEngine/Generate`.
    VllmEngine = "vllm_engine": GRPC {
        paths: &["/vllm.grpc.engine.VllmEngine/Generate"],
        dialect: Dialect::Grpc(&grpc::VLLM_ENGINE),
    }

    /// SGLang over gRPC: `sglang.grpc.scheduler.SglangScheduler/Generate`.
    SglangScheduler = "sglang_scheduler": GRPC {
        paths: &["/sglang.grpc.scheduler.SglangScheduler/Generate"],
        dialect: Dialect::Grpc(&grpc::SGLANG),
    }

    /// TensorRT-LLM over gRPC: `trtllm.TrtllmService/Generate`.
    TensorrtService = "tensorrt_service": GRPC {
        paths: &["/trtllm.TrtllmService/Generate"],
        dialect: Dialect::Grpc(&grpc::TENSORRT_LLM),
    }

    /// Triton and KServe over gRPC: `inference.GRPCInferenceService/ModelInfer`.
    TritonInfer = "triton_infer": GRPC {
        paths: &["/inference.GRPCInferenceService/ModelInfer"],
        dialect: Dialect::Grpc(&grpc::TRITON),
    }

    /// Triton and KServe, bidirectional: `ModelStreamInfer`. The stream counts as one request, even if it carries
    /// several.
    TritonInferStream = "triton_infer_stream": GRPC {
        paths: &["/inference.GRPCInferenceService/ModelStreamInfer"],
        dialect: Dialect::Grpc(&grpc::TRITON_STREAM),
    }

    /// A query about the server itself: health, metrics, models. Forwarded, but not counted as an API request.
    Probe = "probe": OTHER {
        paths: &[
            "/health", "/healthz", "/livez", "/readyz", "/metrics", "/v1/models", "/v1/models/*",
            "/v2/health/live", "/v2/health/ready", "/v2/models/*/ready",
        ],
        whole: &[
            "/api/ps", "/api/tags", "/api/version", "/get_model_info", "/get_server_info", "/health_generate",
            "/info", "/live", "/load", "/model_info", "/models", "/perf_metrics", "/ping", "/props", "/ready",
            "/server_info", "/slots", "/version",
        ],
    }

    /// Every other path: counted, not decoded.
    Other = "other": OTHER {}
}
