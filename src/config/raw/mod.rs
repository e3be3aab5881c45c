//! The configuration as a person writes it: one struct per block, a unit in each key name, every key with a default.
//!
//! The doc comments here are the documentation: `config --print-default`, `config --schema` and `docs/CONFIG.md` are
//! made from them. Nothing is checked beyond types and ranges; [`crate::config::Settings`] is what the program uses.

mod objectives;
mod otlp;
mod reading;
mod receiver;
mod spending;
mod traffic;
mod wedge;

pub use objectives::{AppliesTo, Availability, DecodeRate, Goodput, RequestTargets, Rules, Slo, Stall, Ttft};
pub use otlp::{Compression, Destination, Histograms, Otlp, OtlpMetrics, OtlpTraces, Protocol, Sampler, Temporality};
pub use reading::{PairScrape, Scrape};
pub use receiver::Queue;
pub use spending::{Budget, Price, Prices, TenantLabel, Tenants};
pub use traffic::{Engine, Observe, Pair, Relay, Tls, Tokenizer, Unreachable, UpstreamTls};
pub use wedge::{Live, Wedge};

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Configuration of tokometer. Every key is optional and shown with its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Raw {
    /// Which addresses are listened on, and which server each leads to. One process may serve several servers.
    pub pairs: Vec<Pair>,
    /// The process itself.
    pub process: Process,
    /// How connections are relayed. Every byte passes unchanged whatever stands here.
    pub relay: Relay,
    /// How exchanges are read and measured. Nothing here changes what clients and server see of each other.
    pub observe: Observe,
    /// Reading the engine's own metrics, for its state beside the figures of the exchanges.
    pub scrape: Scrape,
    /// The exchanges in flight, and the latest that ended: what `/exchanges` and `/live` show.
    pub live: Live,
    /// When the engine counts as wedged: what `/engine/healthz` answers.
    pub wedge: Wedge,
    /// What is common to every metric and span.
    pub telemetry: Telemetry,
    /// The Prometheus endpoint `/metrics` on the admin address. It is always on.
    pub prometheus: Prometheus,
    /// Push to an OpenTelemetry collector. Off until an endpoint is set.
    pub otlp: Otlp,
    /// Queue times from the engine's own spans.
    pub queue: Queue,
    /// The admin server: `/metrics`, `/live` (with `/live/snapshot` and `/live/events`), `/startz`, `/livez`, `/readyz`,
    /// `/engine/healthz`, `/exchanges`, `/drain`, `/drain/wait`, `/config`.
    pub admin: Admin,
    /// Logs of tokometer itself, on stderr. They never hold prompts or answers.
    pub log: Log,
    /// One line per exchange with its figures. It never holds prompts or answers.
    pub access_log: AccessLog,
    /// Objectives of service levels. Every exchange is judged by each that is about it, and counted as good or bad; `tokometer
    /// rules` makes the alerts.
    pub slo: Slo,
    /// Whose the requests are: tokens and requests by tenant.
    pub tenants: Tenants,
    /// What tokens cost. With a price for a model its answers are counted in `tokometer.cost`.
    pub prices: Prices,
    /// How many tokens, or how much cost, a day may have: `tokometer.budget.*`, and the alerts on them.
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

/// The process itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Threads that relay. 0: one per CPU that the process may use (cgroup limits included).
    #[schemars(range(min = 0, max = 1024))]
    pub threads: u64,
    /// Seconds that open streams may go on after SIGTERM. 0: they are cut at once. Keep it below the pod's
    /// `terminationGracePeriodSeconds`.
    #[schemars(range(min = 0, max = 86400))]
    pub grace_period_secs: u64,
    /// Seconds in which new connections are still taken after a drain was asked for (`/drain`, `tokometer drain`): who sends
    /// them learns of it late. After SIGTERM there are none.
    #[schemars(range(min = 0, max = 3600))]
    pub lame_duck_secs: u64,
}

impl Default for Process {
    fn default() -> Process {
        Process { threads: 0, grace_period_secs: 30, lame_duck_secs: 5 }
    }
}

