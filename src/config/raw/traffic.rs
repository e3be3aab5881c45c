//! The blocks about the data path: `pairs`, `relay`, `observe`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::raw::reading::PairScrape;

/// One listen -> upstream pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Name of the pair in logs. null: its listen address.
    #[serde(default)]
    pub name: Option<String>,
    /// Where clients connect: `0.0.0.0:8000`, `[::]:8000`, `localhost:8000`, `:8000` (every IPv4 address), or
    /// `unix:/run/tokometer.sock`. Port 0: a free one.
    pub listen: String,
    /// Where the server is: `127.0.0.1:8001`, `[::1]:8001`, `server:8001` (resolved at every connect), `:8001` (this
    /// machine), `unix:/run/vllm.sock`, `http://host:port`, `https://host:port` (turns TLS on), or `original`: where the
    /// packets went before an iptables REDIRECT turned them to us.
    pub upstream: String,
    /// TLS towards clients. On when a certificate is set; files are PEM.
    #[serde(default)]
    pub tls: Tls,
    /// TLS towards the server. On with `enabled`, or when the upstream begins with `https://`.
    #[serde(default)]
    pub upstream_tls: UpstreamTls,
    /// Reading the metrics of this server, where it is not as the block `scrape` says.
    #[serde(default)]
    pub scrape: PairScrape,
}

impl Default for Pair {
    fn default() -> Pair {
        Pair {
            name: None,
            listen: "0.0.0.0:8000".to_owned(),
            upstream: "127.0.0.1:8001".to_owned(),
            tls: Tls::default(),
            upstream_tls: UpstreamTls::default(),
            scrape: PairScrape::default(),
        }
    }
}

/// TLS towards clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// File with the certificate chain. null: no TLS.
    pub certificate: Option<String>,
    /// File with the private key of the certificate.
    pub key: Option<String>,
    /// File with authorities: clients must show a certificate that one of them signed. null: clients need none.
    pub client_ca: Option<String>,
}

/// TLS towards the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamTls {
    /// True speaks TLS to the server.
    pub enabled: bool,
    /// File with the authorities to trust. null: the built-in web roots.
    pub ca: Option<String>,
    /// Name that the server's certificate must carry, also sent as SNI. null: the host of the upstream address.
    pub server_name: Option<String>,
    /// File with our own certificate chain, if the server asks for one.
    pub certificate: Option<String>,
    /// File with the private key of our own certificate.
    pub key: Option<String>,
    /// True accepts any certificate. For a server on this machine with a certificate of its own making, and for tests.
    pub insecure: bool,
}

/// What a client gets when the server cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unreachable {
    /// HTTP/1: a `503` with a JSON error that names tokometer and the address. A reset for what is not HTTP/1.
    #[default]
    #[serde(rename = "http_503")]
    Http503,
    /// A TCP reset.
    #[serde(rename = "reset")]
    Reset,
}

/// How connections are relayed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Relay {
    /// What a client gets when the server cannot be reached.
    pub unreachable: Unreachable,
    /// Milliseconds that a connect to the server may take. 0: as long as the kernel tries.
    #[schemars(range(min = 0, max = 3600000))]
    pub connect_timeout_ms: u64,
    /// Most bytes kept per connection and direction while the other side does not take them; above it we stop reading,
    /// so that the sender slows down.
    #[schemars(range(min = 1024, max = 16777216))]
    pub remainder_bytes: u64,
    /// Bytes of the read buffer that each thread has.
    #[schemars(range(min = 4096, max = 16777216))]
    pub scratch_bytes: u64,
    /// Seconds of silence after which TCP keep-alive probes start, on both sides. 0: no probes.
    #[schemars(range(min = 0, max = 32767))]
    pub keepalive_secs: u64,
    /// Seconds without a byte in either direction after which a connection is closed. 0: never; a model may think long.
    #[schemars(range(min = 0, max = 604800))]
    pub idle_timeout_secs: u64,
    /// Seconds without a byte after which a connection is closed of which one side has finished. 0: never. A request that
    /// is still open then ends as `upstream_timeout`.
    #[schemars(range(min = 0, max = 604800))]
    pub half_close_timeout_secs: u64,
    /// Maximum number of client connections that are open at a time. New ones above it are refused at once and counted in
    /// `tokometer.connections.refused`. 0: as many as the limit of open files (the hard limit of `ulimit -n`) has room for.
    #[schemars(range(min = 0, max = 10000000))]
    pub max_connections: u64,
    /// True shares the TCP ports of the listeners with other processes of the same user that set SO_REUSEPORT too, such as
    /// an inference server on the same port (`inject --mode shadow-bind`), or the old process while a new one takes over.
    /// False: a port that another process listens on is an error at the start.
    pub port_sharing: bool,
}

