//! The one table of metrics: both exporters, `docs/METRICS.md`, dashboards and rules are made from it.

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

/// What a metric counts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls; the sum over processes has a meaning.
    UpDownCounter,
    /// The value of this moment.
    Gauge,
    /// A distribution.
    Histogram,
}

impl Kind {
    /// The word in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::UpDownCounter => "up-down counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Which attributes every series of a metric has, beside the metric's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An exchange, by the attributes of the GenAI conventions.
    GenAi,
    /// An exchange, by the same and `streaming`.
    Exchange,
    /// A listen -> upstream pair.
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

/// How settled a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// From the OpenTelemetry GenAI conventions, where its state is still `Development`.
    Development,
    /// Ours; changes only with a major version.
    Stable,
}

impl Stability {
    /// The word in the documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Stability::Development => "development (OTel GenAI)",
            Stability::Stable => "stable",
        }
    }
}

/// With which generation of the GenAI names a metric is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// With each.
    Every,
    /// With v1.41.
    V1_41,
    /// With the newest.
    Latest,
}

impl Generation {
    /// True when this setting asks for it.
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
    /// Which one it is.
    pub id: Id,
    /// The OpenTelemetry name.
    pub name: &'static str,
    /// The unit in UCUM; empty for none.
    pub unit: &'static str,
    /// What it counts with.
    pub kind: Kind,
    /// One sentence for people.
    pub help: &'static str,
    /// Upper bounds of the explicit buckets, for histograms.
    pub buckets: &'static [f64],
    /// The attributes that it shares with others.
    pub scope: Scope,
    /// The attributes of its own.
    pub extra: &'static [Key],
    /// Further attributes, with which the settings say so: those of the prompt's class.
    pub optional: &'static [Key],
    /// How settled its name is.
    pub stability: Stability,
    /// With which generation of the GenAI names it is emitted.
    pub generation: Generation,
    /// Its buckets carry exemplars (trace and span of an exchange that fell in them).
    pub exemplar: bool,
}

impl Metric {
    /// Every attribute that its series always may have, in order; the optional ones follow them.
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
    // `entries` holds them in the order of `Id`; a test compares them.
    &TABLE[id as usize]
}

/// Names the entries of [`TABLE`], in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the entry of the table says it")]
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
