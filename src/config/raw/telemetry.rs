//! The blocks of the exporters: `telemetry`, `prometheus`, `otlp`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokometer_settings::Duration;
use tokometer_telemetry::export::{self, Protocol, Semconv};

block! {
    /// Settings common to all metrics and spans.
    Telemetry {
        /// Generation of the OpenTelemetry GenAI names to emit. The `gen_ai.server.*` metrics are the same in all
        /// generations.
        semconv: Semconv = Semconv::default(),
        /// Resource attributes, `name: value`. They are added to the detected ones (`service.*`, `host.name`, and `k8s.*`
        /// from downward-API variables) and override them.
        resource: BTreeMap<String, String> = BTreeMap::new(),
        /// Maximum number of model names in labels; further models are counted as `other`. A model gets a slot when a
        /// response with status 200-299 and tokens proves that it exists. When all slots are used, a new name replaces the
        /// least recently used one if that was unused for at least 10 minutes. The replaced model's series disappear, and
        /// restart at zero if the model returns.
        #[schemars(range(min = 1, max = 100000))]
        max_models: u64 = export::Settings::default().max_models as u64,
        /// Maximum number of label sets; further ones are counted in the label set `other`. When the maximum is reached, a
        /// new label set replaces the least recently used one if that was unused for at least 10 minutes. Memory for all of
        /// them is reserved when OTLP metrics are exported.
        #[schemars(range(min = 1, max = 20000))]
        max_label_sets: u64 = export::Settings::default().max_label_sets as u64,
        /// Prompt classes as attributes of the time-to-first-token metrics, to distinguish a change in the prompt mix from
        /// a change in the server. Each class is a separate series. The maximum number of combinations of label set and
        /// class is `max_label_sets`; further ones are counted in the class `other`.
        prompt_classes: PromptClasses = PromptClasses::default(),
    }
}

block! {
    /// Prompt classes as attributes of the time-to-first-token metrics.
    PromptClasses {
        /// True adds `input_length_class`: the prompt length in tokens (up to 1024, 8192, 32768, 131072, or more), `unknown`
        /// if the engine does not report it.
        input_length: bool = false,
        /// True adds `cache_hit_class`: whether `none`, `partial` (up to half) or `most` of the prompt was read from the
        /// engine's cache, `unknown` if the engine does not report it.
        cache_hit: bool = false,
    }
}

block! {
    /// The Prometheus endpoint.
    Prometheus {
        /// True adds native histograms to the classic ones, for scrapers that accept the protobuf format.
        native_histograms: bool = export::Settings::default().native_histograms,
        /// Exemplars with trace ids, for scrapers that accept the OpenMetrics format: `always_off` disables them, `trace_based`
        /// and `always_on` enable them.
        #[schemars(extend("x-variable" = true))]
        exemplars: bool = export::Settings::default().exemplars,
    }
}

/// Compression of request bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// gzip.
    Gzip,
}

/// Format of histograms over OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Histograms {
    /// Buckets with fixed bounds, the same as on the Prometheus endpoint.
    #[default]
    ExplicitBucketHistogram,
    /// Base-2 exponential buckets: finer resolution, no bounds to choose.
    Base2ExponentialBucketHistogram,
}

/// Trace sampler (the names of `OTEL_TRACES_SAMPLER`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// The caller's sampling decision; all traces without one.
    #[default]
    ParentbasedAlwaysOn,
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// The ratio `sampler_ratio`, by trace id.
    Traceidratio,
    /// The caller's sampling decision; no traces without one.
    ParentbasedAlwaysOff,
    /// The caller's sampling decision; the ratio `sampler_ratio` without one.
    ParentbasedTraceidratio,
}

