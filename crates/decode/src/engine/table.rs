//! The table of engines.
//!
//! Sources of `listen`: vLLM 0.33 `entrypoints/common/cli_args.py`; SGLang 0.5.10 `server_args.py`; llama.cpp
//! `common/arg.cpp` (each flag has a variable); text-generation-inference `launcher/src/main.rs` (a repeated flag is an
//! error); Ollama `envconfig/config.go`; TensorRT-LLM `commands/serve.py`; Triton `command_line_parser.cc`; LMDeploy
//! `cli/serve.py`; llama-cpp-python `server/settings.py`; transformers `commands/serving.py`.
//!
//! Sources of `limits`: the request types of vLLM 0.33 (`ChatCompletionRequest`, `CompletionRequest`), SGLang 0.5, TGI
//! 3.3, LMDeploy 0.18, TensorRT-LLM, Dynamo 1.6 and Ollama 0.17 (openai/openai.go), and tests of llama-server with each
//! key on each route.
//!
//! Sources of `metrics`: the source code of vLLM 0.33.0, SGLang 0.5.23, TGI 3.3.6, LMDeploy 0.18, TensorRT-LLM of 2026,
//! llama.cpp of autumn 2026, Triton 2.73 and its TensorRT-LLM backend, Dynamo 1.6.1. "Older" marks names from earlier
//! releases. An engine comes before the servers that embed it, because Triton and Dynamo forward vLLM's metrics.

use crate::request::Limits;

use super::metrics::{alone, labelled, scaled, source, term};
use super::{Advice, EngineHabits, EngineInfo, FlagForm, Listen, MetricsPage, Parameter, Quantity};

