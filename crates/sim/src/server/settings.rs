//! Settings of the simulated server.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::names::named;
use crate::server::fault::Fault;

named! {
    /// An inference engine. The native paths of all engines are always served; this selects the engine for the paths
    /// that several engines share.
    Imitation, "engine", {
        /// vLLM 0.32.0, Python front end.
        #[default]
        Vllm = "vllm",
        /// SGLang 0.5.23.
        Sglang = "sglang",
        /// LMDeploy 0.18: `/generate` like SGLang's, but incremental.
        LmDeploy = "lmdeploy",
        /// llama.cpp's llama-server, 0.5.0.
        LlamaCpp = "llama_cpp",
        /// Text Generation Inference 3.3.6.
        Tgi = "tgi",
        /// Ollama 0.17.4.
        Ollama = "ollama",
        /// NVIDIA Dynamo 1.6.1.
        Dynamo = "dynamo",
        /// TensorRT-LLM's `trtllm-serve` of 2025 and 2026.
        TensorRtLlm = "tensorrt_llm",
        /// Triton 2.73.
        Triton = "triton",
    }
}

/// Token rate and timing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Time from scheduling (the end of the wait in the queue) to the first token.
    pub time_to_first_token: Duration,
    /// Tokens per second of each choice, after the first token; 0: as fast as the client reads.
    pub tokens_per_second: f64,
    /// Tokens per event after the first one, which contains a single token (`--stream-interval` in vLLM).
    pub tokens_per_chunk: u32,
    /// Maximum random delay, as a share (0 to 1) of the time to first token and of each gap. The delays are uniformly
    /// distributed.
    pub jitter: f64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            time_to_first_token: Duration::from_millis(200),
            tokens_per_second: 50.0,
            tokens_per_chunk: 1,
            jitter: 0.1,
        }
    }
}

/// Text of the generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Text {
    /// Pieces of English words.
    #[default]
    Words,
    /// Each event's text is its rendering time, in nanoseconds since this moment, as [`STAMP_DIGITS`] digits. A reader
    /// on the same machine can calculate the transit time.
    Stamp(Instant),
    /// One letter repeated to the length of a timestamp. The event is rendered only once, which makes it the cheapest
    /// to send.
    Filler,
}

/// Length of a timestamp's text in bytes; a chat event then has about 250 bytes, like vLLM's.
pub const STAMP_DIGITS: usize = 38;

/// Listen address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// On TCP; port 0 selects a free port.
    Tcp(SocketAddr),
    /// On a Unix socket, which is removed on shutdown.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Destination of the spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// URL of the gRPC receiver: `http://127.0.0.1:4317`.
    pub endpoint: String,
    /// Time between two batches (`OTEL_BSP_SCHEDULE_DELAY`: 5 s).
    pub delay: Duration,
}

/// Settings of the simulated server.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Listen address.
    pub listen: Listen,
    /// The engine that serves the paths shared by several engines; each engine's native paths are always served. The
    /// request header `x-sim-engine` overrides this setting.
    pub imitate: Imitation,
    /// Name of the model. Requests for `fault/NAME[:ARG]` are also served, with the named fault.
    pub model: String,
    /// Maximum prompt plus response, in tokens; larger requests receive status 400.
    pub max_model_len: u64,
    /// Token rate and timing.
    pub pace: Pace,
    /// Text of the generated tokens.
    pub text: Text,
    /// Number of tokens of a response (end-of-text token included), uniformly distributed.
    pub response_tokens: RangeInclusive<u64>,
    /// Maximum number of concurrently generating requests; further requests wait (`--max-num-seqs` in vLLM).
    pub max_concurrency: usize,
    /// Report queue and generation times in the usage chunk (`--enable-per-request-metrics`).
    pub per_request_metrics: bool,
    /// Send final and continuous usage in every stream (`--enable-force-include-usage`).
    pub force_include_usage: bool,
    /// Report cached prompt tokens in the final usage (`--enable-prompt-tokens-details`).
    pub prompt_tokens_details: bool,
    /// Share (0 to 1) of each prompt that is found in the cache.
    pub cached_share: f64,
    /// Capacity of the KV cache in tokens.
    pub kv_cache_tokens: u64,
    /// Random faults: each with its probability (0 to 1).
    pub faults: Vec<(Fault, f64)>,
    /// Time without a request after which a connection is closed (uvicorn: 5 s).
    pub idle_timeout: Duration,
    /// Meet due times to the microsecond instead of a regular timer's millisecond, with a busy-waiting task that
    /// occupies a whole core. For benchmarks, where a timer's bursts would hide the latency that a proxy adds.
    pub spin: bool,
    /// Send a span for each request (`--otlp-traces-endpoint` of vLLM); `None` for none.
    pub traces: Option<Traces>,
    /// Seed of the random numbers, combined with the number of the request.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))),
            imitate: Imitation::default(),
            model: "sim".to_owned(),
            max_model_len: 32 * 1024,
            pace: Pace::default(),
            text: Text::default(),
            response_tokens: 40..=240,
            max_concurrency: 256,
            per_request_metrics: false,
            force_include_usage: false,
            prompt_tokens_details: false,
            cached_share: 0.0,
            kv_cache_tokens: 500_000,
            faults: Vec::new(),
            idle_timeout: Duration::from_secs(5),
            spin: false,
            traces: None,
            seed: 0,
        }
    }
}
