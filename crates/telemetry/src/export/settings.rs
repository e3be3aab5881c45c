//! Settings of the exporters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokometer_metrics::Listener;
use tokometer_metrics::table::Generation;
use tokometer_observe::measure::LABEL_IDLE;
use tokometer_settings as form;

use crate::export::Profile;

/// The version of the OpenTelemetry GenAI semantic conventions that the exported names follow (`gen_ai.server.*` is the
/// same in both).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Semconv {
    /// Names of semantic conventions v1.41, which current backends support.
    #[default]
    #[serde(rename = "v1.41")]
    V1_41,
    /// The newest names from the GenAI conventions repository.
    Latest,
    /// The names of both versions.
    Both,
}

impl Semconv {
    /// True if metrics of this generation are exported.
    pub fn has(self, generation: Generation) -> bool {
        match generation {
            Generation::Every => true,
            Generation::V1_41 => self != Semconv::Latest,
            Generation::Latest => self != Semconv::V1_41,
        }
    }
}

/// OTLP transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// OTLP over HTTP with protobuf bodies; the default port is 4318.
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
    /// OTLP over gRPC; the default port is 4317.
    Grpc,
}

/// Temporality of counters and histograms over OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Temporality {
    /// Each export covers the time since the start of the process.
    #[default]
    Cumulative,
    /// Each export covers the time since the last export.
    Delta,
    /// `delta` for synchronous counters and histograms, `cumulative` for the rest.
    LowMemory,
}

/// The OTLP endpoint of one signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The URL to post to, including the signal path for HTTP (`http://127.0.0.1:4318/v1/metrics`).
    pub url: String,
    /// HTTP or gRPC.
    pub protocol: Protocol,
    /// Additional headers (gRPC metadata), such as `Authorization`.
    pub headers: Vec<(String, String)>,
    /// Compress with gzip.
    pub gzip: bool,
    /// Time limit of one export, including retries.
    pub timeout: Duration,
    /// PEM file of the certificate authority to trust; `None` for the built-in web roots.
    pub ca: Option<PathBuf>,
    /// PEM files of the client certificate chain and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Sampling decision for root spans.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sampler {
    /// All (`always_on`).
    #[default]
    AlwaysOn,
    /// None (`always_off`).
    AlwaysOff,
    /// A share of traces, by trace id (`traceidratio`).
    Ratio(f64),
}

/// The Prometheus endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Prometheus {
    /// `fleet` exports only the metrics, labels and buckets that the generated rules and dashboards read: less than a
    /// third of the series, for large fleets (docs/how-to/scale.md). Counters that no rule reads appear with their first
    /// count.
    pub profile: Profile,
    /// If true, exports native histograms in addition to classic ones, for scrapers that accept the protobuf format.
    pub native_histograms: bool,
    /// Exemplars with trace ids, for scrapers that accept the OpenMetrics or protobuf format: `always_off` disables
    /// them; `trace_based` and `always_on` enable them.
    #[schemars(extend("x-variable" = true))]
    pub exemplars: bool,
}

impl Default for Prometheus {
    fn default() -> Prometheus {
        Prometheus { profile: Profile::default(), native_histograms: true, exemplars: true }
    }
}

/// OTLP metrics: keys of `otlp.metrics` that need no conversion, and values derived from its other keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Metrics {
    /// The endpoint; `None` disables the OTLP metrics exporter.
    #[serde(skip)]
    pub endpoint: Option<Endpoint>,
    /// Time between exports.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["100ms", "1h"]))]
    pub interval: Duration,
    /// Aggregation temporality of counters and histograms. With `delta` and `lowmemory`, the data of a failed export is
    /// lost; with `cumulative`, the next export includes it.
    pub temporality: Temporality,
    /// Use base-2 exponential histograms instead of explicit buckets.
    #[serde(skip)]
    pub exponential: bool,
}

/// OTLP traces: keys of `otlp.traces` that need no conversion, and values derived from its other keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Traces {
    /// The endpoint; `None` disables tracing.
    #[serde(skip)]
    pub endpoint: Option<Endpoint>,
    /// Sampling decision for root spans.
    #[serde(skip)]
    pub sampler: Sampler,
    /// Follow the caller's `sampled` flag if the request has a traceparent (`parentbased_*`).
    #[serde(skip)]
    pub parent_based: bool,
    /// If true, the traces of all requests with an outcome other than `ok` are kept, regardless of the sampler.
    pub keep_failed: bool,
    /// If true, the traces of all requests with a stall (`observe.stall`) are kept, regardless of the sampler.
    pub keep_stalled: bool,
    /// The traces of all requests that waited longer than this for their first token are kept, regardless of the
    /// sampler. 0: no traces are kept for this reason.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["0s", "24h"]))]
    pub keep_first_token_over: Option<Duration>,
    /// If true, the keys `keep_*` also apply if the caller's `traceparent` is not sampled. The trace then contains only
    /// tokometer's spans.
    pub keep_unsampled: bool,
    /// Maximum number of traces per second that are kept regardless of the sampler; further ones are dropped and
    /// counted (`tokometer.telemetry.traces.capped`). 0: no limit.
    #[serde(with = "form::written")]
    #[schemars(with = "u64", range(min = 0, max = 100000))]
    pub keep_per_second: Option<u64>,
    /// Maximum number of spans waiting for export; further spans are dropped and counted.
    #[schemars(range(min = 1, max = 1000000), extend("x-variable" = true))]
    pub queue_size: usize,
    /// Maximum number of spans in one batch; at most the value of `OTEL_BSP_MAX_QUEUE_SIZE`.
    #[schemars(range(min = 1, max = 1000000), extend("x-variable" = true))]
    pub batch_size: usize,
    /// Time between batches of spans.
    #[serde(with = "form::written")]
    #[schemars(with = "form::Duration", extend("x-range" = ["10ms", "1h"], "x-variable" = true))]
    pub schedule_delay: Duration,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            endpoint: None,
            interval: Duration::from_secs(60),
            temporality: Temporality::default(),
            exponential: false,
        }
    }
}

