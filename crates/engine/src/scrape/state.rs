//! The state of an engine, from one page to the next.

use crate::scrape::families::Quantity;
use crate::scrape::page::Found;
use crate::scrape::page::Page;
use crate::scrape::page::Series;

/// Most series that are remembered after they left the page.
const MOST_GONE: usize = 256;

/// Where a ratio comes from. Never mixed in one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RatioSource {
    /// What the engine's counts gained between two pages.
    CounterDeltas,
    /// The engine's own figure, over whatever time it takes.
    EngineGauge,
}

impl RatioSource {
    /// The value of the label `source`.
    pub fn as_str(self) -> &'static str {
        match self {
            RatioSource::CounterDeltas => "counter_deltas",
            RatioSource::EngineGauge => "engine_gauge",
        }
    }
}

/// A share from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The share.
    pub value: f64,
    /// Where it comes from.
    pub source: RatioSource,
}

/// What one page says of an engine. What it does not say is `None`. Counts are what the engine counted since its page was
/// first read, over restarts of the engine; ranks and models of one page are added up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Requests that are being worked on.
    pub running: Option<f64>,
    /// Requests that wait for their turn.
    pub waiting: Option<f64>,
    /// Share of the key-value cache that is in use, 0 to 1; of several ranks that of the fullest.
    pub kv_usage: Option<f64>,
    /// Lookups in the prefix cache, in the engine's own unit (tokens or blocks).
    pub cache_queries: Option<f64>,
    /// Those that were answered by the cache.
    pub cache_hits: Option<f64>,
    /// Share of hits.
    pub cache_ratio: Option<Ratio>,
    /// Requests that lost their place to others and were begun anew.
    pub preemptions: Option<f64>,
    /// Tokens that a draft proposed.
    pub drafted: Option<f64>,
    /// Those that the model accepted.
    pub accepted: Option<f64>,
    /// Share of accepted tokens.
    pub acceptance_ratio: Option<Ratio>,
    /// Seconds that requests waited in the engine's queue.
    pub queue_seconds: Option<f64>,
    /// Requests whose waits these are.
    pub queue_requests: Option<f64>,
    /// Mean wait in seconds of the requests that came to `queue_requests` since the page before: an estimate of what a
    /// request waits now. `None` where there was none.
    pub queue_mean: Option<f64>,
}

/// Adds up what an engine's counts gain, page by page.
#[derive(Debug, Default)]
pub struct Tracker {
    queries: Count,
    hits: Count,
    preemptions: Count,
    drafted: Count,
    accepted: Count,
    seconds: Count,
    requests: Count,
}

impl Tracker {
    /// The state that this page tells.
    pub fn take(&mut self, page: &Page) -> State {
        let queries = self.queries.take(page.find(Quantity::CacheQueries));
        let hits = self.hits.take(page.find(Quantity::CacheHits));
        let preemptions = self.preemptions.take(page.find(Quantity::Preemptions));
        let drafted = self.drafted.take(page.find(Quantity::Drafted));
        let accepted = self.accepted.take(page.find(Quantity::Accepted));
        let seconds = self.seconds.take(page.find(Quantity::QueueSeconds));
        let requests = self.requests.take(page.find(Quantity::QueueRequests));
        State {
            running: page.level(Quantity::Running),
            waiting: page.level(Quantity::Waiting),
            kv_usage: page.level(Quantity::KvUsage),
            cache_queries: queries.total(),
            cache_hits: hits.total(),
            cache_ratio: ratio(&hits, &queries, page.level(Quantity::CacheRatio)),
            preemptions: preemptions.total(),
            drafted: drafted.total(),
            accepted: accepted.total(),
            acceptance_ratio: ratio(&accepted, &drafted, page.level(Quantity::AcceptanceRatio)),
            queue_seconds: seconds.total(),
            queue_requests: requests.total(),
            queue_mean: quotient(&seconds, &requests),
        }
    }
}

/// A count that is told, and what it has gained since the page before.
#[derive(Clone, Copy, Debug)]
struct Counted {
    engine: &'static str,
    total: f64,
    /// `None` on the first page.
    gained: Option<f64>,
}

trait Told {
    fn total(&self) -> Option<f64>;
}

impl Told for Option<Counted> {
    fn total(&self) -> Option<f64> {
        self.map(|counted| counted.total)
    }
}

/// What one gained by what the other gained; `None` where the other gained nothing, or they are of two engines.
fn quotient(part: &Option<Counted>, whole: &Option<Counted>) -> Option<f64> {
    let (part, whole) = (*part).zip(*whole).filter(|(part, whole)| part.engine == whole.engine)?;
    let whole = whole.gained.filter(|gained| *gained > 0.0)?;
    Some(part.gained? / whole)
}

/// Of the engine's counts where it has them, else its own.
fn ratio(part: &Option<Counted>, whole: &Option<Counted>, own: Option<f64>) -> Option<Ratio> {
    if part.is_some() && whole.is_some() {
        // The two are not counted at one moment: a part may be told before its whole.
        let value = quotient(part, whole).filter(|value| *value <= 1.0)?;
        return Some(Ratio { value, source: RatioSource::CounterDeltas });
    }
    own.map(|value| Ratio { value, source: RatioSource::EngineGauge })
}

/// One count over all its series.
#[derive(Debug, Default)]
struct Count {
    /// Where it stood on the last page that had it.
    source: Option<usize>,
    last: Series,
    total: f64,
}

impl Count {
    fn take(&mut self, found: Option<Found>) -> Option<Counted> {
        let found = found?;
        let engine = found.engine();
        // The first page tells where to begin; so does one that tells the count under another name.
        let known = self.source == Some(found.source);
        let gained = known.then(|| found.series.iter().map(|series| self.gain(series)).sum::<f64>());
        self.total += gained.unwrap_or(0.0);
        self.source = Some(found.source);
        if !known {
            self.last.clear();
        }
        self.remember(found.series);
        Some(Counted { engine, total: self.total, gained })
    }

    /// Keeps those that this page does not have as well, as far as there is room: they may come back.
    fn remember(&mut self, series: Series) {
        let before = std::mem::replace(&mut self.last, series);
        let gone = before.into_iter().filter(|(identity, _)| !self.last.iter().any(|(own, _)| own == identity));
        let gone: Series = gone.take(MOST_GONE).collect();
        self.last.extend(gone);
    }

    /// What one series has gained. One that was not there before began at nothing, and so did one that is lower than
    /// before: the engine was started anew.
    fn gain(&self, (identity, value): &(u64, f64)) -> f64 {
        let before = self.last.iter().find(|(own, _)| own == identity).map_or(0.0, |(_, before)| *before);
        if *value >= before { value - before } else { *value }
    }
}
