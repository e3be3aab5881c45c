//! The blocks of the data path: `listeners`, `relay`, `observe`, `scrape`, `engine_spans`, `wedge`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::raw::engine::Engine;
use crate::config::units::{Duration, Size};
use tokometer_engine::{engine_spans, scrape};
use tokometer_observe::observer;
use tokometer_proxy::relay;
use tokometer_telemetry::live;

/// One listener: a listen address and its upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Listener {
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
    pub scrape: ListenerScrape,
}

impl Default for Listener {
    fn default() -> Listener {
        Listener {
            name: None,
            listen: "0.0.0.0:8000".to_owned(),
            upstream: "127.0.0.1:8001".to_owned(),
            tls: Tls::default(),
            upstream_tls: UpstreamTls::default(),
            scrape: ListenerScrape::default(),
        }
    }
}

block! {
    /// TLS towards clients.
    Tls {
        /// File with the server certificate chain. null: no TLS.
        certificate: Option<String> = None,
        /// File with the private key of the certificate.
        key: Option<String> = None,
        /// File with CA certificates: clients must present a certificate signed by one of them. null: no client certificate
        /// is required.
        client_ca: Option<String> = None,
    }
}

block! {
    /// TLS towards the server.
    UpstreamTls {
        /// True uses TLS to the server.
        enabled: bool = false,
        /// File with the CA certificates to trust. null: the built-in web roots.
        ca: Option<String> = None,
        /// Name that the server's certificate must contain, also sent as SNI. null: the host of the upstream address.
        server_name: Option<String> = None,
        /// File with tokometer's client certificate chain, if the server requires one.
        certificate: Option<String> = None,
        /// File with the private key of the client certificate.
        key: Option<String> = None,
        /// True accepts any certificate. For tests, and for a server on the same machine with a self-signed certificate.
        insecure: bool = false,
    }
}

block! {
    /// Scraping of the metrics of one listener's upstream.
    ListenerScrape {
        /// True scrapes this upstream, false does not. null: `scrape.enabled`.
        enabled: Option<bool> = None,
        /// Path of the metrics. null: `scrape.path`.
        path: Option<String> = None,
        /// Port of the metrics. null: `scrape.port_number`.
        #[schemars(range(min = 1, max = 65535))]
        port_number: Option<u64> = None,
    }
}

words! {
    /// Response to the client when the server cannot be reached.
    Unreachable {
        /// HTTP/1: a `503` with a JSON error that names tokometer and the address. Other protocols: a TCP reset.
        Http503 = "http_503",
        /// A TCP reset.
        Reset = "reset",
    }
}

block! {
    /// How connections are forwarded.
    Relay {
        /// Response to the client when the server cannot be reached.
        #[schemars(extend("x-reload" = true))]
        unreachable: Unreachable = Unreachable::default(),
        /// Timeout of a connect to the server. 0: the kernel's timeout.
        #[schemars(extend("x-range" = ["0s", "1h"], "x-reload" = true))]
        connect_timeout: Duration = relay::Settings::default().connect_timeout.into(),
        /// Silence after which TCP keep-alive probes start, on both sides. 0: no probes.
        #[schemars(extend("x-range" = ["0s", "9h"]))]
        keepalive: Duration = relay::Settings::default().keepalive.into(),
        /// Time without a byte in either direction after which a connection is closed. 0: never, because a model may think
        /// for a long time.
        #[schemars(extend("x-range" = ["0s", "168h"], "x-reload" = true))]
        idle_timeout: Duration = relay::Settings::default().idle_timeout.into(),
        /// Time without a byte after which a half-closed connection is closed. 0: never. A request that is still open then
        /// ends as `upstream_timeout`.
        #[schemars(extend("x-range" = ["0s", "168h"], "x-reload" = true))]
        half_close_timeout: Duration = relay::Settings::default().half_close_timeout.into(),
        /// Maximum number of open client connections. Further ones are refused at once and counted in
        /// `tokometer.connections.refused`. 0: derived from the open-files limit (the hard limit of `ulimit -n`).
        #[schemars(range(min = 0, max = 10000000))]
        #[schemars(extend("x-reload" = true))]
        max_connections: u64 = 0,
        /// True shares the listeners' TCP ports with other processes of the same user that also set SO_REUSEPORT, such as
        /// an inference server on the same port (`inject --mode shadow-bind`), or the old process while a new one takes
        /// over. False: a port that is already in use is an error at startup.
        port_sharing: bool = false,
    }
}

