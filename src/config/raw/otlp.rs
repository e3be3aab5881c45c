//! The block `otlp`: where metrics and traces are pushed to.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How OTLP is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// OTLP over HTTP with protobuf bodies; the usual port is 4318.
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
    /// OTLP over gRPC; the usual port is 4317.
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

/// How counters and histograms count over OTLP.
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

/// Form of histograms over OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Histograms {
    /// Buckets with fixed bounds, the same as on the Prometheus endpoint.
    #[default]
    ExplicitBucketHistogram,
    /// Base-2 exponential buckets: finer, and no bounds to choose.
    Base2ExponentialBucketHistogram,
}

/// Which traces are kept (the names of `OTEL_TRACES_SAMPLER`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// All.
    AlwaysOn,
    /// None.
    AlwaysOff,
    /// The share `sampler_ratio`, by trace id.
    Traceidratio,
    /// As the caller decided; all without a caller's decision.
    #[default]
    ParentbasedAlwaysOn,
    /// As the caller decided; none without a caller's decision.
    ParentbasedAlwaysOff,
    /// As the caller decided; the share `sampler_ratio` without a caller's decision.
    ParentbasedTraceidratio,
}

/// Push to an OpenTelemetry collector. Metrics and traces each take what is set here unless they set it themselves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Otlp {
    /// URL of the collector: `http://127.0.0.1:4318`. For HTTP, `/v1/metrics` and `/v1/traces` are appended. null: OTLP
    /// is off, except for a signal with an endpoint of its own.
    pub endpoint: Option<String>,
    /// HTTP or gRPC.
    pub protocol: Protocol,
    /// Further headers (gRPC: metadata), `name: value`. Values are secrets: they are never shown.
    pub headers: BTreeMap<String, String>,
    /// Compression of request bodies.
    pub compression: Compression,
    /// Milliseconds for one export, retries included.
    #[schemars(range(min = 1, max = 600000))]
    pub timeout_ms: u64,
    /// For a gRPC endpoint without a scheme: true speaks plain text, false TLS.
    pub insecure: bool,
    /// File (PEM) with the authority to trust. null: the built-in web roots.
    pub certificate: Option<String>,
    /// File (PEM) with our own certificate chain, for mTLS.
    pub client_certificate: Option<String>,
    /// File (PEM) with the private key of our own certificate.
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

/// One signal's own way to a collector. null: as set under `otlp`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Destination {
    /// True sends this signal (to `http://localhost:4318`, for gRPC `:4317`, if no endpoint is set), false does not.
    /// null: sends it if there is an endpoint.
    pub enabled: Option<bool>,
    /// URL for this signal alone, used as it stands: over HTTP it ends in `/v1/metrics` or `/v1/traces`. null: from
    /// `otlp.endpoint`.
    pub endpoint: Option<String>,
    /// HTTP or gRPC. null: `otlp.protocol`.
    pub protocol: Option<Protocol>,
    /// Further headers in place of `otlp.headers`. null: `otlp.headers`. Values are secrets: they are never shown.
    pub headers: Option<BTreeMap<String, String>>,
    /// Compression of request bodies. null: `otlp.compression`.
    pub compression: Option<Compression>,
    /// Milliseconds for one export, retries included. null: `otlp.timeout_ms`.
    #[schemars(range(min = 1, max = 600000))]
    pub timeout_ms: Option<u64>,
    /// For a gRPC endpoint without a scheme: true speaks plain text, false TLS. null: `otlp.insecure`.
    pub insecure: Option<bool>,
    /// File (PEM) with the authority to trust. null: `otlp.certificate`.
    pub certificate: Option<String>,
    /// File (PEM) with our own certificate chain. null: `otlp.client_certificate`.
    pub client_certificate: Option<String>,
    /// File (PEM) with the private key of our own certificate. null: `otlp.client_key`.
    pub client_key: Option<String>,
}

/// OTLP metrics.
// No `deny_unknown_fields` here and in `OtlpTraces`: serde cannot join it with `flatten`. Unknown keys are refused by
// `conform`, which checks against the schema before serde reads anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OtlpMetrics {
    #[serde(flatten)]
    #[expect(missing_docs, reason = "flattened: no key of its own, and a doc comment would replace the block's")]
    pub destination: Destination,
    /// Milliseconds between two exports.
    #[schemars(range(min = 100, max = 3600000))]
    pub interval_ms: u64,
    /// How counters and histograms count. With `delta` and `lowmemory`, what an export held that the collector did not take is
    /// lost; with `cumulative` the next one makes up for it.
    pub temporality: Temporality,
    /// Form of histograms.
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
    #[expect(missing_docs, reason = "flattened: no key of its own, and a doc comment would replace the block's")]
    pub destination: Destination,
    /// Which traces are kept.
    pub sampler: Sampler,
    /// Share of traces that the samplers with `traceidratio` keep, from 0 to 1.
    #[schemars(range(min = 0, max = 1))]
    pub sampler_ratio: f64,
    /// Keep every exchange that failed, whatever the sampler says.
    pub keep_failed: bool,
    /// Keep every exchange in which a gap between tokens was over `observe.stall_ms`, whatever the sampler says.
    pub keep_stalled: bool,
    /// Keep every exchange whose first token took longer than this many milliseconds, whatever the sampler says.
    /// 0: slowness keeps nothing.
    #[schemars(range(min = 0, max = 86400000))]
    pub keep_first_token_over_ms: u64,
    /// Keep such exchanges also where the caller's traceparent says that its trace is not sampled: our spans are then all
    /// that there is of it.
    pub keep_unsampled: bool,
    /// Most traces that are kept so in a second; further ones are left to the sampler and counted. 0: no cap.
    #[schemars(range(min = 0, max = 100000))]
    pub keep_per_second: u64,
    /// Most spans that wait for export; further ones are dropped and counted.
    #[schemars(range(min = 1, max = 1000000))]
    pub queue_size: u64,
    /// Most spans in one batch; not above `queue_size`.
    #[schemars(range(min = 1, max = 1000000))]
    pub batch_size: u64,
    /// Milliseconds between two batches.
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