/// What is common to every metric and span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// Which generation of the OpenTelemetry GenAI names is emitted. The `gen_ai.server.*` metrics are the same in all.
    pub semconv: Semconv,
    /// Resource attributes, `name: value`; they stand beside what is found by itself (`service.*`, `host.name`, and
    /// `k8s.*` from downward-API variables) and win over it.
    pub resource: BTreeMap<String, String>,
    /// Maximum number of model names in labels; further ones are counted as `other`. A name takes a place when a response with a
    /// status of 200-299 and tokens proves that the model exists. When all places are taken, a new name replaces the one that
    /// was unused for the longest time, if that is 10 minutes or more: its series disappear, and begin at zero if the model
    /// returns.
    #[schemars(range(min = 1, max = 100000))]
    pub max_models: u64,
    /// Maximum number of label sets; further ones are folded into `other`. When there are as many, a new one replaces the one
    /// that was unused for the longest time, if that is 10 minutes or more.
    #[schemars(range(min = 1, max = 1000000))]
    pub max_label_sets: u64,
    /// Classes of prompts as attributes of the waits for a first token, so that a change of the prompts' mix can be told
    /// from a change of the server. Each class is a series of its own; there are at most `max_label_sets` pairs of a label
    /// set and a class, further ones are counted in the class `other`.
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

/// Classes of prompts as attributes of the waits for a first token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PromptClasses {
    /// True adds `input_length_class`: the prompt's length in tokens, `unknown` where the engine does not tell it.
    pub input_length: bool,
    /// Upper bounds of the classes of length, in tokens: at most 8, rising. Longer prompts are a class above the last.
    #[schemars(inner(range(min = 1, max = 100000000)))]
    pub input_length_bounds: Vec<u64>,
    /// True adds `cache_hit_class`: `none`, `partial` (up to a half) or `most` of the prompt came from the engine's cache,
    /// `unknown` where it does not tell.
    pub cache_hit: bool,
}

impl Default for PromptClasses {
    fn default() -> PromptClasses {
        PromptClasses { input_length: false, input_length_bounds: vec![1024, 8192, 32768, 131_072], cache_hit: false }
    }
}

/// Generation of the GenAI names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Semconv {
    /// Semantic conventions v1.41: what backends know today.
    #[default]
    #[serde(rename = "v1.41")]
    V141,
    /// The newest names of the GenAI conventions' own repository.
    #[serde(rename = "latest")]
    Latest,
    /// Both side by side.
    #[serde(rename = "both")]
    Both,
}

/// The Prometheus endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prometheus {
    /// Native histograms beside the classic ones, for scrapers that ask for the protobuf form.
    pub native_histograms: bool,
    /// Exemplars with trace ids, for scrapers that ask for the OpenMetrics form.
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
    /// Where it listens: `0.0.0.0:9464`, `[::]:9464`, `localhost:9464`, `:9464` (every address). Port 0: a free one.
    pub listen: String,
    /// Maximum milliseconds for a client to send the headers of a request, and to take a response once it no longer fits into the
    /// socket's buffer; idle connections are closed after the same time.
    #[schemars(range(min = 100, max = 600000))]
    pub header_timeout_ms: u64,
    /// Maximum number of connections that are idle or have not sent a complete request. For a further one, the client with most
    /// of them loses its oldest.
    #[schemars(range(min = 1, max = 100000))]
    pub max_connections: u64,
    /// Further values of the `Host` header that are allowed, without port; `.example.com` is every name below that domain, `*` every
    /// name. Always allowed: IP addresses, the own host name, names without a dot, and names below `.svc`, `.cluster.local`,
    /// `.internal` and `.localhost`. Other names get a 403, against DNS rebinding; probes are answered under any name.
    pub allowed_hosts: Vec<String>,
    /// True accepts `POST /drain` from every client that reaches the port. False accepts it only from the same pod or machine.
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

/// Form of log lines.
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
    /// Lowest level that is logged (`off`, `error`, `warn`, `info`, `debug`, `trace`), also by module:
    /// `info,relay=debug,pingora=error`.
    pub level: String,
    /// Text or JSON.
    pub format: LogFormat,
    /// Most lines from one place in the code per 10 seconds; further ones are left out and counted in one line.
    /// 0: no limit.
    #[schemars(range(min = 0, max = 1000000))]
    pub max_repeats: u64,
}

impl Default for Log {
    fn default() -> Log {
        Log { level: "info".to_owned(), format: LogFormat::Text, max_repeats: 20 }
    }
}

/// One line per exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLog {
    /// True writes one line per exchange.
    pub enabled: bool,
    /// File to append to; SIGHUP opens it anew after a rotation. null: stdout.
    pub path: Option<String>,
    /// Text or JSON. The JSON names are those of `tokometer replay --json`.
    pub format: LogFormat,
    /// Most lines that wait for the writer; further ones are dropped and counted, so that a slow disk never slows a
    /// stream.
    #[schemars(range(min = 1, max = 1000000))]
    pub queue_lines: u64,
}

impl Default for AccessLog {
    fn default() -> AccessLog {
        AccessLog { enabled: false, path: None, format: LogFormat::Text, queue_lines: 4096 }
    }
}
