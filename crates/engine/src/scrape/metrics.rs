//! Exports the values scraped from the engines.

use std::sync::Arc;
use std::time::Instant;

use tokometer_metrics::table::{Id, Key};
use tokometer_metrics::{Collect, Points, Value};

use crate::scrape::scraper::Engines;
use crate::scrape::state::State;
use crate::scrape::watch::{Failure, Measurements};

/// Marks a mean computed from an engine's queue metrics as an estimate.
const ESTIMATE: &str = "engine_metrics_estimate";

impl Collect for Engines {
    fn collect(&self, points: &mut Points<'_>) {
        for (listener, measurements) in self.measurements(Instant::now()).iter().enumerate() {
            if let Some(measurements) = measurements {
                measurements.put(listener, points);
            }
        }
    }
}

impl Measurements {
    /// Adds the values scraped from this listener's engine.
    pub fn put(&self, listener: usize, points: &mut Points<'_>) {
        points.put_at(listener, Id::EngineScrapes, &[], self.attempts);
        for (failure, count) in Failure::ALL.iter().zip(self.failures) {
            points.put_at(listener, Id::EngineScrapeFailures, &[(Key::Reason, failure.as_str().into())], count);
        }
        points.put_at(listener, Id::EngineScrapeDuration, &[], self.duration);
        points.put_at(listener, Id::EngineScrapeAge, &[], self.age);
        let Some(state) = &self.state else { return };
        if let Some((engine, version)) = &self.version {
            let known = [(Key::Provider, (*engine).into()), (Key::Version, Arc::clone(version).into())];
            points.put_at(listener, Id::EngineInfo, &known, 1.0);
        }
        let ranks = &self.ranks;
        for (id, value) in VALUES {
            // A value that no rank reports is exported for the whole engine.
            let mut put = |rank, state| {
                let (value, source) = value(state)?;
                let source = source.map_or(Value::Unknown, Value::Word);
                points.put_at(listener, id, &[(Key::DataParallelRank, rank), (Key::Source, source)], value);
                Some(())
            };
            let of_ranks = ranks.iter().filter_map(|(rank, state)| put(Value::Number(i64::from(*rank)), state)).count();
            if of_ranks == 0 {
                put(Value::Unknown, state);
            }
        }
    }
}

/// Reads a value from an engine's state, with its source if the source is an attribute of the series.
type Of = fn(&State) -> Option<(f64, Option<&'static str>)>;

/// Every value of an engine's state.
const VALUES: [(Id, Of); 18] = {
    /// A value whose source is not an attribute of the series.
    macro_rules! plain {
        ($field:ident) => {
            |state| Some((state.$field?, None))
        };
    }
    macro_rules! ratio {
        ($field:ident) => {
            |state| state.$field.map(|ratio| (ratio.value, Some(ratio.source.as_str())))
        };
    }
    [
        (Id::EngineRunning, plain!(running)),
        (Id::EngineWaiting, plain!(waiting)),
        (Id::EngineKvUsage, plain!(kv_usage)),
        (Id::EngineCacheQueries, plain!(cache_queries)),
        (Id::EngineCacheHits, plain!(cache_hits)),
        (Id::EngineCacheRatio, ratio!(cache_ratio)),
        (Id::EngineIterations, plain!(iterations)),
        (Id::EngineIterationsStopped, plain!(stopped)),
        (Id::EngineGenerated, plain!(generated)),
        (Id::EnginePreemptions, plain!(preemptions)),
        (Id::EngineDrafted, plain!(drafted)),
        (Id::EngineAccepted, plain!(accepted)),
        (Id::EngineAcceptanceRatio, ratio!(acceptance_ratio)),
        (Id::EngineQueueTime, plain!(queue_seconds)),
        (Id::EngineQueueRequests, plain!(queue_requests)),
        (Id::EngineKvTransferTime, plain!(kv_transfer_seconds)),
        (Id::EngineKvTransfers, plain!(kv_transfers)),
        (Id::QueueTimeEstimate, |state| Some((state.queue_mean?, Some(ESTIMATE)))),
    ]
};
