//! The configuration as written by the user: one struct per block, a unit in each key name, a default for every key.
//!
//! The doc comments in this module are the settings' documentation: `config --print-default`, `config --schema` and
//! `docs/CONFIG.md` are generated from them. Only types and ranges are checked here; the program uses
//! [`crate::config::Settings`].

mod engine;
mod objectives;
mod otlp;
mod reading;
mod receiver;
mod spending;
mod traffic;
mod wedge;

pub use engine::Engine;
pub use objectives::{AppliesTo, Availability, DecodeRate, Goodput, RequestTargets, Rules, Slo, Stall, Ttft};
pub use otlp::{Compression, Destination, Histograms, Otlp, OtlpMetrics, OtlpTraces, Protocol, Sampler, Temporality};
pub use reading::{PairScrape, Scrape};
pub use receiver::Queue;
pub use spending::{Budget, Price, Prices, TenantLabel, Tenants};
pub use traffic::{Observe, Pair, Relay, Tls, Tokenizer, Unreachable, UpstreamTls};
pub use wedge::{Live, Wedge};

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Configuration of tokometer. Every key is optional and shown with its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    /// Listen addresses and the upstream server of each. One process can serve several upstreams.
    pub pairs: Vec<Pair>,
    /// Process-wide settings: threads and shutdown.
    pub process: Process,
    /// How connections are forwarded. No setting here changes the bytes: they are always forwarded unmodified.
    pub relay: Relay,
    /// How requests are parsed and measured. No setting here changes the traffic between client and server.
    pub observe: Observe,
    /// Scraping of the engine's own metrics, which show the engine's state next to the request metrics.
    pub scrape: Scrape,
    /// Requests in flight and recently ended requests, as shown by `/exchanges` and `/live`.
    pub live: Live,
    /// When the engine counts as wedged, as reported by `/engine/healthz`.
    pub wedge: Wedge,
    /// Settings common to all metrics and spans.
    pub telemetry: Telemetry,
    /// The Prometheus endpoint `/metrics` on the admin address. It is always enabled.
    pub prometheus: Prometheus,
    /// Push of metrics and traces to an OpenTelemetry collector. Off until an endpoint is set.
    pub otlp: Otlp,
    /// Queue times from the engine's own spans.
    pub queue: Queue,
    /// The admin server: `/metrics`, `/live` (with `/live/snapshot` and `/live/events`), `/startz`, `/livez`, `/readyz`,
    /// `/engine/healthz`, `/exchanges`, `/drain`, `/drain/wait`, `/config`.
    pub admin: Admin,
    /// Logs of tokometer itself, on stderr. They never contain prompts or responses.
    pub log: Log,
    /// Access log: one line per request with its measurements. It never contains prompts or responses.
    pub access_log: AccessLog,
    /// Service level objectives. Each request is evaluated against every objective that applies to it and counted as
    /// good or bad; `tokometer rules` generates the alerts.
    pub slo: Slo,
    /// Token and request counts by tenant.
    pub tenants: Tenants,
    /// Token prices. Requests to a model with a price are counted in `tokometer.cost`.
    pub prices: Prices,
    /// Daily budgets of tokens or cost: `tokometer.budget.*` and the alerts on them.
    pub budgets: Vec<Budget>,
}

impl Default for Raw {
    fn default() -> Raw {
        Raw {
            pairs: vec![Pair::default()],
            process: Process::default(),
            relay: Relay::default(),
            observe: Observe::default(),
            scrape: Scrape::default(),
            live: Live::default(),
            wedge: Wedge::default(),
            telemetry: Telemetry::default(),
            prometheus: Prometheus::default(),
            otlp: Otlp::default(),
            queue: Queue::default(),
            admin: Admin::default(),
            log: Log::default(),
            access_log: AccessLog::default(),
            slo: Slo::default(),
            tenants: Tenants::default(),
            prices: Prices::default(),
            budgets: Vec::new(),
        }
    }
}

/// Process-wide settings: threads and shutdown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Number of threads that forward traffic. 0: one per CPU available to the process (cgroup limits included).
    #[schemars(range(min = 0, max = 1024))]
    pub threads: u64,
    /// Seconds that open streams may continue after SIGTERM. 0: they are closed at once. Keep it below the pod's
    /// `terminationGracePeriodSeconds`.
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_secs: u64,
    /// Seconds during which new connections are still accepted after a drain request (`/drain`, `tokometer drain`),
    /// because load balancers learn of a drain with a delay. SIGTERM stops accepting at once.
    #[schemars(range(min = 0, max = 3600))]
    pub lame_duck_secs: u64,
}

impl Default for Process {
    fn default() -> Process {
        Process { threads: 0, grace_period_secs: 30, lame_duck_secs: 5 }
    }
}

