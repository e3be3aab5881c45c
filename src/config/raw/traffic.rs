//! The blocks of the data path: `listeners`, `observe`, `engine_spans`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokometer_engine::engine_spans;
use tokometer_observe::observer;
use tokometer_settings::Duration;
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
        port_number: Option<u16> = None,
    }
}

block! {
    /// How requests are parsed and measured.
    Observe {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        observer: observer::Settings = observer::Settings::default(),
        /// Counting of tokens from the response text if the engine does not report a count. Off until a vocabulary is
        /// set. Requires a build with the feature `tokenizer`, such as the images. The counts, also of truncated
        /// responses, have the source `tokenizer`: they are estimates, not the engine's counts
        /// (docs/reference/engine-support.md describes the differences). The text is stored only for this purpose, in
        /// memory, until it is counted. It is never written to metrics, traces or logs.
        tokenizer: tokenizer::Settings = tokenizer::Settings::default(),
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