block! {
    /// Push to an OpenTelemetry collector. Metrics and traces both use these settings unless they override them.
    Otlp {
        /// URL of the collector: `http://127.0.0.1:4318`. For HTTP, `/v1/metrics` and `/v1/traces` are appended. null: OTLP
        /// is off, except for a signal whose own variable names an endpoint.
        endpoint: Option<String> = None,
        /// HTTP or gRPC.
        protocol: Protocol = Protocol::default(),
        /// Additional headers (gRPC: metadata), `name: value`. Values are secrets: they are never shown.
        headers: BTreeMap<String, String> = BTreeMap::new(),
        /// Compression of request bodies.
        compression: Compression = Compression::default(),
        /// Maximum time for one export, retries included.
        #[schemars(extend("x-range" = ["1ms", "10m"]))]
        timeout: Duration = Duration::from_millis(10_000),
        /// For a gRPC endpoint without a scheme: true uses plain text, false TLS.
        #[schemars(extend("x-variable" = true))]
        insecure: bool = false,
        /// File (PEM) with the CA certificates to trust. null: the built-in web roots.
        certificate: Option<String> = None,
        /// File (PEM) with the client certificate chain, for mTLS.
        client_certificate: Option<String> = None,
        /// File (PEM) with the private key of the client certificate.
        client_key: Option<String> = None,
        /// OTLP metrics.
        metrics: OtlpMetrics = OtlpMetrics::default(),
        /// OTLP traces.
        traces: OtlpTraces = OtlpTraces::default(),
    }
}

block! {
    /// Destination of one signal. null: the setting under `otlp`.
    Destination {
        /// True exports this signal (to `http://localhost:4318`, for gRPC `:4317`, if no endpoint is set), false does not.
        /// null: exports it if there is an endpoint.
        enabled: Option<bool> = None,
        /// URL for this signal only, used without changes: over HTTP it ends in `/v1/metrics` or `/v1/traces`. null:
        /// derived from `otlp.endpoint`.
        #[schemars(extend("x-variable" = true))]
        endpoint: Option<String> = None,
        /// HTTP or gRPC. null: `otlp.protocol`.
        #[schemars(extend("x-variable" = true))]
        protocol: Option<Protocol> = None,
        /// Additional headers instead of `otlp.headers`. null: `otlp.headers`. Values are secrets: they are never shown.
        #[schemars(extend("x-variable" = true))]
        headers: Option<BTreeMap<String, String>> = None,
        /// Compression of request bodies. null: `otlp.compression`.
        #[schemars(extend("x-variable" = true))]
        compression: Option<Compression> = None,
        /// Maximum time for one export, retries included. null: `otlp.timeout`.
        #[schemars(extend("x-range" = ["1ms", "10m"], "x-variable" = true))]
        timeout: Option<Duration> = None,
        /// For a gRPC endpoint without a scheme: true uses plain text, false TLS. null: `otlp.insecure`.
        #[schemars(extend("x-variable" = true))]
        insecure: Option<bool> = None,
        /// File (PEM) with the CA certificates to trust. null: `otlp.certificate`.
        #[schemars(extend("x-variable" = true))]
        certificate: Option<String> = None,
        /// File (PEM) with the client certificate chain. null: `otlp.client_certificate`.
        #[schemars(extend("x-variable" = true))]
        client_certificate: Option<String> = None,
        /// File (PEM) with the private key of the client certificate. null: `otlp.client_key`.
        #[schemars(extend("x-variable" = true))]
        client_key: Option<String> = None,
    }
}

block! {
    /// OTLP metrics.
    OtlpMetrics {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        destination: Destination = Destination::default(),
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        exporter: export::Metrics = export::Metrics::default(),
        /// Format of histograms.
        histograms: Histograms = Histograms::default(),
    }
}

block! {
    /// OTLP traces.
    OtlpTraces {
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        destination: Destination = Destination::default(),
        /// Trace sampler.
        sampler: Sampler = Sampler::default(),
        /// Ratio of traces kept by the `traceidratio` samplers, from 0 to 1.
        #[schemars(range(min = 0, max = 1))]
        sampler_ratio: f64 = 1.0,
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        exporter: export::Traces = export::Traces::default(),
    }
}
