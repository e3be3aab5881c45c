//! The state of an engine, updated from page to page.

use crate::scrape::families::Quantity;
use crate::scrape::page::Found;
use crate::scrape::page::Page;
use crate::scrape::page::Series;

/// Maximum number of series remembered after they disappeared from the page.
const MOST_GONE: usize = 256;

/// The source of a ratio. Different sources are never mixed in one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RatioSource {
    /// Computed from the increases of the engine's counts between two pages.
    CounterDeltas,
    /// The engine's own ratio, over a period that the engine defines.
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
    /// Its source.
    pub source: RatioSource,
}

/// The state of an engine from one page; `None` for values that the page does not have. Counts are increases since the
/// page was first read, across restarts of the engine. Ranks and models on one page are summed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Requests being processed.
    pub running: Option<f64>,
    /// Requests waiting in the queue.
    pub waiting: Option<f64>,
    /// Share of the key-value cache in use, 0 to 1; with several ranks the maximum.
    pub kv_usage: Option<f64>,
    /// Lookups in the prefix cache, in the engine's own unit (tokens or blocks).
    pub cache_queries: Option<f64>,
    /// Lookups that were hits in the prefix cache.
    pub cache_hits: Option<f64>,
    /// Hit ratio.
    pub cache_ratio: Option<Ratio>,
    /// Requests that were preempted by others and restarted.
    pub preemptions: Option<f64>,
    /// Tokens proposed by a draft.
    pub drafted: Option<f64>,
    /// Proposed tokens accepted by the model.
    pub accepted: Option<f64>,
    /// Acceptance ratio.
    pub acceptance_ratio: Option<Ratio>,
    /// Total seconds that requests waited in the engine's queue.
    pub queue_seconds: Option<f64>,
    /// Requests included in these waits.
    pub queue_requests: Option<f64>,
    /// Mean wait in seconds of the requests added to `queue_requests` since the previous page: an estimate of the
    /// current wait. `None` where there were none.
    pub queue_mean: Option<f64>,
}

/// Sums the increases of an engine's counts, page by page.
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
    /// The state from this page.
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

/// A count with its increase since the previous page.
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

/// The increase of `part` divided by that of `whole`; `None` where `whole` did not increase, or they come from two
/// engines.
fn quotient(part: &Option<Counted>, whole: &Option<Counted>) -> Option<f64> {
    let (part, whole) = (*part).zip(*whole).filter(|(part, whole)| part.engine == whole.engine)?;
    let whole = whole.gained.filter(|gained| *gained > 0.0)?;
    Some(part.gained? / whole)
}

/// The ratio of the engine's counts where it has them, else its own ratio.
fn ratio(part: &Option<Counted>, whole: &Option<Counted>, own: Option<f64>) -> Option<Ratio> {
    if part.is_some() && whole.is_some() {
        // The two are not read atomically: a part may be counted before its whole.
        let value = quotient(part, whole).filter(|value| *value <= 1.0)?;
        return Some(Ratio { value, source: RatioSource::CounterDeltas });
    }
    own.map(|value| Ratio { value, source: RatioSource::EngineGauge })
}

/// One count over all its series.
#[derive(Debug, Default)]
struct Count {
    /// Its source on the last page that had it.
    source: Option<usize>,
    last: Series,
    total: f64,
}

impl Count {
    fn take(&mut self, found: Option<Found>) -> Option<Counted> {
        let found = found?;
        let engine = found.engine();
        // The first page sets the starting point; so does a page that has the count under another name.
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

    /// Also keeps series that this page lacks, up to the maximum: they may reappear.
    fn remember(&mut self, series: Series) {
        let before = std::mem::replace(&mut self.last, series);
        let gone = before.into_iter().filter(|(identity, _)| !self.last.iter().any(|(own, _)| own == identity));
        let gone: Series = gone.take(MOST_GONE).collect();
        self.last.extend(gone);
    }

    /// The increase of one series. A new series started at zero, and so did one with a lower value than before: the
    /// engine was restarted.
    fn gain(&self, (identity, value): &(u64, f64)) -> f64 {
        let before = self.last.iter().find(|(own, _)| own == identity).map_or(0.0, |(_, before)| *before);
        if *value >= before { value - before } else { *value }
    }
}