/// Declares [`Engine`] and its rows. Omitted columns have the value of [`UNKNOWN`].
macro_rules! engines {
    ($( $(#[doc = $text:literal])+ $engine:ident = $name:literal { $($column:ident: $value:expr,)* } )+) => {
        tokometer_metrics::closed_enum! {
            /// An inference engine.
            pub enum Engine { $( $(#[doc = $text])+ $engine = $name, )+ }
        }

        impl Engine {
            /// The table row of this engine.
            pub fn info(self) -> &'static EngineInfo {
                match self { $( Engine::$engine => {
                    #[allow(clippy::needless_update, reason = "most rows leave columns out")]
                    static ROW: EngineInfo = EngineInfo { $($column: $value,)* ..UNKNOWN };
                    &ROW
                } )+ }
            }
        }
    };
}

const UNKNOWN: EngineInfo = EngineInfo {
    title: "",
    programs: &[],
    owned_by: None,
    listen: None,
    page: None,
    metrics: &[],
    habits: NO_HABITS,
    limits: Limits::NONE,
    version: None,
    advice: Advice::GENERAL,
};

const NO_HABITS: EngineHabits = EngineHabits {
    empty_delta_is_token: false,
    head_when_scheduled: false,
    usage_per_choice: false,
    early_input_is_guessed: false,
    aborts_with_error: false,
};

const USUAL_PAGE: MetricsPage = MetricsPage { path: "/metrics", port: None, draining: false };

const LOCAL_HOST: &str = "start the server with --host 127.0.0.1";

#[rustfmt::skip]
engines! {
    /// vLLM.
    Vllm = "vllm" {
        title: "vLLM",
        limits: Limits::MAX_COMPLETION_TOKENS,
        programs: &["vllm"],
        owned_by: Some("vllm"),
        listen: Some(Listen {
            default_port: 8000,
            host: Parameter::Flag("--host", FlagForm::Joined),
            port: Parameter::Flag("--port", FlagForm::Joined),
            socket: Some(Parameter::Flag("--uds", FlagForm::Joined)),
        }),
        page: Some(USUAL_PAGE),
        metrics: &[
            source(Quantity::Running, &[term("vllm:num_requests_running")], ""),
            source(Quantity::Waiting, &[term("vllm:num_requests_waiting")], ""),
            source(Quantity::KvUsage, &[term("vllm:kv_cache_usage_perc")], ""),
            source(Quantity::KvUsage, &[term("vllm:gpu_cache_usage_perc")], "older"),
            source(Quantity::CacheQueries, &[term("vllm:prefix_cache_queries_total")], "tokens"),
            source(Quantity::CacheQueries, &[term("vllm:gpu_prefix_cache_queries_total")], "older; tokens"),
            source(Quantity::CacheHits, &[term("vllm:prefix_cache_hits_total")], "tokens"),
            source(Quantity::CacheHits, &[term("vllm:gpu_prefix_cache_hits_total")], "older; tokens"),
            source(Quantity::CacheRatio, &[term("vllm:gpu_prefix_cache_hit_rate")], "older (V0)"),
            source(Quantity::Preemptions, &[term("vllm:num_preemptions_total")], ""),
            source(Quantity::Drafted, &[term("vllm:spec_decode_num_draft_tokens_total")], ""),
            source(Quantity::Accepted, &[term("vllm:spec_decode_num_accepted_tokens_total")], ""),
            source(Quantity::AcceptanceRatio, &[term("vllm:spec_decode_draft_acceptance_rate")], "older (V0)"),
            source(Quantity::Iterations, &[term("vllm:iteration_tokens_total_count")], ""),
            source(Quantity::Generated, &[term("vllm:generation_tokens_total")], ""),
            source(Quantity::QueueSeconds, &[term("vllm:request_queue_time_seconds_sum")], "ended requests only"),
            source(Quantity::QueueRequests, &[term("vllm:request_queue_time_seconds_count")], "ended requests only"),
            source(Quantity::KvTransferSeconds, &[term("vllm:nixl_xfer_time_seconds_sum")], "NIXL connector"),
            source(Quantity::KvTransfers, &[term("vllm:nixl_xfer_time_seconds_count")], "NIXL connector"),
        ],
        version: Some("/version"),
        advice: Advice {
            usage: "start vLLM with --enable-force-include-usage",
            queue: "start vLLM with --enable-per-request-metrics, or with --otlp-traces-endpoint pointing to tokometer (docs/how-to/engine-spans.md)",
            bypass: LOCAL_HOST,
        },
    }

    /// SGLang.
    Sglang = "sglang" {
        title: "SGLang",
        limits: Limits::MAX_COMPLETION_TOKENS.and(Limits::MAX_NEW_TOKENS).and(Limits::NUM_PREDICT),
        programs: &["sglang"],
        owned_by: Some("sglang"),
        listen: Some(Listen {
            default_port: 30_000,
            host: Parameter::Flag("--host", FlagForm::Joined),
            port: Parameter::Flag("--port", FlagForm::Joined),
            socket: None,
        }),
        page: Some(USUAL_PAGE),
        metrics: &[
            source(Quantity::Running, &[term("sglang:num_running_reqs")], ""),
            source(Quantity::Waiting, &[term("sglang:num_queue_reqs")], ""),
            source(Quantity::KvUsage, &[term("sglang:token_usage")], "maximum over pools"),
            source(Quantity::CacheQueries, &[term("sglang:prompt_tokens_total")], "tokens"),
            source(Quantity::CacheHits, &[term("sglang:cached_tokens_total")], "tokens of all cache tiers; the counter appears at the first hit"),
            source(Quantity::CacheRatio, &[term("sglang:cache_hit_rate")], "last batch only"),
            source(Quantity::Preemptions, &[term("sglang:num_retracted_requests_total")], "retractions"),
            source(Quantity::AcceptanceRatio, &[term("sglang:spec_accept_rate")], "last interval only"),
            source(Quantity::QueueSeconds, &[term("sglang:queue_time_seconds_sum")], ""),
            source(Quantity::QueueRequests, &[term("sglang:queue_time_seconds_count")], ""),
            source(Quantity::KvTransferSeconds, &[scaled("sglang:kv_transfer_latency_ms_sum", 1e-3)], ""),
            source(Quantity::KvTransfers, &[term("sglang:kv_transfer_latency_ms_count")], ""),
        ],
        advice: Advice {
            usage: "start SGLang with --stream-response-default-include-usage",
            queue: "let SGLang send its spans to tokometer (docs/how-to/engine-spans.md)",
            bypass: LOCAL_HOST,
        },
    }

    /// llama.cpp (llama-server).
    LlamaCpp = "llama_cpp" {
        title: "llama.cpp",
        limits: Limits::MAX_COMPLETION_TOKENS.and(Limits::OF_COMPLETIONS).and(Limits::MAX_TOKENS).and(Limits::N_PREDICT),
        programs: &["llama-server", "llama.cpp", "llamacpp"],
        owned_by: Some("llamacpp"),
        listen: Some(Listen {
            default_port: 8080,
            host: Parameter::Either("--host", FlagForm::Spaced, "LLAMA_ARG_HOST"),
            port: Parameter::Either("--port", FlagForm::Spaced, "LLAMA_ARG_PORT"),
            // A host that ends with `.sock` is a socket path.
            socket: Some(Parameter::Either("--host", FlagForm::Spaced, "LLAMA_ARG_HOST")),
        }),
        // Each read restarts the averages `llamacpp:prompt_tokens_seconds` and `llamacpp:predicted_tokens_seconds`.
        page: Some(MetricsPage { draining: true, ..USUAL_PAGE }),
        metrics: &[
            source(Quantity::Running, &[term("llamacpp:requests_processing")], ""),
            source(Quantity::Waiting, &[term("llamacpp:requests_deferred")], ""),
            source(Quantity::KvUsage, &[term("llamacpp:kv_cache_usage_ratio")], "older"),
            source(Quantity::CacheQueries, &[term("llamacpp:prompt_tokens_total"), term("llamacpp:prompt_tokens_cached_total")], "tokens"),
            source(Quantity::CacheHits, &[term("llamacpp:prompt_tokens_cached_total")], "tokens"),
            source(Quantity::Drafted, &[term("llamacpp:spec_decode_num_draft_tokens_total")], ""),
            source(Quantity::Accepted, &[term("llamacpp:spec_decode_num_accepted_tokens_total")], ""),
        ],
        habits: EngineHabits { head_when_scheduled: true, usage_per_choice: true, ..NO_HABITS },
        advice: Advice { bypass: LOCAL_HOST, ..Advice::GENERAL },
    }

    /// Hugging Face Text Generation Inference.
    Tgi = "tgi" {
        title: "TGI",
        limits: Limits::MAX_COMPLETION_TOKENS.and(Limits::PARAMETERS),
        programs: &["text-generation-launcher", "text-generation-inference"],
        listen: Some(Listen {
            default_port: 80,
            // The container runtime sets HOSTNAME to the pod name, and the launcher reads HOSTNAME.
            host: Parameter::Either("--hostname", FlagForm::Once, "HOSTNAME"),
            port: Parameter::Either("--port", FlagForm::Once, "PORT"),
            socket: None,
        }),
        page: Some(USUAL_PAGE),
        metrics: &[
            source(Quantity::Running, &[term("tgi_batch_current_size")], ""),
            source(Quantity::Waiting, &[term("tgi_queue_size")], ""),
            source(Quantity::QueueSeconds, &[term("tgi_request_queue_duration_sum")], ""),
            source(Quantity::QueueRequests, &[term("tgi_request_queue_duration_count")], ""),
        ],
        advice: Advice {
            usage: "let clients set stream_options.include_usage, or use TGI's own /generate_stream with details",
            bypass: "start the server with --hostname 127.0.0.1",
            ..Advice::GENERAL
        },
    }

    /// Ollama.
    Ollama = "ollama" {
        title: "Ollama",
        limits: Limits::NUM_PREDICT,
        programs: &["ollama"],
        owned_by: Some("library"),
        // `OLLAMA_HOST` contains the whole address.
        listen: Some(Listen {
            default_port: 11_434,
            host: Parameter::Variable("OLLAMA_HOST"),
            port: Parameter::Variable("OLLAMA_HOST"),
            socket: None,
        }),
        habits: EngineHabits { early_input_is_guessed: true, aborts_with_error: true, ..NO_HABITS },
        advice: Advice {
            usage: "let clients set stream_options.include_usage, or use Ollama's own /api/chat, which always counts",
            queue: "use Ollama's own /api/chat, which reports its durations",
            bypass: "start the server with OLLAMA_HOST=127.0.0.1:PORT",
        },
    }

    /// TensorRT-LLM (trtllm-serve).
    TensorrtLlm = "tensorrt_llm" {
        title: "TensorRT-LLM",
        limits: Limits::MAX_COMPLETION_TOKENS,
        programs: &["trtllm-serve", "tensorrt-llm", "tensorrt_llm"],
        listen: Some(Listen {
            default_port: 8000,
            host: Parameter::Flag("--host", FlagForm::Joined),
            port: Parameter::Flag("--port", FlagForm::Joined),
            socket: None,
        }),
        owned_by: Some("tensorrt_llm"),
        // `/metrics` is not used, because each read deletes its statistics. This page requires `return_perf_metrics`.
        page: Some(MetricsPage { path: "/prometheus/metrics", ..USUAL_PAGE }),
        metrics: &[
            source(Quantity::Running, &[term("trtllm_num_requests_running")], ""),
            source(Quantity::Waiting, &[term("trtllm_num_requests_waiting")], ""),
            source(Quantity::KvUsage, &[term("trtllm_kv_cache_utilization")], ""),
            source(Quantity::CacheQueries, &[term("trtllm_kv_cache_reused_blocks_total"), term("trtllm_kv_cache_missed_blocks_total")], "blocks"),
            source(Quantity::CacheHits, &[term("trtllm_kv_cache_reused_blocks_total")], "blocks"),
            source(Quantity::CacheRatio, &[term("trtllm_kv_cache_hit_rate")], "older"),
            source(Quantity::Drafted, &[term("trtllm_spec_decode_num_draft_tokens_total")], ""),
            source(Quantity::Accepted, &[term("trtllm_spec_decode_num_accepted_tokens_total")], ""),
            source(Quantity::QueueSeconds, &[term("trtllm_request_queue_time_seconds_sum")], "ended requests only"),
            source(Quantity::QueueRequests, &[term("trtllm_request_queue_time_seconds_count")], "ended requests only"),
        ],
        advice: Advice { queue: "let TensorRT-LLM send its spans to tokometer (docs/how-to/engine-spans.md)", ..Advice::GENERAL },
    }

    /// Triton Inference Server.
    Triton = "triton" {
        title: "Triton",
        programs: &["tritonserver"],
        listen: Some(Listen {
            default_port: 8000,
            host: Parameter::Flag("--http-address", FlagForm::Joined),
            port: Parameter::Flag("--http-port", FlagForm::Joined),
            socket: None,
        }),
        page: Some(MetricsPage { port: Some(8002), ..USUAL_PAGE }),
        metrics: &[
            source(Quantity::Running, &[labelled("nv_trt_llm_request_metrics", "request_type", "scheduled")], "TensorRT-LLM backend"),
            source(Quantity::Waiting, &[labelled("nv_trt_llm_request_metrics", "request_type", "waiting")], "TensorRT-LLM backend"),
            source(Quantity::KvUsage, &[labelled("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction")], "TensorRT-LLM backend"),
            alone(Quantity::Waiting, &[term("nv_inference_pending_request_count")], "only with a single model"),
            alone(Quantity::QueueSeconds, &[scaled("nv_inference_queue_duration_us", 1e-6)], "only with a single model"),
            alone(Quantity::QueueRequests, &[term("nv_inference_request_success")], "only with a single model"),
        ],
    }

    /// LMDeploy.
    Lmdeploy = "lmdeploy" {
        title: "LMDeploy",
        limits: Limits::MAX_COMPLETION_TOKENS.and(Limits::OF_COMPLETIONS).and(Limits::MAX_TOKENS),
        programs: &["lmdeploy"],
        listen: Some(Listen {
            default_port: 23_333,
            host: Parameter::Flag("--server-name", FlagForm::Joined),
            port: Parameter::Flag("--server-port", FlagForm::Joined),
            socket: None,
        }),
        owned_by: Some("lmdeploy"),
        page: Some(USUAL_PAGE),
        metrics: &[
            source(Quantity::Running, &[term("lmdeploy:num_requests_running")], ""),
            source(Quantity::Waiting, &[term("lmdeploy:num_requests_waiting")], "excludes requests waiting for an engine handle"),
            source(Quantity::KvUsage, &[term("lmdeploy:gpu_cache_usage_perc")], ""),
            source(Quantity::CacheRatio, &[term("lmdeploy:prefix_cache_hit_rate")], ""),
            source(Quantity::Drafted, &[term("lmdeploy:spec_decode_num_draft_tokens_total")], ""),
            source(Quantity::Accepted, &[term("lmdeploy:spec_decode_num_accepted_tokens_total")], ""),
            source(Quantity::QueueSeconds, &[term("lmdeploy:request_queue_time_seconds_sum")], "ended requests only"),
            source(Quantity::QueueRequests, &[term("lmdeploy:request_queue_time_seconds_count")], "ended requests only"),
        ],
        advice: Advice { bypass: "start the server with --server-name 127.0.0.1", ..Advice::GENERAL },
    }

    /// NVIDIA Dynamo.
    Dynamo = "dynamo" {
        title: "Dynamo",
        limits: Limits::MAX_COMPLETION_TOKENS,
        programs: &["dynamo.frontend"],
        owned_by: Some("nvidia"),
        page: Some(USUAL_PAGE),
        metrics: &[
            source(Quantity::Running, &[term("dynamo_frontend_inflight_requests"), scaled("dynamo_frontend_queued_requests", -1.0)], "in flight minus queued"),
            source(Quantity::Waiting, &[term("dynamo_frontend_queued_requests")], "includes each request until its first token"),
            source(Quantity::KvUsage, &[term("dynamo_component_gpu_cache_usage_percent")], "on a worker's page"),
        ],
        habits: EngineHabits { early_input_is_guessed: true, ..NO_HABITS },
        advice: Advice {
            queue: "let clients set nvext.extra_fields (docs/concepts/queue-time.md)",
            ..Advice::GENERAL
        },
    }

    /// The server of llama-cpp-python.
    LlamaCppPython = "llama_cpp_python" {
        title: "llama-cpp-python",
        programs: &["llama_cpp.server", "llama-cpp-python"],
        listen: Some(Listen {
            default_port: 8000,
            host: Parameter::Flag("--host", FlagForm::Joined),
            port: Parameter::Flag("--port", FlagForm::Joined),
            socket: None,
        }),
    }

    /// transformers serve.
    Transformers = "transformers" {
        title: "transformers serve",
        programs: &["transformers serve"],
        listen: Some(Listen {
            default_port: 8000,
            host: Parameter::Flag("--host", FlagForm::Joined),
            port: Parameter::Flag("--port", FlagForm::Joined),
            socket: None,
        }),
    }
}
