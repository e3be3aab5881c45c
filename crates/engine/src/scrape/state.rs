//! The series with known names on one page, and the state of an engine, updated with each page.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tokometer_decode::Engine;
use tokometer_decode::engine::{Combine, Quantity, Term};
use tokometer_metrics::closed_enum;

use crate::scrape::exposition::{Labels, Sample};
use crate::scrape::families::{Place, SOURCES, places};

/// Maximum number of series per name. Ranks and models are few; a name with more series is ignored instead of being
/// reported in part.
const MAX_SERIES: usize = 256;

/// Maximum number of series remembered after they disappeared from the page.
const MAX_GONE: usize = 256;

/// Labels that are ignored, because they only distinguish copies of one value. Every process of a tensor- or
/// pipeline-parallel engine may report a value of all processes (SGLang with `--enable-metrics-for-all-schedulers`;
/// `pid` is on pages of several processes).
const COPIES: [&[u8]; 5] = [b"tp_rank", b"pp_rank", b"moe_ep_rank", b"attn_tp_rank", b"pid"];

/// Label of SGLang's values by priority. Only the total, for which this label is empty, is used.
const PART: &[u8] = b"priority";

/// Labels with the data-parallel rank of a value: vLLM and LMDeploy number their engines, SGLang its ranks.
const RANKS: [&[u8]; 2] = [b"engine", b"dp_rank"];

/// Maximum number of ranks with separate states. If a page has more ranks, only their combined values are used.
const MAX_RANKS: usize = 64;

/// One series of a name.
#[derive(Clone, Copy, Debug, PartialEq)]
struct One {
    /// A hash of the labels, without those in [`COPIES`].
    identity: u64,
    /// The data-parallel rank, if the labels contain one.
    rank: Option<u16>,
    value: f64,
}

/// The series of one name.
type Series = Vec<One>;

/// The scope of a value: one data-parallel rank, or all series (`None`).
type Part = Option<u16>;

/// Data collected from a page while it is parsed, in fixed memory regardless of the page's size.
#[derive(Debug, Default)]
pub struct Page {
    kept: Vec<(Place, Kept)>,
    name: Vec<u8>,
}

#[derive(Debug, Default)]
struct Kept {
    series: Series,
    /// Set if there were more than [`MAX_SERIES`] series or an invalid value.
    spoilt: bool,
}

/// A quantity found on a page, with its source.
#[derive(Clone, Debug, PartialEq)]
struct FoundQuantity {
    /// Index in [`SOURCES`].
    source: usize,
    /// Scaled values.
    series: Series,
}

impl FoundQuantity {
    fn engine(&self) -> &'static str {
        SOURCES.get(self.source).map_or("", |(engine, _)| engine.as_str())
    }
}

impl Page {
    /// Adds one sample of the page.
    pub fn take(&mut self, sample: &Sample<'_>) {
        for place in places(sample.name, &mut self.name) {
            let Some(term) = term(*place) else { continue };
            let labelled = term.label.is_none_or(|(name, value)| {
                sample.labels.get(name.as_bytes()).is_some_and(|own| own == value.as_bytes())
            });
            if labelled && sample.labels.get(PART).is_none_or(<[u8]>::is_empty) {
                let (identity, rank) = (identity(sample.labels), rank(sample.labels));
                self.keep(*place, One { identity, rank, value: sample.value });
            }
        }
    }

    fn keep(&mut self, place: Place, one: One) {
        let index = self.kept.iter().position(|(own, _)| *own == place).unwrap_or(self.kept.len());
        if index == self.kept.len() {
            self.kept.push((place, Kept::default()));
        }
        let Some((_, kept)) = self.kept.get_mut(index) else { return };
        let full = kept.series.len() == MAX_SERIES;
        match kept.series.iter_mut().find(|own| own.identity == one.identity) {
            // Of several copies, the highest is used, because a copy may lag behind.
            Some(own) => own.value = own.value.max(one.value),
            None if full => kept.spoilt = true,
            None => kept.series.push(one),
        }
        // Valid values are finite and not negative. vLLM V0 reports a ratio of -1 for "none".
        kept.spoilt |= !(one.value.is_finite() && one.value >= 0.0);
    }

