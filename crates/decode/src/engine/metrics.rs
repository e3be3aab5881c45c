//! The quantities on an engine's metrics page, and the names under which engines report them.

tokometer_metrics::closed_enum! {
    /// A quantity of an engine's state, named like its OpenTelemetry metric for all engines.
    pub enum Quantity {
        /// Requests being processed.
        Running = "tokometer.engine.requests.running",
        /// Requests waiting in the queue.
        Waiting = "tokometer.engine.requests.waiting",
        /// Share of the KV cache in use, 0 to 1.
        KvUsage = "tokometer.engine.kv_cache.usage",
        /// Lookups in the prefix cache, in the engine's own unit (tokens or blocks).
        CacheQueries = "tokometer.engine.prefix_cache.queries",
        /// Lookups that were hits in the prefix cache.
        CacheHits = "tokometer.engine.prefix_cache.hits",
        /// The engine's own hit ratio, 0 to 1, if it reports no counts.
        CacheRatio = "tokometer.engine.prefix_cache.hit_ratio",
        /// Requests preempted by other requests and restarted.
        Preemptions = "tokometer.engine.preemptions",
        /// Draft tokens proposed.
        Drafted = "tokometer.engine.speculative.drafted",
        /// Proposed tokens accepted by the model.
        Accepted = "tokometer.engine.speculative.accepted",
        /// The engine's own acceptance ratio, 0 to 1, if it reports no counts.
        AcceptanceRatio = "tokometer.engine.speculative.acceptance_ratio",
        /// Iterations with output. Listed only for engines whose count rises during a request: a constant count then
        /// shows that the engine is not working.
        Iterations = "tokometer.engine.iterations",
        /// Output tokens generated. Listed only if the count includes requests whose clients disconnected.
        Generated = "tokometer.engine.tokens.generated",
        /// Total seconds that requests waited in the engine's queue.
        QueueSeconds = "tokometer.engine.queue.time",
        /// Requests included in `QueueSeconds`.
        QueueRequests = "tokometer.engine.queue.requests",
        /// Total seconds spent on KV cache transfers from another engine (disaggregated prefill).
        KvTransferSeconds = "tokometer.engine.kv_transfer.time",
        /// Number of these transfers.
        KvTransfers = "tokometer.engine.kv_transfers",
    }
}

/// How all series of one metric name are combined into one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// A current value, summed over ranks and models.
    Level,
    /// A separate ratio per rank. The maximum is used, because the rank with the highest usage runs out first.
    Highest,
    /// A ratio that cannot be combined; used only if there is a single series.
    Single,
    /// A count since the engine's start: the increases of all series are summed.
    Count,
}

impl Quantity {
    /// How the series of this quantity are combined.
    pub fn combine(self) -> Combine {
        match self {
            Quantity::Running | Quantity::Waiting => Combine::Level,
            Quantity::KvUsage => Combine::Highest,
            Quantity::CacheRatio | Quantity::AcceptanceRatio => Combine::Single,
            _ => Combine::Count,
        }
    }
}

/// One metric name on a page, as part of a quantity.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// The name on the page.
    pub name: &'static str,
    /// Only series with this label are used, as (name, value).
    pub label: Option<(&'static str, &'static str)>,
    /// Factor for the value.
    pub scale: f64,
}

/// Where an engine reports a quantity: the sum of its terms. Used only if the page has all terms.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The quantity.
    pub quantity: Quantity,
    /// The names on the page.
    pub terms: &'static [Term],
    /// Used only if each name has one series; otherwise it is unknown which series belong together.
    pub alone: bool,
    /// A note for the documentation: versions and meaning.
    pub note: &'static str,
}

pub(super) const fn term(name: &'static str) -> Term {
    Term { name, label: None, scale: 1.0 }
}

pub(super) const fn labelled(name: &'static str, label: &'static str, value: &'static str) -> Term {
    Term { name, label: Some((label, value)), scale: 1.0 }
}

pub(super) const fn scaled(name: &'static str, scale: f64) -> Term {
    Term { name, label: None, scale }
}

pub(super) const fn source(quantity: Quantity, terms: &'static [Term], note: &'static str) -> Source {
    Source { quantity, terms, alone: false, note }
}

pub(super) const fn alone(quantity: Quantity, terms: &'static [Term], note: &'static str) -> Source {
    Source { quantity, terms, alone: true, note }
}
