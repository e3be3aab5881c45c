//! The entries about the engines' own state.

use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::Kind;
use crate::export::table::Metric;
use crate::export::table::Scope;
use crate::export::table::build::by;
use crate::export::table::build::counter;
use crate::export::table::build::entry;

/// A value of this moment of one server.
const fn level(id: Id, name: &'static str, unit: &'static str, help: &'static str) -> Metric {
    entry(id, name, unit, Kind::Gauge, Scope::Server, help)
}

pub(super) const RUNNING: Metric = level(
    Id::EngineRunning,
    "tokometer.engine.requests.running",
    "{request}",
    "Requests that the engine works on, by its own metrics",
);

pub(super) const WAITING: Metric = level(
    Id::EngineWaiting,
    "tokometer.engine.requests.waiting",
    "{request}",
    "Requests that wait for their turn in the engine, by its own metrics",
);

pub(super) const KV_USAGE: Metric = level(
    Id::EngineKvUsage,
    "tokometer.engine.kv_cache.usage",
    "1",
    "Share of the engine's key-value cache that is in use, by its own metrics; of several ranks that of the fullest",
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
    "Lookups that the engine's prefix cache answered, in its own unit (tokens or blocks)",
);

pub(super) const CACHE_RATIO: Metric = by(
    level(
        Id::EngineCacheRatio,
        "tokometer.engine.prefix_cache.hit_ratio",
        "1",
        "Share of lookups that the engine's prefix cache answered, lately",
    ),
    &[Key::Source],
);

pub(super) const PREEMPTIONS: Metric = counter(
    Id::EnginePreemptions,
    "tokometer.engine.preemptions",
    "{preemption}",
    Scope::Server,
    "Requests that lost their place in the engine to others and were begun anew",
);

pub(super) const DRAFTED: Metric = counter(
    Id::EngineDrafted,
    "tokometer.engine.speculative.drafted",
    "{token}",
    Scope::Server,
    "Tokens that the engine's speculative decoding proposed",
);

pub(super) const ACCEPTED: Metric = counter(
    Id::EngineAccepted,
    "tokometer.engine.speculative.accepted",
    "{token}",
    Scope::Server,
    "Proposed tokens that the engine's model accepted",
);

pub(super) const ACCEPTANCE_RATIO: Metric = by(
    level(
        Id::EngineAcceptanceRatio,
        "tokometer.engine.speculative.acceptance_ratio",
        "1",
        "Share of proposed tokens that the engine's model accepted, lately",
    ),
    &[Key::Source],
);

pub(super) const QUEUE_TIME: Metric = counter(
    Id::EngineQueueTime,
    "tokometer.engine.queue.time",
    "s",
    Scope::Server,
    "Waits in the engine's queue, added up, by its own metrics; most engines count a wait when the request has ended",
);

pub(super) const QUEUE_REQUESTS: Metric = counter(
    Id::EngineQueueRequests,
    "tokometer.engine.queue.requests",
    "{request}",
    Scope::Server,
    "Requests whose waits are in tokometer.engine.queue.time",
);

pub(super) const QUEUE_TIME_ESTIMATE: Metric = by(
    level(
        Id::QueueTimeEstimate,
        "tokometer.queue.time.estimate",
        "s",
        "Mean wait of the requests that the engine's queue metrics gained between two readings: an estimate for the engine as a whole",
    ),
    &[Key::Source],
);

pub(super) const SCRAPES: Metric = counter(
    Id::EngineScrapes,
    "tokometer.engine.scrape.attempts",
    "{scrape}",
    Scope::Server,
    "Times that the engine's metrics were asked for",
);

pub(super) const SCRAPE_FAILURES: Metric = by(
    counter(
        Id::EngineScrapeFailures,
        "tokometer.engine.scrape.failures",
        "{scrape}",
        Scope::Server,
        "Times that the engine's metrics could not be read",
    ),
    &[Key::Reason],
);

pub(super) const SCRAPE_DURATION: Metric = level(
    Id::EngineScrapeDuration,
    "tokometer.engine.scrape.duration",
    "s",
    "How long the last attempt to read the engine's metrics took",
);

pub(super) const SCRAPE_AGE: Metric =
    level(Id::EngineScrapeAge, "tokometer.engine.scrape.age", "s", "Time since the engine's metrics were last read");