impl Default for Traces {
    fn default() -> Traces {
        Traces {
            endpoint: None,
            sampler: Sampler::AlwaysOn,
            parent_based: true,
            keep_failed: true,
            keep_stalled: true,
            keep_first_token_over: Some(Duration::from_secs(10)),
            keep_unsampled: true,
            keep_per_second: Some(10),
            queue_size: 2048,
            batch_size: 512,
            schedule_delay: Duration::from_secs(5),
        }
    }
}

/// Prompt classes as attributes of the time-to-first-token metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PromptClasses {
    /// If true, adds the label `input_length_class` to the first-token and prefill metrics: the prompt length in tokens
    /// (up to 1024, 8192, 32768, 131072, or more), or `unknown` if the engine does not report the length.
    pub input_length: bool,
    /// If true, adds the label `cache_hit_class` to the first-token and prefill metrics. Its value is the share of the
    /// prompt that was read from the engine's cache: `none`, `partial` (up to half) or `most`, or `unknown` if the
    /// engine does not report the share.
    pub cache_hit: bool,
}

/// Settings that apply to all metrics and spans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Settings {
    /// Version of the OpenTelemetry GenAI semantic conventions that the exported names follow. The `gen_ai.server.*`
    /// metrics are the same in all versions.
    pub semconv: Semconv,
    /// Resource attributes, as `name: value`. They are added to the detected attributes (`service.*`, `host.name`, and
    /// `k8s.*` from downward-API variables) and override them.
    pub resource: BTreeMap<String, String>,
    /// Maximum number of model names in labels; further models are counted as `other`. A model gets a slot when a
    /// response with status 200-299 and tokens proves that the model exists. When all slots are used, a new name
    /// replaces a name that was unused for at least 10 minutes, or the name with the least traffic if the new one has
    /// at least 16 requests and twice that traffic. The replaced model's series disappear; if the model is used again,
    /// they restart at zero.
    #[schemars(range(min = 1, max = 100000))]
    pub max_models: usize,
    /// Maximum number of label sets (combinations of operation, engine, models, server and streaming); further sets are
    /// counted in the label set `other`. At the maximum, a new label set replaces another set in the same way as a
    /// model name.
    #[schemars(range(min = 1, max = 20000))]
    pub max_label_sets: usize,
    /// Prompt classes as attributes of the time-to-first-token metrics, to distinguish a change in the prompt mix from
    /// a change in the server. Each class is a separate series. At most `max_label_sets` combinations of label set and
    /// class are counted separately; further combinations are counted in the class `other`.
    pub prompt_classes: PromptClasses,
    /// How long a model name or a label set must be unused before a new one may replace it in a full table.
    #[serde(skip)]
    pub label_idle: Duration,
    /// The listeners, as named in their series.
    #[serde(skip)]
    pub listeners: Vec<Listener>,
    /// The Prometheus page.
    #[serde(skip)]
    pub prometheus: Prometheus,
    /// OTLP metrics.
    #[serde(skip)]
    pub metrics: Metrics,
    /// OTLP traces.
    #[serde(skip)]
    pub traces: Traces,
}

impl Settings {
    /// True if histograms have exponential buckets: for the Prometheus page, or for OTLP.
    pub(crate) fn gathers_native(&self) -> bool {
        self.prometheus.native_histograms || self.metrics.endpoint.is_some() && self.metrics.exponential
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            semconv: Semconv::default(),
            resource: BTreeMap::new(),
            listeners: Vec::new(),
            max_models: 64,
            max_label_sets: 512,
            label_idle: LABEL_IDLE,
            prompt_classes: PromptClasses::default(),
            prometheus: Prometheus::default(),
            metrics: Metrics::default(),
            traces: Traces::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tokometer_metrics::table::TABLE;

    use super::*;

    #[test]
    fn semconv_setting_selects_the_client_metrics() {
        let names = |semconv: Semconv| {
            TABLE.iter().filter(move |m| semconv.has(m.generation)).map(|m| m.name).collect::<HashSet<_>>()
        };
        let (old, new, both) = (names(Semconv::V1_41), names(Semconv::Latest), names(Semconv::Both));
        assert!(old.contains("gen_ai.client.token.usage") && !new.contains("gen_ai.client.token.usage"));
        assert!(!old.contains("gen_ai.client.inference.usage.input_tokens"));
        assert!(new.contains("gen_ai.client.inference.usage.input_tokens"));
        assert_eq!(both.len(), TABLE.len());
    }
}
