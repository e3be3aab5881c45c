//! What a person may set about the exporters.

use std::path::PathBuf;
use std::time::Duration;

use tokometer_observe::measure::LABEL_IDLE;

/// Which generation of the OpenTelemetry GenAI names is emitted (`gen_ai.server.*` is the same in all).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Semconv {
    /// Semantic conventions v1.41: what backends know today.
    #[default]
    V1_41,
    /// The newest names of the GenAI conventions' own repository.
    Latest,
    /// Both side by side.
    Both,
}

/// How OTLP is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over HTTP with protobuf bodies.
    #[default]
    HttpProtobuf,
    /// OTLP over gRPC.
    Grpc,
}

/// How counters and histograms count over OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temporality {
    /// Since the start of the process.
    #[default]
    Cumulative,
    /// Since the last export.
    Delta,
    /// Delta for synchronous counters and histograms, cumulative for the rest.
    LowMemory,
}

/// One signal's way to a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The URL that is posted to, signal path included for HTTP (`http://127.0.0.1:4318/v1/metrics`).
    pub url: String,
    /// HTTP or gRPC.
    pub protocol: Protocol,
    /// Further headers (gRPC metadata), such as an authorization.
    pub headers: Vec<(String, String)>,
    /// Compress with gzip.
    pub gzip: bool,
    /// Time for one export, retries included.
    pub timeout: Duration,
    /// PEM file of the authority to trust; `None` for the built-in web roots.
    pub ca: Option<PathBuf>,
    /// PEM files of our certificate chain and key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Which traces are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// All (`always_on`).
    AlwaysOn,
    /// None (`always_off`).
    AlwaysOff,
    /// This share by trace id (`traceidratio`).
    Ratio(f64),
}

/// OTLP metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Where they go; `None` turns the OTLP metrics exporter off.
    pub endpoint: Option<Endpoint>,
    /// Time between two exports.
    pub interval: Duration,
    /// How counters and histograms count.
    pub temporality: Temporality,
    /// Base-2 exponential histograms in place of explicit buckets.
    pub exponential: bool,
}

/// OTLP traces.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// Where they go; `None` turns tracing off.
    pub endpoint: Option<Endpoint>,
    /// The root decision.
    pub sampler: Sampler,
    /// Follow the caller's `sampled` flag where a traceparent came (`parentbased_*`).
    pub parent_based: bool,
    /// Keep every exchange that failed, whatever the sampler says.
    pub keep_failed: bool,
    /// Keep every exchange whose tokens stalled, whatever the sampler says.
    pub keep_stalled: bool,
    /// Keep every exchange whose first token took longer than this, whatever the sampler says.
    pub keep_first_token_over: Option<Duration>,
    /// Keep such an exchange also where the caller decided that its trace is not sampled.
    pub keep_unsampled: bool,
    /// Most traces in a second that are kept so; `None`: all. Further ones are counted.
    pub keep_per_second: Option<u64>,
    /// Most spans waiting for export; further ones are dropped and counted.
    pub queue_size: usize,
    /// Most spans in one batch.
    pub batch_size: usize,
    /// Time between two batches.
    pub schedule_delay: Duration,
}

/// Optional attributes of the waits for a first token, by the prompt. Off by default: each class is a series of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptClasses {
    /// Upper bounds of the classes of input length, in tokens, rising, at most [`PromptClasses::MOST_BOUNDS`]; empty for no
    /// such attribute.
    pub input_bounds: Vec<u64>,
    /// An attribute for how much of the prompt the engine had in its cache.
    pub cache_hit: bool,
}

impl PromptClasses {
    /// Most bounds of input length.
    pub const MOST_BOUNDS: usize = 8;

    /// True when none is asked for.
    pub fn is_off(&self) -> bool {
        self.input_bounds.is_empty() && !self.cache_hit
    }
}

/// Everything about the exporters.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Generation of the GenAI names.
    pub semconv: Semconv,
    /// Resource attributes, `service.name` included.
    pub resource: Vec<(String, String)>,
    /// Upstream addresses by pair index, for `server.address` and `server.port`.
    pub servers: Vec<(String, Option<u16>)>,
    /// Most different model names in labels; further ones are `other`.
    pub max_models: usize,
    /// Most label sets in all; further ones are folded into `other`. Also most pairs of a label set and a class of prompts.
    pub max_label_sets: usize,
    /// How long a model name or a label set has to be unused before a new one may replace it, where the table is full.
    pub label_idle: Duration,
    /// Classes of prompts as attributes.
    pub prompt_classes: PromptClasses,
    /// Native histograms beside classic ones on the Prometheus endpoint's protobuf form.
    pub native_histograms: bool,
    /// Exemplars on the OpenMetrics form.
    pub exemplars: bool,
    /// OTLP metrics.
    pub metrics: Metrics,
    /// OTLP traces.
    pub traces: Traces,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            semconv: Semconv::default(),
            resource: vec![("service.name".to_owned(), "tokometer".to_owned())],
            servers: Vec::new(),
            max_models: 64,
            max_label_sets: 512,
            label_idle: LABEL_IDLE,
            prompt_classes: PromptClasses::default(),
            native_histograms: true,
            exemplars: true,
            metrics: Metrics {
                endpoint: None,
                interval: Duration::from_secs(60),
                temporality: Temporality::default(),
                exponential: false,
            },
            traces: Traces {
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
            },
        }
    }
}
