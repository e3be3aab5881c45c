//! The single table of metrics: source of both exporters, `docs/METRICS.md`, the dashboards and the rules.

mod buckets;
mod build;
mod engine;
mod engine_spans;
mod entries;
mod gen_ai;
mod in_flight;
mod key;
mod ledger;
mod naming;
mod objectives;

pub use entries::TABLE;
pub use key::Key;
pub use naming::{PrometheusName, prometheus_name};

use crate::export::Semconv;

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Monotonic.
    Counter,
    /// Rises and falls; sums over processes are meaningful.
    UpDownCounter,
    /// A current value.
    Gauge,
    /// A distribution.
    Histogram,
}

impl Kind {
    /// The name in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::UpDownCounter => "up-down counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Which common attributes every series of a metric has, in addition to the metric's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A request, with the attributes of the GenAI conventions.
    GenAi,
    /// A request, with the attributes of the GenAI conventions and `streaming`.
    Exchange,
    /// A listener (listen address and upstream).
    Server,
    /// The process.
    Process,
}

impl Scope {
    /// The attributes, in order.
    pub fn keys(self) -> &'static [Key] {
        const ALL: &[Key] = &[
            Key::Operation,
            Key::Provider,
            Key::RequestModel,
            Key::ResponseModel,
            Key::ServerAddress,
            Key::ServerPort,
            Key::Streaming,
        ];
        match self {
            Scope::GenAi => ALL.split_at(6).0,
            Scope::Exchange => ALL,
            Scope::Server => &[Key::ServerAddress, Key::ServerPort],
            Scope::Process => &[],
        }
    }
}

/// How stable a metric's name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// From the OpenTelemetry GenAI conventions, where its state is still `Development`.
    Development,
    /// Defined by tokometer; changes only with a major version.
    Stable,
}

impl Stability {
    /// The term in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Stability::Development => "development (OTel GenAI)",
            Stability::Stable => "stable",
        }
    }
}

/// The generation of GenAI names with which a metric is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// With both generations.
    Every,
    /// Only with v1.41.
    V1_41,
    /// Only with the newest.
    Latest,
}

impl Generation {
    /// True when a metric of this generation is emitted with this setting.
    pub fn is_in(self, semconv: Semconv) -> bool {
        match self {
            Generation::Every => true,
            Generation::V1_41 => semconv != Semconv::Latest,
            Generation::Latest => semconv != Semconv::V1_41,
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Identifier in the table.
    pub id: Id,
    /// The OpenTelemetry name.
    pub name: &'static str,
    /// The unit in UCUM; empty for none.
    pub unit: &'static str,
    /// Type of the metric.
    pub kind: Kind,
    /// One sentence of description, on one line and without a full stop.
    pub help: &'static str,
    /// Upper bounds of the explicit buckets, for histograms.
    pub buckets: &'static [f64],
    /// The common attributes.
    pub scope: Scope,
    /// The metric's own attributes.
    pub extra: &'static [Key],
    /// Attributes added only if the settings enable them: the prompt classes.
    pub optional: &'static [Key],
    /// How stable its name is.
    pub stability: Stability,
    /// The generation of GenAI names with which it is emitted.
    pub generation: Generation,
    /// Whether its buckets carry exemplars (trace and span of a request counted in them).
    pub exemplar: bool,
}

impl Metric {
    /// Attributes that are always enabled for its series, in order; the optional ones follow them.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.scope.keys().iter().chain(self.extra).copied()
    }

    /// The Prometheus name.
    pub fn prometheus(&self) -> PrometheusName {
        prometheus_name(self.name, self.unit, self.kind)
    }

    /// Upper bound of the series for one label set.
    pub(crate) fn spread(&self) -> usize {
        self.extra.iter().map(|key| key.values()).product()
    }
}

/// The entry of a metric.
pub fn metric(id: Id) -> &'static Metric {
    // A test checks that the entries are in the order of `Id`.
    &TABLE[id as usize]
}

/// Identifiers of the entries of [`TABLE`], in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the entry of the table documents it")]
pub enum Id {
    RequestDuration,
    TimeToFirstToken,
    TimePerOutputToken,
    TokenUsage,
    UsageInput,
    UsageOutput,
    UsageCacheRead,
    UsageCacheWrite,
    UsageReasoning,
    OperationInput,
    OperationOutput,
    Exchanges,
    Finishes,
    OwnTimeToHeaders,
    OwnTimeToFirstEvent,
    OwnTimeToFirstToken,
    OwnTimeToFirstVisible,
    WaitWithoutFirstToken,
    DecodeRate,
    InterTokenLatency,
    ChunkGap,
    ChunkTokens,
    Stalls,
    PrefillRate,
    QueueTime,
    PhaseDuration,
    DeliveryBlocked,
    InputTokens,
    OutputTokens,
    CachedTokens,
    CacheCreationTokens,
    InputAudioTokens,
    InputImageTokens,
    ReasoningTokens,
    OutputAudioTokens,
    LiveTokens,
    RequestBody,
    ResponseBody,
    InFlight,
    InFlightMeanAge,
    InFlightOldest,
    InFlightWaited,
    InFlightStalled,
    InFlightHeldUp,
    InFlightUntracked,
    EngineSilence,
    EngineSilenceBound,
    EngineWedged,
    RecentExchanges,
    RecentMemory,
    RecentDropped,
    RecordsDropped,
    AccessLogDropped,
    ObserverDetached,
    BodiesUnread,
    ConnectionsOpened,
    ConnectionsOpen,
    ConnectionsRefused,
    ConnectFailures,
    RelayIo,
    Interception,
    ObserverConnections,
    ObserverTime,
    ObserverDecoded,
    ObserverMemory,
    ObserverMemoryLimit,
    ObserverMemoryRefused,
    EventLoopLag,
    TokenizerUncounted,
    EngineRunning,
    EngineWaiting,
    EngineKvUsage,
    EngineCacheQueries,
    EngineCacheHits,
    EngineCacheRatio,
    EnginePreemptions,
    EngineDrafted,
    EngineAccepted,
    EngineAcceptanceRatio,
    EngineQueueTime,
    EngineQueueRequests,
    QueueTimeEstimate,
    EngineScrapes,
    EngineScrapeFailures,
    EngineScrapeDuration,
    EngineScrapeAge,
    SpansSent,
    SpansDropped,
    TracesKept,
    TracesCapped,
    Exports,
    ExportsFailed,
    LabelsFolded,
    SloEvents,
    SloExcluded,
    SloGoodTokens,
    SloObjective,
    SloThreshold,
    TenantExchanges,
    TenantInputTokens,
    TenantCachedTokens,
    TenantOutputTokens,
    Cost,
    Unpriced,
    BudgetSpent,
    BudgetLimit,
    EngineSpansReceived,
    EngineSpansForwarded,
    EngineSpansDropped,
    EngineSpansUnjoined,
    EngineMessagesRefused,
    EngineMessagesWaiting,
    SpanJoins,
    SpanJoinsHeld,
    Cpu,
    ResidentMemory,
    VirtualMemory,
    OpenFds,
    MaxFds,
    Threads,
    StartTime,
    BuildInfo,
}

#[cfg(test)]
mod tests;
