//! The blocks of the exporters: `otlp`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use tokometer_settings::Duration;
use tokometer_telemetry::export::{self, Protocol};

/// Compression of request bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Bodies are not compressed.
    #[default]
    None,
    /// Bodies are compressed with gzip.
    Gzip,
}

/// Format of histograms over OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Histograms {
    /// Buckets with fixed bounds, the same as on the Prometheus endpoint.
    #[default]
    ExplicitBucketHistogram,
    /// Base-2 exponential buckets, which have a finer resolution and need no configured bounds.
    Base2ExponentialBucketHistogram,
}

/// Trace sampler (the names of `OTEL_TRACES_SAMPLER`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// The caller's sampling decision; if the caller made none, all traces.
    #[default]
    ParentbasedAlwaysOn,
    /// All traces.
    AlwaysOn,
    /// No traces.
    AlwaysOff,
    /// The share `sampler_ratio` of all traces, selected by trace id.
    Traceidratio,
    /// The caller's sampling decision; if the caller made none, no traces.
    ParentbasedAlwaysOff,
    /// The caller's sampling decision; if the caller made none, the share `sampler_ratio` of traces, selected by trace
    /// id.
    ParentbasedTraceidratio,
}

block! {
    /// Push to an OpenTelemetry Collector. These settings apply to metrics and traces; variables can override them for
    /// one signal.
    Otlp {
        /// URL of the collector: `http://127.0.0.1:4318`. For HTTP, `/v1/metrics` and `/v1/traces` are appended. null:
        /// OTLP is off, except for signals with their own endpoint variable (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`,
        /// `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`).
        endpoint: Option<String> = None,
        /// Transport protocol: HTTP or gRPC.
        protocol: Protocol = Protocol::default(),
        /// Additional headers (gRPC: metadata), as `name: value`. Values are secrets and never shown.
        headers: BTreeMap<String, String> = BTreeMap::new(),
        /// Compression of request bodies.
        compression: Compression = Compression::default(),
        /// Maximum time for one export, including retries.
        #[schemars(extend("x-range" = ["1ms", "10m"]))]
        timeout: Duration = Duration::from_millis(10_000),
        /// For a gRPC endpoint without a scheme: plain text if true, TLS if false.
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
    /// Destination of one signal. null: the value under `otlp`.
    Destination {
        /// Whether to export this signal. null: only if an endpoint is set. If true without an endpoint, the signal is
        /// exported to `http://localhost:4318` (gRPC: `http://localhost:4317`).
        enabled: Option<bool> = None,
        /// URL for this signal only, used unchanged: for HTTP, it ends in `/v1/metrics` or `/v1/traces`. null: derived
        /// from `otlp.endpoint`.
        #[schemars(extend("x-variable" = true))]
        endpoint: Option<String> = None,
        /// Transport protocol: HTTP or gRPC. null: `otlp.protocol`.
        #[schemars(extend("x-variable" = true))]
        protocol: Option<Protocol> = None,
        /// Headers for this signal instead of `otlp.headers`. null: `otlp.headers`. Values are secrets and never shown.
        #[schemars(extend("x-variable" = true))]
        headers: Option<BTreeMap<String, String>> = None,
        /// Compression of request bodies. null: `otlp.compression`.
        #[schemars(extend("x-variable" = true))]
        compression: Option<Compression> = None,
        /// Maximum time for one export, including retries. null: `otlp.timeout`.
        #[schemars(extend("x-range" = ["1ms", "10m"], "x-variable" = true))]
        timeout: Option<Duration> = None,
        /// For a gRPC endpoint without a scheme: plain text if true, TLS if false. null: `otlp.insecure`.
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
        /// Ratio of traces kept by the `traceidratio` samplers: 0 (none) to 1 (all).
        #[schemars(range(min = 0, max = 1))]
        sampler_ratio: f64 = 1.0,
        #[serde(flatten)]
        #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
        exporter: export::Traces = export::Traces::default(),
    }
}