impl Default for Relay {
    fn default() -> Relay {
        Relay {
            unreachable: Unreachable::default(),
            connect_timeout_ms: 10_000,
            remainder_bytes: 65_536,
            scratch_bytes: 65_536,
            keepalive_secs: 60,
            idle_timeout_secs: 0,
            half_close_timeout_secs: 300,
            max_connections: 0,
            port_sharing: false,
        }
    }
}

/// The engine behind a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Engine {
    /// Recognised from what it sends.
    #[default]
    Auto,
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// llama.cpp (llama-server).
    LlamaCpp,
    /// Hugging Face Text Generation Inference.
    Tgi,
    /// Ollama.
    Ollama,
    /// TensorRT-LLM (trtllm-serve).
    TensorrtLlm,
    /// Triton Inference Server.
    Triton,
    /// LMDeploy.
    Lmdeploy,
    /// NVIDIA Dynamo.
    Dynamo,
    /// The server of llama-cpp-python.
    LlamaCppPython,
    /// transformers serve.
    Transformers,
}

/// How exchanges are read and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Observe {
    /// False relays without looking: no metrics of exchanges, no traces.
    pub enabled: bool,
    /// The engine behind us, for `gen_ai.provider.name` and for what its answers mean.
    pub engine: Engine,
    /// Most bytes of a request or response head. A longer one is relayed, but its connection is no longer observed.
    #[schemars(range(min = 1024, max = 16777216))]
    pub head_bytes: u64,
    /// Maximum open requests of one connection (pipelined, or streams of HTTP/2) that are observed. Further ones are forwarded
    /// and recorded with the outcome `unobserved`.
    #[schemars(range(min = 1, max = 65536))]
    pub max_open_requests: u64,
    /// Memory budget in bytes for everything that clients can make observers hold: open requests, decoders, header tables,
    /// split headers. One connection, and one client address, can take half of it at most. Over it, new requests are recorded
    /// as `unobserved`, bodies are not read, and new connections are not observed; traffic is never touched. 0: half of the
    /// container's memory limit, and 64 MiB at most.
    #[schemars(range(min = 0, max = 1099511627776u64))]
    pub memory_bytes: u64,
    /// Most connections that are observed at a time; further ones are relayed unobserved and counted.
    #[schemars(range(min = 1, max = 10000000))]
    pub max_observed: u64,
    /// Milliseconds between two tokens above which a gap is a stall.
    #[schemars(range(min = 1, max = 3600000))]
    pub stall_ms: u64,
    /// Fewest output tokens for which a decode rate is told.
    #[schemars(range(min = 2, max = 1000000))]
    pub min_rate_tokens: u64,
    /// Shortest time in milliseconds between first and last token for which a decode rate is told.
    #[schemars(range(min = 0, max = 3600000))]
    pub min_rate_span_ms: u64,
    /// Most bytes of the window that a compressed body (gzip, deflate, br, zstd) may ask for; of one that asks for more
    /// nothing is read, and `tokometer.observer.bodies.unread` counts it. A power of two; a window is only held while such
    /// a body passes, and only as much of it as the body fills. gzip and deflate always have 32 KiB.
    #[schemars(range(min = 1024, max = 134217728))]
    pub coding_window_bytes: u64,
    /// How many decoded bytes each received byte of a connection earns, over all of its compressed bodies: each byte of
    /// responses, and a third of it each byte of requests. A connection begins with 32 KiB. A body that exceeds what was earned (a decompression bomb) is not read any further, and
    /// `tokometer.observer.bodies.unread` counts it. Streams that are flushed with each event need up to 22 (measured with gzip, br and zstd).
    #[schemars(range(min = 1, max = 1000000))]
    pub coding_ratio: u64,
    /// Path prefixes to strip before a path is recognised, such as `/engine1`. Each begins with `/`.
    pub path_prefixes: Vec<String>,
    /// Paths of your own and what they are, `path: name`; they win over the known ones. `/llm` is that path alone,
    /// `/llm/*` all below it. Names: `chat`, `completions`, `responses`, `messages`, `generate`, `tgi_stream`,
    /// `tgi_compat`, `llama_completion`, `infill`, `ollama_chat`, `ollama_generate`, `triton_generate`, `vllm_generate`,
    /// `cohere_chat`, `audio_transcription`, `audio_translation`, `realtime`, `embeddings`, `rerank`, `score`,
    /// `classify`, `pooling`, `invocations` (what the body's shape says), `vllm_inference`, `vllm_inference_stream`,
    /// `vllm_engine`, `sglang_scheduler`, `tensorrt_service`, `triton_infer`, `triton_infer_stream` (gRPC),
    /// `probe` (see `probes`), `other` (counted, not read).
    pub routes: BTreeMap<String, String>,
    /// True records probes too, as exchanges of the operation `other`. Probes are GET and HEAD requests that ask after
    /// the server itself (`/`, `/health`, `/metrics`, `/v1/models` and their like, and paths set to `probe` in
    /// `routes`); they are relayed as all else and counted in connections and bytes, but they are no use of the model.
    pub probes: bool,
    /// Counts answers of which the engine tells no number of tokens. Off until a vocabulary is set.
    pub tokenizer: Tokenizer,
}

