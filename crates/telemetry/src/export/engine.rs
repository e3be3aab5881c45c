//! The metrics of the engines' own state: made from what was read of their pages last.

use crate::export::attributes::Value;
use crate::export::observed::Push;
use crate::export::table::Id;
use crate::export::table::Key;
use tokometer_engine::scrape::Failure;
use tokometer_engine::scrape::Figures;
use tokometer_engine::scrape::State;

/// Marks the mean of an engine's queue metrics wherever it is told.
const ESTIMATE: &str = "engine_metrics_estimate";

/// True for the metrics of this module.
pub(crate) fn is_engine(id: Id) -> bool {
    matches!(
        id,
        Id::EngineRunning
            | Id::EngineWaiting
            | Id::EngineKvUsage
            | Id::EngineCacheQueries
            | Id::EngineCacheHits
            | Id::EngineCacheRatio
            | Id::EnginePreemptions
            | Id::EngineDrafted
            | Id::EngineAccepted
            | Id::EngineAcceptanceRatio
            | Id::EngineQueueTime
            | Id::EngineQueueRequests
            | Id::QueueTimeEstimate
            | Id::EngineScrapes
            | Id::EngineScrapeFailures
            | Id::EngineScrapeDuration
            | Id::EngineScrapeAge
    )
}

/// Tells the figures of one engine.
pub(crate) fn observe(figures: &Figures, server: &[(Key, Value)], push: &mut Push<'_>) {
    push(Id::EngineScrapes, server, &[], figures.attempts as f64);
    for (failure, count) in Failure::ALL.iter().zip(figures.failures) {
        push(Id::EngineScrapeFailures, server, &[(Key::Reason, Value::Word(failure.as_str()))], count as f64);
    }
    if let Some(duration) = figures.duration {
        push(Id::EngineScrapeDuration, server, &[], duration.as_secs_f64());
    }
    if let Some(age) = figures.age {
        push(Id::EngineScrapeAge, server, &[], age.as_secs_f64());
    }
    if let Some(state) = &figures.state {
        observe_state(state, server, push);
    }
}

fn observe_state(state: &State, server: &[(Key, Value)], push: &mut Push<'_>) {
    let figures = [
        (Id::EngineRunning, state.running),
        (Id::EngineWaiting, state.waiting),
        (Id::EngineKvUsage, state.kv_usage),
        (Id::EngineCacheQueries, state.cache_queries),
        (Id::EngineCacheHits, state.cache_hits),
        (Id::EnginePreemptions, state.preemptions),
        (Id::EngineDrafted, state.drafted),
        (Id::EngineAccepted, state.accepted),
        (Id::EngineQueueTime, state.queue_seconds),
        (Id::EngineQueueRequests, state.queue_requests),
    ];
    for (id, value) in figures {
        if let Some(value) = value {
            push(id, server, &[], value);
        }
    }
    for (id, ratio) in [(Id::EngineCacheRatio, state.cache_ratio), (Id::EngineAcceptanceRatio, state.acceptance_ratio)]
    {
        if let Some(ratio) = ratio {
            push(id, server, &[(Key::Source, Value::Word(ratio.source.as_str()))], ratio.value);
        }
    }
    if let Some(mean) = state.queue_mean {
        push(Id::QueueTimeEstimate, server, &[(Key::Source, Value::Word(ESTIMATE))], mean);
    }
}
