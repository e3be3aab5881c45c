//! The blocks of the data path: `listeners`, `observe`, `scrape`, `engine_spans`.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use tokometer_engine::{engine_spans, scrape};
use tokometer_observe::observer;
use tokometer_settings::{Duration, Size};
use tokometer_telemetry::tokenizer;

/// One listener: a listen address and its upstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Listener {
    /// Name of the listener in logs and in the metric label `listener`. null: its listen address.
    #[serde(default)]
    pub name: Option<String>,
    /// Address that clients connect to: `0.0.0.0:8000`, `[::]:8000`, `localhost:8000`, `:8000` (all IPv4 addresses), or
    /// `unix:/run/tokometer.sock`. Port 0: any free port.
    pub listen: String,
    /// Address of the server: `127.0.0.1:8001`, `[::1]:8001`, `server:8001` (resolved on every connect), `:8001` (this
    /// machine), `unix:/run/vllm.sock`, `http://host:port`, `https://host:port` (enables TLS), or `original`: the
    /// original destination of connections that iptables redirects to tokometer (REDIRECT).
    pub upstream: String,
    /// How traffic is forwarded.
    #[serde(default)]
    pub mode: Mode,
    /// TLS for client connections. Enabled if a certificate is set. The PEM files are reloaded when they change.
    #[serde(default)]
    pub tls: Tls,
    /// TLS for connections to the server. Enabled by `enabled`, or if the upstream starts with `https://`. The files
    /// are reloaded when they change.
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
            mode: Mode::default(),
            tls: Tls::default(),
            upstream_tls: UpstreamTls::default(),
            scrape: ListenerScrape::default(),
        }
    }
}

/// How a listener forwards traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Byte relay that forwards every byte unmodified.
    #[default]
    Proxy,
    /// HTTP proxy that makes the changes set in the block `rewrite`. This mode has more overhead than `proxy`, and may
    /// also change other bytes (docs/how-to/rewrite.md).
    Rewrite,
}

block! {
    /// TLS for client connections.
    Tls {
        /// File with the server certificate chain. null: no TLS.
        certificate: Option<String> = None,
        /// File with the private key of the certificate.
        key: Option<String> = None,
        /// File with CA certificates: clients must present a certificate signed by one of them. null: no client
        /// certificate is required.
        client_ca: Option<String> = None,
    }
}

block! {
    /// TLS for connections to the server.
    UpstreamTls {
        /// If true, connections to the server use TLS. TLS is also used if the upstream starts with `https://`.
        enabled: bool = false,
        /// File with the CA certificates to trust. null: the built-in web roots.
        ca: Option<String> = None,
        /// Name that the server's certificate must contain, also sent as SNI. null: the host of the upstream address.
        server_name: Option<String> = None,
        /// File with tokometer's client certificate chain, if the server requires one.
        certificate: Option<String> = None,
        /// File with the private key of the client certificate.
        key: Option<String> = None,
        /// If true, any certificate is accepted. Use this for tests, or for a server on the same machine with a
        /// self-signed certificate.
        insecure: bool = false,
    }
}

block! {
    /// Scraping of the metrics of one listener's upstream.
    ListenerScrape {
        /// Whether to scrape this upstream. null: `scrape.enabled`.
        enabled: Option<bool> = None,
        /// Path of the upstream's metrics. null: `scrape.path`.
        path: Option<String> = None,
        /// Port of the upstream's metrics. null: `scrape.port_number`.
        #[schemars(range(min = 1, max = 65535))]
        port_number: Option<u64> = None,
    }
}

