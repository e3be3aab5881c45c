//! The blocks of the data path: `pairs`, `relay`, `observe`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::raw::engine::Engine;
use crate::config::raw::reading::PairScrape;

/// One listener: a listen address and its upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Name of the listener in logs. null: its listen address.
    #[serde(default)]
    pub name: Option<String>,
    /// Address that clients connect to: `0.0.0.0:8000`, `[::]:8000`, `localhost:8000`, `:8000` (all IPv4 addresses), or
    /// `unix:/run/tokometer.sock`. Port 0: any free port.
    pub listen: String,
    /// Address of the server: `127.0.0.1:8001`, `[::1]:8001`, `server:8001` (resolved on every connect), `:8001` (this
    /// machine), `unix:/run/vllm.sock`, `http://host:port`, `https://host:port` (enables TLS), or `original`: the
    /// destination before an iptables REDIRECT to tokometer.
    pub upstream: String,
    /// TLS towards clients. Enabled when a certificate is set; files are PEM.
    #[serde(default)]
    pub tls: Tls,
    /// TLS towards the server. Enabled with `enabled`, or when the upstream starts with `https://`.
    #[serde(default)]
    pub upstream_tls: UpstreamTls,
    /// Overrides of the block `scrape` for this upstream.
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
    /// File with the server certificate chain. null: no TLS.
    pub certificate: Option<String>,
    /// File with the private key of the certificate.
    pub key: Option<String>,
    /// File with CA certificates: clients must present a certificate signed by one of them. null: no client certificate
    /// is required.
    pub client_ca: Option<String>,
}

/// TLS towards the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamTls {
    /// True uses TLS to the server.
    pub enabled: bool,
    /// File with the CA certificates to trust. null: the built-in web roots.
    pub ca: Option<String>,
    /// Name that the server's certificate must contain, also sent as SNI. null: the host of the upstream address.
    pub server_name: Option<String>,
    /// File with tokometer's client certificate chain, if the server requires one.
    pub certificate: Option<String>,
    /// File with the private key of the client certificate.
    pub key: Option<String>,
    /// True accepts any certificate. For tests, and for a server on the same machine with a self-signed certificate.
    pub insecure: bool,
}

/// Response to the client when the server cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Unreachable {
    /// HTTP/1: a `503` with a JSON error that names tokometer and the address. Other protocols: a TCP reset.
    #[default]
    #[serde(rename = "http_503")]
    Http503,
    /// A TCP reset.
    #[serde(rename = "reset")]
    Reset,
}

/// How connections are forwarded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Relay {
    /// Response to the client when the server cannot be reached.
    pub unreachable: Unreachable,
    /// Timeout of a connect to the server, in milliseconds. 0: the kernel's timeout.
    #[schemars(range(min = 0, max = 3600000))]
    pub connect_timeout_ms: u64,
    /// Maximum bytes buffered per connection and direction while the receiver is slow; above it, tokometer stops
    /// reading, so that the sender slows down.
    #[schemars(range(min = 1024, max = 16777216))]
    pub remainder_bytes: u64,
    /// Size of each thread's read buffer in bytes.
    #[schemars(range(min = 4096, max = 16777216))]
    pub scratch_bytes: u64,
    /// Seconds of silence after which TCP keep-alive probes start, on both sides. 0: no probes.
    #[schemars(range(min = 0, max = 32767))]
    pub keepalive_secs: u64,
    /// Seconds without a byte in either direction after which a connection is closed. 0: never, because a model may
    /// think for a long time.
    #[schemars(range(min = 0, max = 604800))]
    pub idle_timeout_secs: u64,
    /// Seconds without a byte after which a half-closed connection is closed. 0: never. A request that is still open
    /// then ends as `upstream_timeout`.
    #[schemars(range(min = 0, max = 604800))]
    pub half_close_timeout_secs: u64,
    /// Maximum number of open client connections. Further ones are refused at once and counted in
    /// `tokometer.connections.refused`. 0: derived from the open-files limit (the hard limit of `ulimit -n`).
    #[schemars(range(min = 0, max = 10000000))]
    pub max_connections: u64,
    /// True shares the listeners' TCP ports with other processes of the same user that also set SO_REUSEPORT, such as
    /// an inference server on the same port (`inject --mode shadow-bind`), or the old process while a new one takes
    /// over. False: a port that is already in use is an error at startup.
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

