//! Entries about the engine's own state.

use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::entry;

/// A current value of one server.
const fn level(id: Id, name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    entry(id, name, unit, Kind::Gauge, Scope::Server, help)
}

pub(super) const RUNNING: Metric = level(
    Id::EngineRunning,
    "tokometer.engine.requests.running",
    "{request}",
    "Requests being processed by the engine, from the engine's own metrics",
);

pub(super) const WAITING: Metric = level(
    Id::EngineWaiting,
    "tokometer.engine.requests.waiting",
    "{request}",
    "Requests waiting in the engine's queue, from the engine's own metrics",
);

pub(super) const KV_USAGE: Metric = level(
    Id::EngineKvUsage,
    "tokometer.engine.kv_cache.usage",
    "1",
    "Share of the engine's key-value cache in use, from the engine's own metrics; with several ranks the maximum",
);

pub(super) const CACHE_QUERIES: Metric = counter(
    Id::EngineCacheQueries,
    "tokometer.engine.prefix_cache.queries",
    "",
    Scope::Server,
    "Lookups in the engine's prefix cache, in its own unit (tokens or blocks)",
);

pub(super) const CACHE_HITS: Metric = counter(
    Id::EngineCacheHits,
    "tokometer.engine.prefix_cache.hits",
    "",
    Scope::Server,
    "Hits in the engine's prefix cache, in its own unit (tokens or blocks)",
);

pub(super) const CACHE_RATIO: Metric = by(
    level(
        Id::EngineCacheRatio,
        "tokometer.engine.prefix_cache.hit_ratio",
        "1",
        "Recent hit ratio of the engine's prefix cache",
    ),
    &[Key::Source],
);

pub(super) const PREEMPTIONS: Metric = counter(
    Id::EnginePreemptions,
    "tokometer.engine.preemptions",
    "{preemption}",
    Scope::Server,
    "Requests that the engine preempted in favour of others and restarted",
);

pub(super) const DRAFTED: Metric = counter(
    Id::EngineDrafted,
    "tokometer.engine.speculative.drafted",
    "{token}",
    Scope::Server,
    "Tokens proposed by the engine's speculative decoding",
);

pub(super) const ACCEPTED: Metric = counter(
    Id::EngineAccepted,
    "tokometer.engine.speculative.accepted",
    "{token}",
    Scope::Server,
    "Proposed tokens accepted by the engine's model",
);

pub(super) const ACCEPTANCE_RATIO: Metric = by(
    level(
        Id::EngineAcceptanceRatio,
        "tokometer.engine.speculative.acceptance_ratio",
        "1",
        "Recent share of proposed tokens accepted by the engine's model",
    ),
    &[Key::Source],
);

pub(super) const QUEUE_TIME: Metric = counter(
    Id::EngineQueueTime,
    "tokometer.engine.queue.time",
    "s",
    Scope::Server,
    "Total time requests waited in the engine's queue, from the engine's own metrics; most engines count a wait when the request ends",
);

pub(super) const QUEUE_REQUESTS: Metric = counter(
    Id::EngineQueueRequests,
    "tokometer.engine.queue.requests",
    "{request}",
    Scope::Server,
    "Requests whose waits are included in tokometer.engine.queue.time",
);

pub(super) const QUEUE_TIME_ESTIMATE: Metric = by(
    level(
        Id::QueueTimeEstimate,
        "tokometer.queue.time.estimate",
        "s",
        "Mean queue wait of the requests added to the engine's queue metrics between two scrapes: an estimate for the whole engine",
    ),
    &[Key::Source],
);

pub(super) const SCRAPES: Metric = counter(
    Id::EngineScrapes,
    "tokometer.engine.scrape.attempts",
    "{scrape}",
    Scope::Server,
    "Attempts to scrape the engine's metrics",
);

pub(super) const SCRAPE_FAILURES: Metric = by(
    counter(
        Id::EngineScrapeFailures,
        "tokometer.engine.scrape.failures",
        "{scrape}",
        Scope::Server,
        "Scrapes of the engine's metrics that failed",
    ),
    &[Key::Reason],
);

pub(super) const SCRAPE_DURATION: Metric = level(
    Id::EngineScrapeDuration,
    "tokometer.engine.scrape.duration",
    "s",
    "Duration of the last attempt to scrape the engine's metrics",
);

pub(super) const SCRAPE_AGE: Metric = level(
    Id::EngineScrapeAge,
    "tokometer.engine.scrape.age",
    "s",
    "Time since the last successful scrape of the engine's metrics",
);