block! {
    /// How requests are parsed and measured.
    Observe {
        /// False forwards without parsing: no request metrics, no traces.
        enabled: bool = true,
        /// Engine behind tokometer, for `gen_ai.provider.name` and for the interpretation of its responses.
        engine: Engine = Engine::default(),
        /// Memory budget for all state that clients can make observers hold: open requests, decoders, header tables, split
        /// headers. One connection or one client address can use at most half of it. Above the budget, new requests are
        /// recorded as `unobserved`, bodies are not parsed, and new connections are not observed; traffic is not affected.
        /// 0: half of the container's memory limit, at most 64 MiB.
        #[schemars(extend("x-range" = ["0B", "1024GiB"]))]
        memory: Size = Size::default(),
        /// A gap between two tokens longer than this is a stall.
        #[schemars(extend("x-range" = ["1ms", "1h"]))]
        stall: Duration = observer::Settings::default().stall.into(),
        /// Minimum output tokens for a decode rate to be recorded.
        #[schemars(range(min = 2, max = 1000000))]
        min_rate_tokens: u64 = observer::Settings::default().min_rate_tokens,
        /// Path prefixes to remove before a path is matched, such as `/engine1`. Each starts with `/`.
        path_prefixes: Vec<String> = Vec::new(),
        /// Custom paths, `path: name`; they override the built-in ones. `/llm` matches that path only, `/llm/*` everything
        /// below it. Names: `chat`, `completions`, `responses`, `messages`, `generate`, `tgi_stream`, `tgi_compat`,
        /// `llama_completion`, `infill`, `ollama_chat`, `ollama_generate`, `triton_generate`, `vllm_generate`,
        /// `cohere_chat`, `audio_transcription`, `audio_translation`, `realtime`, `embeddings`, `rerank`, `score`,
        /// `classify`, `pooling`, `invocations` (detected from the body), `vllm_inference`, `vllm_inference_stream`,
        /// `vllm_engine`, `sglang_scheduler`, `tensorrt_service`, `triton_infer`, `triton_infer_stream` (gRPC), `probe`
        /// (see `probes`), `other` (counted, not parsed).
        routes: BTreeMap<String, String> = BTreeMap::new(),
        /// True also records probes, as requests of the operation `other`. Probes are GET and HEAD requests about the
        /// server itself (`/`, `/health`, `/metrics`, `/v1/models` and similar paths, and paths set to `probe` in
        /// `routes`). They are always forwarded and counted in connections and bytes, but do not use the model.
        probes: bool = false,
        /// Token counting for responses whose token counts the engine does not report. Off until a vocabulary is set. Needs
        /// a build with the feature `tokenizer`, such as the images.
        tokenizer: Tokenizer = Tokenizer::default(),
    }
}

block! {
    /// Counts tokens from the response text if the engine does not report a count. Such responses, including truncated
    /// ones, are recorded with the source `tokenizer`: an estimate, not the engine's count (see docs/ENGINES.md for the
    /// differences). The text is stored only for this purpose, in memory, until it is counted; it is never written to
    /// metrics, traces or logs.
    Tokenizer {
        /// File `tokenizer.json` (Hugging Face format) for models that are not in `models`. null: their responses are not
        /// counted.
        path: Option<String> = None,
        /// Files by the model name in requests or responses, `name: path`.
        models: BTreeMap<String, String> = BTreeMap::new(),
    }
}

block! {
    /// Scraping of the engine's own metrics.
    Scrape {
        /// True scrapes the engine's metrics, false does not. null: scrapes them unless a scrape affects other scrapers
        /// (llama.cpp resets two averages on every scrape; its counters are not reset).
        enabled: Option<bool> = None,
        /// Path of the engine's Prometheus metrics. null: `/metrics`, except for TensorRT-LLM: `/prometheus/metrics`,
        /// because reading its `/metrics` empties it. Without `observe.engine`, an `OPTIONS` request determines which of
        /// them to use.
        path: Option<String> = None,
        /// Port of the engine's metrics. null: the port of the upstream, or 8002 with `observe.engine: triton`.
        #[schemars(range(min = 1, max = 65535))]
        port_number: Option<u64> = None,
        /// Time between scrapes. After failures the interval grows, up to one minute.
        #[schemars(extend("x-range" = ["100ms", "1h"]))]
        interval: Duration = scrape::Settings::default().interval.into(),
    }
}

block! {
    /// Queue times from the engine's own spans: tokometer receives the engine's OTLP traces, matches their spans to
    /// requests, and forwards every message unmodified to the destination of its own traces (`otlp.traces`). Off until
    /// addresses are set.
    EngineSpans {
        /// Addresses that receive OTLP traces, gRPC and HTTP (protobuf) on each: `127.0.0.1:4317`, `localhost:4318`. Set
        /// the engine's `--otlp-traces-endpoint` to one of them. Empty: off. Anyone who can reach these addresses can send
        /// spans: keep them on the loopback interface.
        listen: Vec<String> = Vec::new(),
        /// Time that the record of a request without a queue time waits for its span: engines send spans in batches (vLLM:
        /// every 5 s). If no spans arrive, only a few records wait.
        #[schemars(extend("x-range" = ["100ms", "10m"]))]
        wait: Duration = engine_spans::Settings::default().wait.into(),
    }
}

block! {
    /// When the engine counts as wedged: it has pending requests, and no client has received a token for longer than a
    /// healthy engine needs. docs/WEDGE.md describes the rules. Bounds that are too long prolong an outage; bounds that are
    /// too short restart healthy engines.
    Wedge {
        /// Maximum time without a token while streams decode, plus the time for the longest waiting prompt. Must exceed the
        /// longest silence of a healthy stream: engines hold back tool calls that are parsed as a whole.
        #[schemars(extend("x-range" = ["1s", "24h"]))]
        decode: Duration = live::Bounds::default().decode.into(),
        /// Maximum time without a token while no stream decodes, plus the time for the longest waiting prompt. Must exceed
        /// the model's load time if the first request loads it (Ollama).
        #[schemars(extend("x-range" = ["1s", "24h"]))]
        prefill: Duration = live::Bounds::default().prefill.into(),
    }
}
