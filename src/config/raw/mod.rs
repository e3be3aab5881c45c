//! The settings as users write them. Each field is the only definition of a setting: doc comment, type, bounds and
//! default.
//!
//! The JSON schema, the default file, `docs/reference/configuration.md`, the variables, validation and the list of keys
//! that a reload applies are generated from these fields (`shape`). `x-range` bounds a duration or size. `x-reload`
//! marks a key or block that takes effect on a reload. `x-variable` marks a key that only an `OTEL_*` variable can set.
//!
//! A block whose keys a module uses unchanged is the module's own type (`relay`, `wedge`, `prices`, `slo.rules`).
//! Blocks that need a conversion are defined here; `checked` converts them to the module's type.

/// A block of settings: `key: Type = default`.
macro_rules! block {
    ($(#[$meta:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default)]
        pub struct $name {
            $($(#[$of_field])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default,)* }
            }
        }
    };
}

mod slo;
mod telemetry;
mod traffic;

pub use slo::{AppliesTo, Availability, Budget, DecodeRate, Goodput, RequestTargets, Slo, Stall, Tenants, Ttft};
pub use telemetry::{Compression, Destination, Histograms, Otlp, OtlpMetrics, OtlpTraces, Sampler};
pub use traffic::{EngineSpans, Listener, ListenerScrape, Mode, Observe, Tls, UpstreamTls};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admin;
use tokometer_engine::scrape;
use tokometer_proxy::relay;
use tokometer_settings::Duration;
use tokometer_tap::capture;
use tokometer_telemetry::accounting::Prices;
use tokometer_telemetry::export::{self, Prometheus};
use tokometer_telemetry::live::Bounds;

block! {
    /// Configuration of tokometer. Every key is optional and shown with its default.
    Raw {
        /// Listen addresses, each with its upstream server. One process can serve several upstreams.
        listeners: Vec<Listener> = vec![Listener::default()],
        /// Settings of `tokometer tap`, which captures packets instead of forwarding connections (docs/how-to/tap.md).
        tap: capture::Settings = capture::Settings::default(),
        /// Process-wide settings: threads and shutdown.
        process: Process = Process::default(),
        /// How connections are forwarded. These settings do not change the forwarded bytes; only rewrite mode does.
        relay: relay::Settings = relay::Settings::default(),
        /// Changes made by listeners in rewrite mode (`listeners[].mode: rewrite`), and the limits of this mode. If a
        /// listener uses this mode, at least one of `include_usage`, `traceparent` and `request_id` must be true.
        rewrite: tokometer_rewrite::Settings = tokometer_rewrite::Settings::default(),
        /// How requests are parsed and measured. These settings do not change the traffic between client and server.
        #[schemars(extend("x-reload" = true))]
        observe: Observe = Observe::default(),
        /// Scraping of the engine's own metrics, to show the engine's state next to the request metrics.
        scrape: scrape::Settings = scrape::Settings::default(),
        /// Wedge detection, reported by `/engine/healthz`. An engine counts as wedged if it has pending requests and no
        /// client has received a token for longer than a healthy engine needs. docs/concepts/frozen-engine.md describes
        /// the rules. If a liveness probe uses `/engine/healthz`, bounds that are too long prolong outages, and bounds
        /// that are too short restart healthy engines.
        #[schemars(extend("x-reload" = true))]
        wedge: Bounds = Bounds::default(),
        /// Settings that apply to all metrics and spans.
        telemetry: export::Settings = export::Settings::default(),
        /// The Prometheus endpoint, `/metrics` on the admin address. It is always enabled.
        prometheus: Prometheus = Prometheus::default(),
        /// Export of metrics and traces to an OpenTelemetry Collector over OTLP. Off until an endpoint is set.
        otlp: Otlp = Otlp::default(),
        /// Queue times from the engine's own spans.
        engine_spans: EngineSpans = EngineSpans::default(),
        /// The admin server: `/metrics`, `/live` (with `/live/snapshot` and `/live/events`), `/startz`, `/livez`,
        /// `/readyz`, `/engine/healthz`, `/requests`, `/drain`, `/drain/wait`, `/config`.
        admin: Admin = Admin::default(),
        /// Logs of tokometer itself, on stderr. They never contain prompts or responses.
        log: Log = Log::default(),
        /// Access log: one line per request with its measurements. It never contains prompts or responses.
        access_log: AccessLog = AccessLog::default(),
        /// Service level objectives. Each request is evaluated against every objective that applies to it, and counted
        /// as good or bad. `tokometer rules` generates the alerts.
        #[schemars(extend("x-reload" = true))]
        slo: Slo = Slo::default(),
        /// Token and request counts by tenant.
        #[schemars(extend("x-reload" = true))]
        tenants: Tenants = Tenants::default(),
        /// Token prices. Requests to a model with a price are counted in `tokometer.cost`.
        #[schemars(extend("x-reload" = true))]
        prices: Prices = Prices::default(),
        /// Daily token or cost budgets: the metrics `tokometer.budget.*` and their alerts.
        #[schemars(extend("x-reload" = true))]
        budgets: Vec<Budget> = Vec::new(),
    }
}

block! {
    /// Process-wide settings: threads and shutdown.
    Process {
        /// Number of threads that forward traffic. 0: one per CPU available to the process (cgroup limits included).
        #[schemars(range(min = 0, max = 1024))]
        threads: u64 = 0,
        /// How long open streams may continue after SIGTERM. 0: open streams are closed immediately. Use a value below
        /// the pod's `terminationGracePeriodSeconds`, because the kubelet kills the container after that time.
        #[schemars(extend("x-range" = ["0s", "24h"], "x-reload" = true))]
        grace_period: Duration = Duration::from_millis(30_000),
        /// How long new connections are still accepted after a drain request (`/drain`, `tokometer drain`). Load
        /// balancers need this time to stop sending new connections. After SIGTERM, no new connections are accepted.
        #[schemars(extend("x-range" = ["0s", "1h"]))]
        lame_duck: Duration = Duration::from_millis(5000),
        /// File to which tokometer copies its own program at startup. In a shared volume, an exec probe of the engine's
        /// container can run this copy (`tokometer probe`), so that the probe does not go through tokometer. null: no
        /// copy.
        probe_file: Option<String> = None,
    }
}

block! {
    /// The admin server.
    Admin {
        /// Listen address: `0.0.0.0:9464`, `[::]:9464`, `localhost:9464`, `:9464` (all IPv4 and IPv6 addresses). Port
        /// 0: any free port.
        listen: String = admin::Settings::default().listen.to_string(),
        /// Additional allowed values of the `Host` header, without port. `.example.com` matches every name below that
        /// domain; `*` matches every name. Always allowed: IP addresses, the local host name, names without a dot, and
        /// names below `.svc`, `.cluster.local`, `.internal` and `.localhost`. Requests with any other host name get a
        /// 403 (protection against DNS rebinding), except requests to probe endpoints.
        allowed_hosts: Vec<String> = Vec::new(),
        /// If true, any client that can reach the port may send `POST /drain`. If false, only `tokometer drain` in the
        /// same pod or on the same machine may start a drain. It uses a Unix socket, and must run as the same user as
        /// tokometer or as root.
        remote_drain: bool = false,
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One human-readable line per entry.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

block! {
    /// Logs of tokometer itself.
    Log {
        /// Minimum level to log (`off`, `error`, `warn`, `info`, `debug`, `trace`), optionally per module:
        /// `info,relay=debug,opentelemetry=error`. Other libraries that tokometer uses log nothing, because their
        /// messages can contain headers and bodies.
        #[schemars(extend("x-reload" = true))]
        level: String = "info".to_owned(),
        /// Format of log lines: text or JSON.
        format: LogFormat = LogFormat::Text,
    }
}

block! {
    /// The access log.
    AccessLog {
        /// If true, one line is written per request, when the request ends.
        enabled: bool = false,
        /// Log file, opened for appending. SIGHUP reopens the file after a log rotation. null: stdout.
        path: Option<String> = None,
        /// Format of access log lines: text or JSON. JSON uses the field names of `tokometer replay --json`.
        format: LogFormat = LogFormat::Text,
    }
}