    /// True when the page has no known name.
    pub fn has_no_known_names(&self) -> bool {
        self.kept.is_empty()
    }

    /// The engine whose metric names are on the page. If there are several engines, the first in the table.
    pub(crate) fn engine(&self) -> Option<Engine> {
        let first = self.kept.iter().map(|((source, _), _)| *source).min()?;
        SOURCES.get(first).map(|(engine, _)| *engine)
    }

    /// The data-parallel ranks on the page; none if there are more than [`MAX_RANKS`].
    fn ranks(&self) -> BTreeSet<u16> {
        let ranks: BTreeSet<u16> =
            self.kept.iter().flat_map(|(_, kept)| &kept.series).filter_map(|one| one.rank).collect();
        if ranks.len() > MAX_RANKS { BTreeSet::new() } else { ranks }
    }

    /// If the page lacks this quantity for this part, returns the engine that wrote the page (the first in the table
    /// with a name on the page). `None` if the page has the quantity, but its value is unusable.
    fn lacks(&self, quantity: Quantity, part: Part) -> Option<&'static str> {
        let sources = || self.kept.iter().filter_map(|((source, _), kept)| Some((SOURCES.get(*source)?, kept)));
        if sources().any(|((_, source), kept)| source.quantity == quantity && kept.of(part).next().is_some()) {
            return None;
        }
        sources().map(|((engine, _), _)| *engine).min().map(tokometer_decode::Engine::as_str)
    }

    /// The quantity from the first source in the table whose terms are all on the page.
    fn find(&self, quantity: Quantity, part: Part) -> Option<FoundQuantity> {
        let sources = SOURCES.iter().enumerate().filter(|(_, (_, source))| source.quantity == quantity);
        sources.filter_map(|(number, _)| self.source(number, part)).next()
    }

    fn source(&self, number: usize, part: Part) -> Option<FoundQuantity> {
        let (_, source) = SOURCES.get(number)?;
        let mut all = Series::new();
        for (which, term) in source.terms.iter().enumerate() {
            let (_, kept) = self.kept.iter().find(|(place, _)| *place == (number, which))?;
            let before = all.len();
            // Series of different names are distinct, regardless of their labels.
            all.extend(kept.of(part).map(|one| One {
                identity: one.identity.wrapping_add(which as u64),
                value: one.value * term.scale,
                ..*one
            }));
            let own = all.len() - before;
            if kept.spoilt || own == 0 || (source.alone && own > 1) {
                return None;
            }
        }
        let fits = match source.quantity.combine() {
            Combine::Highest | Combine::Single => all.iter().all(|one| one.value <= 1.0),
            Combine::Level | Combine::Count => true,
        };
        fits.then_some(FoundQuantity { source: number, series: all })
    }

    /// A current value; `None` for counts.
    fn level(&self, quantity: Quantity, part: Part) -> Option<f64> {
        let values = self.find(quantity, part)?.series.into_iter().map(|one| one.value);
        match quantity.combine() {
            // With a negative scale (Dynamo), the sum is a difference. It may be below 0, because its values are from
            // different moments.
            Combine::Level => Some(values.sum::<f64>().max(0.0)),
            Combine::Highest => values.reduce(f64::max),
            Combine::Single => {
                let values: Vec<f64> = values.collect();
                if let [only] = values.as_slice() { Some(*only) } else { None }
            }
            Combine::Count => None,
        }
    }
}

impl Kept {
    /// The series of this part.
    fn of(&self, part: Part) -> impl Iterator<Item = &One> {
        self.series.iter().filter(move |one| part.is_none() || one.rank == part)
    }
}

fn term((source, which): Place) -> Option<&'static Term> {
    SOURCES.get(source)?.1.terms.get(which)
}

/// A hash that is equal for the same labels in any order, and for copies of one value.
fn identity(labels: Labels<'_>) -> u64 {
    let own = labels.filter(|(name, _)| !COPIES.contains(name));
    own.fold(0, |sum, label| {
        let mut hasher = DefaultHasher::new();
        label.hash(&mut hasher);
        sum.wrapping_add(hasher.finish())
    })
}

