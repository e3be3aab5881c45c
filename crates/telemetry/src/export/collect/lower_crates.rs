//! Exports the values of crates that this crate depends on: observers, scraped engines and received engine spans.

use std::sync::Arc;
use std::time::Instant;

use crate::export::collect::{Collect, Points};
use crate::export::labels::Value;
use crate::export::table::{Id, Key};
use tokometer_engine::{engine_spans, scrape};
use tokometer_observe::observer::Observers;

/// Marks a mean computed from an engine's queue metrics as an estimate.
const ESTIMATE: &str = "engine_metrics_estimate";

impl Collect for Observers {
    fn collect(&self, points: &mut Points<'_>) {
        let budget = self.budget();
        points.put(Id::ObserverConnections, &[], self.observed());
        points.put(Id::ObserverTime, &[], self.busy());
        points.put(Id::ObserverDecoded, &[], budget.decoded());
        points.put(Id::ObserverMemory, &[], budget.held());
        points.put(Id::ObserverMemoryLimit, &[], budget.limit());
        points.put(Id::ObserverMemoryRefused, &[], budget.refused());
    }
}

impl Collect for scrape::Engines {
    fn collect(&self, points: &mut Points<'_>) {
        for (listener, measurements) in self.measurements(Instant::now()).iter().enumerate() {
            if let Some(measurements) = measurements {
                points.put_engine(listener, measurements);
            }
        }
    }
}

impl Points<'_> {
    /// Adds the values scraped from a listener's engine.
    pub fn put_engine(&mut self, listener: usize, measurements: &scrape::Measurements) {
        self.put_at(listener, Id::EngineScrapes, &[], measurements.attempts);
        for (failure, count) in scrape::Failure::ALL.iter().zip(measurements.failures) {
            self.put_at(listener, Id::EngineScrapeFailures, &[(Key::Reason, failure.as_str().into())], count);
        }
        self.put_at(listener, Id::EngineScrapeDuration, &[], measurements.duration);
        self.put_at(listener, Id::EngineScrapeAge, &[], measurements.age);
        let Some(state) = &measurements.state else { return };
        if let Some((engine, version)) = &measurements.version {
            let known = [(Key::Provider, (*engine).into()), (Key::Version, Arc::clone(version).into())];
            self.put_at(listener, Id::EngineInfo, &known, 1.0);
        }
        let ranks = &measurements.ranks;
        for (id, value) in VALUES {
            // A value that no rank reports is exported for the whole engine.
            let mut put = |rank, state| {
                let (value, source) = value(state)?;
                let source = source.map_or(Value::Unknown, Value::Word);
                self.put_at(listener, id, &[(Key::DataParallelRank, rank), (Key::Source, source)], value);
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
type Of = fn(&scrape::State) -> Option<(f64, Option<&'static str>)>;

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

impl Collect for engine_spans::Measurements {
    fn collect(&self, points: &mut Points<'_>) {
        points.put(Id::EngineSpansReceived, &[], self.received.get());
        points.put(Id::EngineSpansForwarded, &[], self.forwarded.get());
        points.put(Id::EngineMessagesWaiting, &[], self.waiting_bytes());
        points.put(Id::SpanJoinsHeld, &[], self.held());
        let (unsent, refused) = (engine_spans::Unsent::ALL, engine_spans::Refusal::ALL);
        points.put_each(Id::EngineSpansDropped, Key::Reason, unsent.map(|why| (why.as_str(), self.unsent(why).get())));
        points.put_each(
            Id::EngineMessagesRefused,
            Key::Reason,
            refused.map(|why| (why.as_str(), self.refused(why).get())),
        );
        points.put(Id::EngineMessagesRefused, &[(Key::Reason, "connections".into())], self.refused_connections.get());
        let (lost, joins) = (engine_spans::Lost::ALL, engine_spans::Join::ALL);
        points.put_each(Id::EngineSpansUnjoined, Key::Reason, lost.map(|why| (why.as_str(), self.lost(why).get())));
        points.put_each(Id::SpanJoins, Key::Result, joins.map(|join| (join.as_str(), self.joins(join).get())));
    }
}