/// Settings common to all metrics and spans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// Generation of the OpenTelemetry GenAI names to emit. The `gen_ai.server.*` metrics are the same in all
    /// generations.
    pub semconv: Semconv,
    /// Resource attributes, `name: value`. They are added to the detected ones (`service.*`, `host.name`, and `k8s.*`
    /// from downward-API variables) and override them.
    pub resource: BTreeMap<String, String>,
    /// Maximum number of model names in labels; further models are counted as `other`. A model gets a slot when a
    /// response with status 200-299 and tokens proves that it exists. When all slots are used, a new name replaces the
    /// least recently used one if that was unused for at least 10 minutes. The replaced model's series disappear, and
    /// restart at zero if the model returns.
    #[schemars(range(min = 1, max = 100000))]
    pub max_models: u64,
    /// Maximum number of label sets; further ones are counted in the label set `other`. When the maximum is reached, a
    /// new label set replaces the least recently used one if that was unused for at least 10 minutes.
    #[schemars(range(min = 1, max = 1000000))]
    pub max_label_sets: u64,
    /// Prompt classes as attributes of the time-to-first-token metrics, to distinguish a change in the prompt mix from
    /// a change in the server. Each class is a separate series. The maximum number of combinations of label set and
    /// class is `max_label_sets`; further ones are counted in the class `other`.
    pub prompt_classes: PromptClasses,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            semconv: Semconv::default(),
            resource: BTreeMap::new(),
            max_models: 64,
            max_label_sets: 512,
            prompt_classes: PromptClasses::default(),
        }
    }
}

/// Prompt classes as attributes of the time-to-first-token metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PromptClasses {
    /// True adds `input_length_class`: the prompt length in tokens, `unknown` if the engine does not report it.
    pub input_length: bool,
    /// Upper bounds of the length classes, in tokens: at most 8, in ascending order. Longer prompts form one more
    /// class.
    #[schemars(inner(range(min = 1, max = 100000000)))]
    pub input_length_bounds: Vec<u64>,
    /// True adds `cache_hit_class`: whether `none`, `partial` (up to half) or `most` of the prompt was read from the
    /// engine's cache, `unknown` if the engine does not report it.
    pub cache_hit: bool,
}

impl Default for PromptClasses {
    fn default() -> PromptClasses {
        PromptClasses { input_length: false, input_length_bounds: vec![1024, 8192, 32768, 131_072], cache_hit: false }
    }
}

/// Generation of the OpenTelemetry GenAI names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Semconv {
    /// Semantic conventions v1.41, which today's backends support.
    #[default]
    #[serde(rename = "v1.41")]
    V141,
    /// The newest names from the GenAI conventions repository.
    #[serde(rename = "latest")]
    Latest,
    /// Both generations.
    #[serde(rename = "both")]
    Both,
}

/// The Prometheus endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prometheus {
    /// True adds native histograms to the classic ones, for scrapers that accept the protobuf format.
    pub native_histograms: bool,
    /// True adds exemplars with trace ids, for scrapers that accept the OpenMetrics format.
    pub exemplars: bool,
}

impl Default for Prometheus {
    fn default() -> Prometheus {
        Prometheus { native_histograms: true, exemplars: true }
    }
}

/// The admin server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Listen address: `0.0.0.0:9464`, `[::]:9464`, `localhost:9464`, `:9464` (all addresses). Port 0: any free port.
    pub listen: String,
    /// Maximum milliseconds for a client to send its request headers, and to read a response that does not fit into the
    /// socket buffer. Idle connections are closed after the same time.
    #[schemars(range(min = 100, max = 600000))]
    pub header_timeout_ms: u64,
    /// Maximum number of connections that are idle or have not sent a complete request. Above it, each new connection
    /// closes the oldest one of the client with the most connections.
    #[schemars(range(min = 1, max = 100000))]
    pub max_connections: u64,
    /// Additional allowed values of the `Host` header, without port; `.example.com` matches every name below that
    /// domain, `*` every name. Always allowed: IP addresses, the local host name, names without a dot, and names below
    /// `.svc`, `.cluster.local`, `.internal` and `.localhost`. Requests with another name get a 403, as protection
    /// against DNS rebinding; probe endpoints answer under any name.
    pub allowed_hosts: Vec<String>,
    /// True accepts `POST /drain` from any client that can reach the port. False accepts it only from the same pod or
    /// machine.
    pub remote_drain: bool,
}

impl Default for Admin {
    fn default() -> Admin {
        Admin {
            listen: "0.0.0.0:9464".to_owned(),
            header_timeout_ms: 10_000,
            max_connections: 256,
            allowed_hosts: Vec::new(),
            remote_drain: false,
        }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One readable line per event.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Logs of tokometer itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Minimum level to log (`off`, `error`, `warn`, `info`, `debug`, `trace`), optionally per module:
    /// `info,relay=debug,pingora=error`.
    pub level: String,
    /// Text or JSON.
    pub format: LogFormat,
    /// Maximum number of lines per 10 seconds from one place in the code; further lines are dropped, and one line
    /// reports how many. 0: no limit.
    #[schemars(range(min = 0, max = 1000000))]
    pub max_repeats: u64,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: "info".to_owned(), format: LogFormat::Text, max_repeats: 20 }
    }
}

/// The access log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// True writes one line per request.
    pub enabled: bool,
    /// File to append to; SIGHUP reopens it after a log rotation. null: stdout.
    pub path: Option<String>,
    /// Text or JSON. The JSON field names are those of `tokometer replay --json`.
    pub format: LogFormat,
    /// Maximum number of lines waiting to be written; further lines are dropped and counted, so that a slow disk never
    /// delays a stream.
    #[schemars(range(min = 1, max = 1000000))]
    pub queue_lines: u64,
}

impl Default for AccessLog {
    fn default() -> AccessLog {
        AccessLog { enabled: false, path: None, format: LogFormat::Text, queue_lines: 4096 }
    }
}