/// How requests are parsed and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Observe {
    /// False forwards without parsing: no request metrics, no traces.
    pub enabled: bool,
    /// Engine behind tokometer, for `gen_ai.provider.name` and for the interpretation of its responses.
    pub engine: Engine,
    /// Maximum bytes of the headers of a request or response. Longer headers are forwarded, but the connection is no
    /// longer observed.
    #[schemars(range(min = 1024, max = 16777216))]
    pub head_bytes: u64,
    /// Maximum number of open requests of one connection (pipelined requests or HTTP/2 streams) that are observed.
    /// Further ones are forwarded and recorded with the outcome `unobserved`.
    #[schemars(range(min = 1, max = 65536))]
    pub max_open_requests: u64,
    /// Memory budget in bytes for all state that clients can make observers hold: open requests, decoders, header
    /// tables, split headers. One connection or one client address can use at most half of it. Above the budget, new
    /// requests are recorded as `unobserved`, bodies are not parsed, and new connections are not observed; traffic is
    /// not affected. 0: half of the container's memory limit, at most 64 MiB.
    #[schemars(range(min = 0, max = 1099511627776u64))]
    pub memory_bytes: u64,
    /// Maximum number of connections observed at a time; further ones are forwarded unobserved and counted.
    #[schemars(range(min = 1, max = 10000000))]
    pub max_observed: u64,
    /// A gap between two tokens above this many milliseconds is a stall.
    #[schemars(range(min = 1, max = 3600000))]
    pub stall_ms: u64,
    /// Minimum output tokens for a decode rate to be recorded.
    #[schemars(range(min = 2, max = 1000000))]
    pub min_rate_tokens: u64,
    /// Minimum milliseconds between first and last token for a decode rate to be recorded.
    #[schemars(range(min = 0, max = 3600000))]
    pub min_rate_span_ms: u64,
    /// Maximum window size in bytes that a compressed body (gzip, deflate, br, zstd) may request. Bodies with a larger
    /// window are not parsed and are counted in `tokometer.observer.bodies.unread`. Must be a power of two. A window is
    /// allocated only during such a body, and only as far as the body fills it. gzip and deflate always use 32 KiB.
    #[schemars(range(min = 1024, max = 134217728))]
    pub coding_window_bytes: u64,
    /// Decoded bytes allowed per received byte, summed over all compressed bodies of a connection; request bytes allow
    /// a third of it. Each connection starts with an allowance of 32 KiB. A body that exceeds the allowance (a
    /// decompression bomb) is not parsed further and is counted in `tokometer.observer.bodies.unread`. Streams that are
    /// flushed after every event need up to 22 (measured with gzip, br and zstd).
    #[schemars(range(min = 1, max = 1000000))]
    pub coding_ratio: u64,
    /// Path prefixes to remove before a path is matched, such as `/engine1`. Each starts with `/`.
    pub path_prefixes: Vec<String>,
    /// Custom paths, `path: name`; they override the built-in ones. `/llm` matches that path only, `/llm/*` everything
    /// below it. Names: `chat`, `completions`, `responses`, `messages`, `generate`, `tgi_stream`, `tgi_compat`,
    /// `llama_completion`, `infill`, `ollama_chat`, `ollama_generate`, `triton_generate`, `vllm_generate`,
    /// `cohere_chat`, `audio_transcription`, `audio_translation`, `realtime`, `embeddings`, `rerank`, `score`,
    /// `classify`, `pooling`, `invocations` (detected from the body), `vllm_inference`, `vllm_inference_stream`,
    /// `vllm_engine`, `sglang_scheduler`, `tensorrt_service`, `triton_infer`, `triton_infer_stream` (gRPC), `probe`
    /// (see `probes`), `other` (counted, not parsed).
    pub routes: BTreeMap<String, String>,
    /// True also records probes, as requests of the operation `other`. Probes are GET and HEAD requests about the
    /// server itself (`/`, `/health`, `/metrics`, `/v1/models` and similar paths, and paths set to `probe` in
    /// `routes`). They are always forwarded and counted in connections and bytes, but do not use the model.
    pub probes: bool,
    /// Token counting for responses whose token counts the engine does not report. Off until a vocabulary is set.
    pub tokenizer: Tokenizer,
}

impl Default for Observe {
    fn default() -> Observe {
        Observe {
            enabled: true,
            engine: Engine::default(),
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

/// Counts tokens from the response text if the engine does not report a count. Such responses, including truncated
/// ones, are recorded with the source `tokenizer`: an estimate, not the engine's count (see docs/ENGINES.md for the
/// differences). The text is stored only for this purpose, in memory, until it is counted; it is never written to
/// metrics, traces or logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tokenizer {
    /// File `tokenizer.json` (Hugging Face format) for models that are not in `models`. null: their responses are not
    /// counted.
    pub path: Option<String>,
    /// Files by the model name in requests or responses, `name: path`.
    pub models: BTreeMap<String, String>,
    /// Maximum bytes of a response's text; longer ones are not counted, and `tokometer.tokenizer.uncounted` records
    /// them.
    #[schemars(range(min = 1024, max = 67108864))]
    pub answer_bytes: u64,
    /// Maximum bytes of text stored for all responses together. Above it, further responses are not stored, and
    /// `tokometer.tokenizer.uncounted` records them.
    #[schemars(range(min = 65536, max = 17179869184u64))]
    pub memory_bytes: u64,
    /// Maximum number of responses waiting to be counted; further ones are recorded without a count, and
    /// `tokometer.tokenizer.uncounted` records them.
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