/// The data-parallel rank in these labels.
fn rank(labels: Labels<'_>) -> Option<u16> {
    let value = RANKS.iter().find_map(|name| labels.get(name))?;
    std::str::from_utf8(value).ok()?.parse().ok().filter(|_| value.iter().all(u8::is_ascii_digit))
}

closed_enum! {
    /// The source of a ratio. Different sources are never mixed in one series.
    pub enum RatioSource {
        /// Computed from the increases of the engine's counts between two pages.
        CounterDeltas = "counter_deltas",
        /// The engine's own ratio, over a period that the engine defines.
        EngineGauge = "engine_gauge",
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

/// The state of an engine, or of one of its data-parallel ranks, from one page; `None` for values that the page lacks.
/// Counts are increases since the first page was read, across engine restarts. Several ranks and models are combined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Requests being processed.
    pub running: Option<f64>,
    /// Requests waiting in the queue.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use, 0 to 1; with several ranks the maximum.
    pub kv_usage: Option<f64>,
    /// Lookups in the prefix cache, in the engine's own unit (tokens or blocks).
    pub cache_queries: Option<f64>,
    /// Lookups that were hits in the prefix cache.
    pub cache_hits: Option<f64>,
    /// Hit ratio.
    pub cache_ratio: Option<Ratio>,
    /// Requests that were preempted by others and restarted.
    pub preemptions: Option<f64>,
    /// Draft tokens proposed.
    pub drafted: Option<f64>,
    /// Proposed tokens accepted by the model.
    pub accepted: Option<f64>,
    /// Acceptance ratio.
    pub acceptance_ratio: Option<Ratio>,
    /// Engine iterations that produced output.
    pub iterations: Option<f64>,
    /// Seconds without an increase of `iterations` while requests were reported as running, measured between pages; set
    /// by [`Watch`](crate::scrape::Watch).
    pub stopped: Option<f64>,
    /// Generated output tokens, including tokens for clients that have disconnected.
    pub generated: Option<f64>,
    /// Total seconds that requests waited in the engine's queue.
    pub queue_seconds: Option<f64>,
    /// Number of requests included in `queue_seconds`.
    pub queue_requests: Option<f64>,
    /// Mean wait in seconds of the requests added to `queue_requests` since the previous page: an estimate of the
    /// current wait. `None` if none were added.
    pub queue_mean: Option<f64>,
    /// Total seconds of KV cache transfers from other engines.
    pub kv_transfer_seconds: Option<f64>,
    /// Number of these transfers.
    pub kv_transfers: Option<f64>,
}

/// Sums the increases of an engine's counts, page by page.
#[derive(Debug, Default)]
pub struct Tracker {
    whole: Counts,
    /// Counts of the ranks on the last page.
    ranks: BTreeMap<u16, Counts>,
}

impl Tracker {
    /// The engine's state from this page, with all ranks combined.
    pub fn take(&mut self, page: &Page) -> State {
        self.whole.take(page, None)
    }

    /// The state of each data-parallel rank from this page; empty if the page has no ranks, or too many.
    pub fn take_ranks(&mut self, page: &Page) -> Vec<(u16, State)> {
        let ranks = page.ranks();
        self.ranks.retain(|rank, _| ranks.contains(rank));
        let of = |rank| (rank, self.ranks.entry(rank).or_default().take(page, Some(rank)));
        ranks.into_iter().map(of).collect()
    }
}

/// The counts of one part of an engine, by [`Quantity`]. Entries of quantities that are not counts stay empty.
#[derive(Debug, Default)]
struct Counts([Count; Quantity::ALL.len()]);

impl Counts {
    fn take(&mut self, page: &Page, part: Part) -> State {
        let level = |quantity| page.level(quantity, part);
        let mut count = |quantity| {
            let found = page.find(quantity, part).ok_or_else(|| page.lacks(quantity, part));
            self.0[quantity as usize].take(found)
        };
        let (queries, hits) = (count(Quantity::CacheQueries), count(Quantity::CacheHits));
        let (drafted, accepted) = (count(Quantity::Drafted), count(Quantity::Accepted));
        let (seconds, requests) = (count(Quantity::QueueSeconds), count(Quantity::QueueRequests));
        let total = |count: Option<Increase>| count.map(|count| count.total);
        State {
            running: level(Quantity::Running),
            waiting: level(Quantity::Waiting),
            kv_usage: level(Quantity::KvUsage),
            cache_queries: total(queries),
            cache_hits: total(hits),
            cache_ratio: ratio(hits, queries, level(Quantity::CacheRatio)),
            preemptions: total(count(Quantity::Preemptions)),
            iterations: total(count(Quantity::Iterations)),
            stopped: None,
            generated: total(count(Quantity::Generated)),
            drafted: total(drafted),
            accepted: total(accepted),
            acceptance_ratio: ratio(accepted, drafted, level(Quantity::AcceptanceRatio)),
            queue_seconds: total(seconds),
            queue_requests: total(requests),
            queue_mean: quotient(seconds, requests),
            kv_transfer_seconds: total(count(Quantity::KvTransferSeconds)),
            kv_transfers: total(count(Quantity::KvTransfers)),
        }
    }
}

/// A count with its increase since the previous page.
#[derive(Clone, Copy, Debug)]
struct Increase {
    engine: &'static str,
    total: f64,
    /// `None` on the first page.
    gained: Option<f64>,
}

/// The increase of `part` divided by the increase of `whole`; `None` if `whole` did not increase, or if the counts come
/// from different engines.
fn quotient(part: Option<Increase>, whole: Option<Increase>) -> Option<f64> {
    let (part, whole) = part.zip(whole).filter(|(part, whole)| part.engine == whole.engine)?;
    let whole = whole.gained.filter(|gained| *gained > 0.0)?;
    Some(part.gained? / whole)
}

/// The ratio of the engine's counts if it reports them, otherwise the engine's own ratio.
fn ratio(part: Option<Increase>, whole: Option<Increase>, own: Option<f64>) -> Option<Ratio> {
    if part.is_some() && whole.is_some() {
        // The engine does not update both counts atomically, so a part may be counted before its whole.
        let value = quotient(part, whole).filter(|value| *value <= 1.0)?;
        return Some(Ratio { value, source: RatioSource::CounterDeltas });
    }
    own.map(|value| Ratio { value, source: RatioSource::EngineGauge })
}

/// One count over all its series.
#[derive(Debug, Default)]
struct Count {
    /// Index in [`SOURCES`] of the source on the last page with this count.
    source: Option<usize>,
    /// The engine of an earlier page without this count. The count was 0 then, because engines create some counts only
    /// at their first increase.
    lacking: Option<&'static str>,
    last: Series,
    total: f64,
}

impl Count {
    /// Adds the count of a page, and returns the total with the increase. The error in `found` is the result of
    /// [`Page::lacks`].
    fn take(&mut self, found: Result<FoundQuantity, Option<&'static str>>) -> Option<Increase> {
        let found = found.map_err(|engine| self.lacking = engine).ok()?;
        let engine = found.engine();
        // On the first page, and on a page with the count under another name, the increase is unknown.
        let known = match self.source {
            Some(source) => source == found.source,
            None => self.lacking == Some(engine),
        };
        let gained = known.then(|| found.series.iter().map(|series| self.gain(series)).sum::<f64>());
        self.total += gained.unwrap_or(0.0);
        self.source = Some(found.source);
        if !known {
            self.last.clear();
        }
        self.remember(found.series);
        Some(Increase { engine, total: self.total, gained })
    }

    /// Stores the series of this page. Also keeps up to [`MAX_GONE`] earlier series that the page lacks, because they
    /// may reappear.
    fn remember(&mut self, series: Series) {
        let before = std::mem::replace(&mut self.last, series);
        let gone = before.into_iter().filter(|one| !self.last.iter().any(|own| own.identity == one.identity));
        let gone: Series = gone.take(MAX_GONE).collect();
        self.last.extend(gone);
    }

    /// The increase of one series. A new series started at zero. A decreased value means that the engine was restarted,
    /// so the series started at zero again.
    fn gain(&self, one: &One) -> f64 {
        let before = self.last.iter().find(|own| own.identity == one.identity).map_or(0.0, |before| before.value);
        if one.value >= before { one.value - before } else { one.value }
    }
}
