//! The block `otlp`: where metrics and traces are pushed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// OTLP transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// OTLP over HTTP with protobuf bodies; the default port is 4318.
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
    /// OTLP over gRPC; the default port is 4317.
    #[serde(rename = "grpc")]
    Grpc,
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

/// Aggregation temporality of counters and histograms over OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Temporality {
    /// Since the start of the process.
    #[default]
    Cumulative,
    /// Since the last export.
    Delta,
    /// Delta for synchronous counters and histograms, cumulative for the rest.
    Lowmemory,
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
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// The ratio `sampler_ratio`, by trace id.
    Traceidratio,
    /// The caller's sampling decision; all traces without one.
    #[default]
    ParentbasedAlwaysOn,
    /// The caller's sampling decision; no traces without one.
    ParentbasedAlwaysOff,
    /// The caller's sampling decision; the ratio `sampler_ratio` without one.
    ParentbasedTraceidratio,
}

/// Push to an OpenTelemetry collector. Metrics and traces both use these settings unless they override them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// URL of the collector: `http://127.0.0.1:4318`. For HTTP, `/v1/metrics` and `/v1/traces` are appended. null: OTLP
    /// is off, except for a signal with a separate endpoint.
    pub endpoint: Option<String>,
    /// HTTP or gRPC.
    pub protocol: Protocol,
    /// Additional headers (gRPC: metadata), `name: value`. Values are secrets: they are never shown.
    pub headers: BTreeMap<String, String>,
    /// Compression of request bodies.
    pub compression: Compression,
    /// Maximum milliseconds for one export, retries included.
    #[schemars(range(min = 1, max = 600000))]
    pub timeout_ms: u64,
    /// For a gRPC endpoint without a scheme: true uses plain text, false TLS.
    pub insecure: bool,
    /// File (PEM) with the CA certificates to trust. null: the built-in web roots.
    pub certificate: Option<String>,
    /// File (PEM) with the client certificate chain, for mTLS.
    pub client_certificate: Option<String>,
    /// File (PEM) with the private key of the client certificate.
    pub client_key: Option<String>,
    /// OTLP metrics.
    pub metrics: OtlpMetrics,
    /// OTLP traces.
    pub traces: OtlpTraces,
}

impl Default for Otlp {
    fn default() -> Otlp {
        Otlp {
            endpoint: None,
            protocol: Protocol::default(),
            headers: BTreeMap::new(),
            compression: Compression::default(),
            timeout_ms: 10_000,
            insecure: false,
            certificate: None,
            client_certificate: None,
            client_key: None,
            metrics: OtlpMetrics::default(),
            traces: OtlpTraces::default(),
        }
    }
}

/// Destination of one signal. null: the setting under `otlp`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Destination {
    /// True exports this signal (to `http://localhost:4318`, for gRPC `:4317`, if no endpoint is set), false does not.
    /// null: exports it if there is an endpoint.
    pub enabled: Option<bool>,
    /// URL for this signal only, used without changes: over HTTP it ends in `/v1/metrics` or `/v1/traces`. null:
    /// derived from `otlp.endpoint`.
    pub endpoint: Option<String>,
    /// HTTP or gRPC. null: `otlp.protocol`.
    pub protocol: Option<Protocol>,
    /// Additional headers instead of `otlp.headers`. null: `otlp.headers`. Values are secrets: they are never shown.
    pub headers: Option<BTreeMap<String, String>>,
    /// Compression of request bodies. null: `otlp.compression`.
    pub compression: Option<Compression>,
    /// Maximum milliseconds for one export, retries included. null: `otlp.timeout_ms`.
    #[schemars(range(min = 1, max = 600000))]
    pub timeout_ms: Option<u64>,
    /// For a gRPC endpoint without a scheme: true uses plain text, false TLS. null: `otlp.insecure`.
    pub insecure: Option<bool>,
    /// File (PEM) with the CA certificates to trust. null: `otlp.certificate`.
    pub certificate: Option<String>,
    /// File (PEM) with the client certificate chain. null: `otlp.client_certificate`.
    pub client_certificate: Option<String>,
    /// File (PEM) with the private key of the client certificate. null: `otlp.client_key`.
    pub client_key: Option<String>,
}

/// OTLP metrics.
// No `deny_unknown_fields` here and in `OtlpTraces`: serde cannot combine it with `flatten`. `conform` rejects unknown
// keys: it checks against the schema before serde reads anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OtlpMetrics {
    #[serde(flatten)]
    #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
    pub destination: Destination,
    /// Milliseconds between exports.
    #[schemars(range(min = 100, max = 3600000))]
    pub interval_ms: u64,
    /// Aggregation temporality of counters and histograms. With `delta` and `lowmemory`, the data of a failed export
    /// is lost; with `cumulative`, the next export includes it.
    pub temporality: Temporality,
    /// Format of histograms.
    pub histograms: Histograms,
}

impl Default for OtlpMetrics {
    fn default() -> OtlpMetrics {
        OtlpMetrics {
            destination: Destination::default(),
            interval_ms: 60_000,
            temporality: Temporality::default(),
            histograms: Histograms::default(),
        }
    }
}

/// OTLP traces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OtlpTraces {
    #[serde(flatten)]
    #[expect(missing_docs, reason = "flattened: not a key, and a doc comment would replace that of the block")]
    pub destination: Destination,
    /// Trace sampler.
    pub sampler: Sampler,
    /// Ratio of traces kept by the `traceidratio` samplers, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub sampler_ratio: f64,
    /// True keeps every failed request, regardless of the sampler.
    pub keep_failed: bool,
    /// True keeps every request with a gap between tokens above `observe.stall_ms`, regardless of the sampler.
    pub keep_stalled: bool,
    /// Keeps every request whose first token took more than this many milliseconds, regardless of the sampler. 0: the
    /// time to first token is ignored.
    #[schemars(range(min = 0, max = 86400000))]
    pub keep_first_token_over_ms: u64,
    /// True keeps such requests even if the caller's traceparent is not sampled: the trace then contains only
    /// tokometer's spans.
    pub keep_unsampled: bool,
    /// Maximum number of traces per second that are kept this way; further ones are left to the sampler and counted. 0:
    /// no limit.
    #[schemars(range(min = 0, max = 100000))]
    pub keep_per_second: u64,
    /// Maximum number of spans waiting for export; further ones are dropped and counted.
    #[schemars(range(min = 1, max = 1000000))]
    pub queue_size: u64,
    /// Maximum number of spans in one batch; at most `queue_size`.
    #[schemars(range(min = 1, max = 1000000))]
    pub batch_size: u64,
    /// Milliseconds between batches.
    #[schemars(range(min = 10, max = 3600000))]
    pub schedule_delay_ms: u64,
}

impl Default for OtlpTraces {
    fn default() -> OtlpTraces {
        OtlpTraces {
            destination: Destination::default(),
            sampler: Sampler::default(),
            sampler_ratio: 1.0,
            keep_failed: true,
            keep_stalled: true,
            keep_first_token_over_ms: 10_000,
            keep_unsampled: true,
            keep_per_second: 10,
            queue_size: 2048,
            batch_size: 512,
            schedule_delay_ms: 5000,
        }
    }
}