block! {
    /// How requests are parsed and measured.
    Observe {
        /// If false, traffic is forwarded without being parsed, so there are no request metrics and no traces.
        enabled: bool = true,
        /// Engine behind tokometer, for `gen_ai.provider.name` and for the interpretation of its responses.
        engine: Engine = Engine::default(),
        /// Memory budget for observer state whose size depends on clients: open requests, decoders, header tables,
        /// split headers. A single connection can use at most half of the budget, and a client address eight ninths.
        /// Above the budget, memory is taken back from idle connections; if there are none, new requests are recorded
        /// as `unobserved`, and bodies are not parsed. Traffic is not affected. 0: half of the container's memory limit,
        /// at most 64 MiB.
        #[schemars(extend("x-range" = ["0B", "1024GiB"]))]
        memory: Size = Size::default(),
        /// Stall threshold: a longer gap between two tokens is a stall, unless the stream's own cadence explains the
        /// gap (docs/concepts/stalls.md).
        #[schemars(extend("x-range" = ["1ms", "1h"]))]
        stall: Duration = Duration(observer::Settings::default().stall),
        /// Minimum output tokens of a request for its decode rate to be recorded.
        #[schemars(range(min = 2, max = 1000000))]
        min_rate_tokens: u64 = observer::Settings::default().min_rate_tokens,
        /// Path prefixes that are removed before a path is matched, such as `/engine1`. Each prefix starts with `/`.
        path_prefixes: Vec<String> = Vec::new(),
        /// Custom routes, as `path: name`; they override built-in routes. `/llm` matches only that path; `/llm/*`
        /// matches every path below `/llm`. Names: `chat`, `completions`, `responses`, `messages`, `generate`,
        /// `tgi_stream`, `tgi_compat`, `llama_completion`, `infill`, `ollama_chat`, `ollama_generate`,
        /// `triton_generate`, `vllm_generate`, `cohere_chat`, `audio_transcription`, `audio_translation`, `realtime`,
        /// `embeddings`, `rerank`, `score`, `classify`, `pooling`, `prefill` and `invocations` (detected from the
        /// body), `vllm_inference`, `vllm_inference_stream`, `vllm_engine`, `sglang_scheduler`, `tensorrt_service`,
        /// `triton_infer`, `triton_infer_stream` (gRPC), `abort` (aborts other requests), `probe` (see `probes`), `other`
        /// (counted, not parsed).
        routes: BTreeMap<String, String> = BTreeMap::new(),
        /// If true, probes are also recorded, as requests of the operation `other`. Probes are GET and HEAD requests
        /// about the server itself (`/`, `/health`, `/metrics`, `/v1/models` and similar paths, and paths set to
        /// `probe` in `routes`). Probes do not use the model. They are always forwarded, and counted in connections and
        /// bytes.
        probes: bool = false,
        /// Counting of tokens from the response text if the engine does not report a count. Off until a vocabulary is
        /// set. Requires a build with the feature `tokenizer`, such as the images. The counts, also of truncated
        /// responses, have the source `tokenizer`: they are estimates, not the engine's counts
        /// (docs/reference/engine-support.md describes the differences). The text is stored only for this purpose, in
        /// memory, until it is counted. It is never written to metrics, traces or logs.
        tokenizer: tokenizer::Settings = tokenizer::Settings::default(),
    }
}

block! {
    /// Scraping of the engine's own metrics.
    Scrape {
        /// Whether to scrape the engine's metrics. null: true, except for llama.cpp. Each scrape of llama.cpp resets
        /// two averages, so other scrapers would get wrong values for them.
        enabled: Option<bool> = None,
        /// Path of the engine's Prometheus metrics. null: `/metrics`, or `/prometheus/metrics` for TensorRT-LLM, which
        /// deletes the content of `/metrics` on every read. If `observe.engine` is `auto`, an `OPTIONS` request
        /// determines which path to use.
        path: Option<String> = None,
        /// Port of the engine's metrics. null: the port of the upstream, or 8002 with `observe.engine: triton`.
        #[schemars(range(min = 1, max = 65535))]
        port_number: Option<u64> = None,
        /// Interval between scrapes. After failed scrapes, the interval increases to at most one minute.
        #[schemars(extend("x-range" = ["100ms", "1h"]))]
        interval: Duration = Duration(scrape::Settings::default().interval),
    }
}

block! {
    /// Queue times from the engine's own spans: tokometer receives the engine's OTLP traces, matches their spans to
    /// requests, and forwards every message unmodified to the destination of its own traces (`otlp.traces`). Off until
    /// `listen` is set.
    EngineSpans {
        /// Addresses that receive OTLP traces over gRPC and HTTP (protobuf): `127.0.0.1:4317`, `localhost:4318`. Set
        /// the engine's `--otlp-traces-endpoint` to one of these addresses. Empty: off. Anyone who can reach these
        /// addresses can send spans, so use loopback addresses.
        listen: Vec<String> = Vec::new(),
        /// If the queue time of an ended request is unknown, its record is held until the engine's span arrives, but at
        /// most for this time. Engines send spans in batches (vLLM: every 5 s). After 32 consecutive records without a
        /// span, only one record in 32 is held.
        #[schemars(extend("x-range" = ["100ms", "10m"]))]
        wait: Duration = Duration(engine_spans::Settings::default().wait),
    }
}

const AUTO: &str = "auto";

/// The engine behind a listener; `None`: detected from the engine's responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Engine(pub Option<tokometer_decode::Engine>);

impl From<Engine> for String {
    fn from(engine: Engine) -> String {
        engine.0.map_or(AUTO, tokometer_decode::Engine::as_str).to_owned()
    }
}

impl TryFrom<String> for Engine {
    type Error = String;

    fn try_from(name: String) -> Result<Engine, String> {
        let engine = tokometer_decode::Engine::of_name(&name);
        if engine.is_some() || name == AUTO { Ok(Engine(engine)) } else { Err(format!("unknown engine `{name}`")) }
    }
}

impl JsonSchema for Engine {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Engine".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let auto = (AUTO, "Detected from the server's responses.");
        let engines = tokometer_decode::Engine::ALL.map(|engine| (engine.as_str(), engine.meaning()));
        let one = |(name, meaning)| json_schema!({"const": name, "description": meaning, "type": "string"}).to_value();
        let names: Vec<Value> = std::iter::once(auto).chain(engines).map(one).collect();
        json_schema!({"oneOf": names})
    }
}