impl Default for Observe {
    fn default() -> Observe {
        Observe {
            enabled: true,
            engine: Engine::Auto,
            head_bytes: 65_536,
            max_open_requests: 1024,
            memory_bytes: 0,
            max_observed: 100_000,
            stall_ms: 1000,
            min_rate_tokens: 2,
            min_rate_span_ms: 1,
            coding_window_bytes: 8_388_608,
            coding_ratio: 24,
            path_prefixes: Vec::new(),
            routes: BTreeMap::new(),
            probes: false,
            tokenizer: Tokenizer::default(),
        }
    }
}

/// Counting by the answers' text, where the engine tells no number of tokens: such answers, cut ones too, are then told with
/// the source `tokenizer`, which is an estimate and not what the engine sampled (docs/ENGINES.md says how it may differ).
/// Text is kept for this alone, in memory and until it is counted; it never gets into metrics, traces or logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tokenizer {
    /// File `tokenizer.json` (the form of Hugging Face's tokenizers) of the models that are not in `models`. null: their
    /// answers are not counted.
    pub path: Option<String>,
    /// Files by the model's name in requests or answers, `name: path`.
    pub models: BTreeMap<String, String>,
    /// Most bytes of an answer's text; a longer one is not counted, and `tokometer.tokenizer.uncounted` tells of it.
    #[schemars(range(min = 1024, max = 67108864))]
    pub answer_bytes: u64,
    /// Most bytes that the texts of all answers take together. Over it further ones are not kept, and
    /// `tokometer.tokenizer.uncounted` tells of them.
    #[schemars(range(min = 65536, max = 17179869184u64))]
    pub memory_bytes: u64,
    /// Most answers that wait to be counted; further ones are told without the count, and `tokometer.tokenizer.uncounted`
    /// tells of them.
    #[schemars(range(min = 1, max = 100000))]
    pub queue_answers: u64,
}

impl Default for Tokenizer {
    fn default() -> Tokenizer {
        Tokenizer {
            path: None,
            models: BTreeMap::new(),
            answer_bytes: 262_144,
            memory_bytes: 67_108_864,
            queue_answers: 256,
        }
    }
}
