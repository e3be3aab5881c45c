//! One page: the series with known names, and the values computed from them.

use std::hash::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;

use crate::scrape::exposition::Labels;
use crate::scrape::exposition::Sample;
use crate::scrape::families::Kind;
use crate::scrape::families::Place;
use crate::scrape::families::Quantity;
use crate::scrape::families::SOURCES;
use crate::scrape::families::Term;
use crate::scrape::families::places;

/// Maximum number of series per name. Ranks and models are few; a name with more series is ignored rather than reported
/// in part.
const MOST_SERIES: usize = 256;

/// Labels that distinguish copies of one value: every process of a tensor- or pipeline-parallel engine reports a value
/// that applies to all of them (SGLang with `--enable-metrics-for-all-schedulers`; `pid` occurs on pages of several
/// processes).
const COPIES: [&[u8]; 5] = [b"tp_rank", b"pp_rank", b"moe_ep_rank", b"attn_tp_rank", b"pid"];

/// SGLang reports values by priority in addition to the total, for which this label is empty.
const PART: &[u8] = b"priority";

/// Values of one name, by a hash of their distinguishing labels.
pub(crate) type Series = Vec<(u64, f64)>;

/// Data kept of a page while it is parsed: fixed memory regardless of the page's size.
#[derive(Debug, Default)]
pub struct Page {
    kept: Vec<(Place, Kept)>,
    name: Vec<u8>,
}

#[derive(Debug, Default)]
struct Kept {
    series: Series,
    /// Set when there were more than [`MOST_SERIES`], or an invalid value.
    spoilt: bool,
}

/// A quantity found on a page, with its source.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// Index in [`SOURCES`].
    pub(crate) source: usize,
    /// Scaled values.
    pub(crate) series: Series,
}

impl Found {
    pub(crate) fn engine(&self) -> &'static str {
        SOURCES.get(self.source).map_or("", |source| source.engine)
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
                self.keep(*place, identity(sample.labels), sample.value);
            }
        }
    }

    fn keep(&mut self, place: Place, identity: u64, value: f64) {
        let index = self.kept.iter().position(|(own, _)| *own == place).unwrap_or(self.kept.len());
        if index == self.kept.len() {
            self.kept.push((place, Kept::default()));
        }
        let Some((_, kept)) = self.kept.get_mut(index) else { return };
        let full = kept.series.len() == MOST_SERIES;
        match kept.series.iter_mut().find(|(own, _)| *own == identity) {
            // A copy may lag behind another.
            Some((_, own)) => *own = own.max(value),
            None if full => kept.spoilt = true,
            None => kept.series.push((identity, value)),
        }
        // No value in the table is negative, infinite or NaN; vLLM V0 reports a ratio of -1 for "none".
        kept.spoilt |= !(value.is_finite() && value >= 0.0);
    }

    /// True when the page has no known name.
    pub fn is_strange(&self) -> bool {
        self.kept.is_empty()
    }

    /// The quantity from the first source in the table whose terms are all on the page.
    pub(crate) fn find(&self, quantity: Quantity) -> Option<Found> {
        let sources = SOURCES.iter().enumerate().filter(|(_, source)| source.quantity == quantity);
        sources.filter_map(|(number, _)| self.source(number)).next()
    }

    fn source(&self, number: usize) -> Option<Found> {
        let source = SOURCES.get(number)?;
        let mut all = Series::new();
        for (which, term) in source.terms.iter().enumerate() {
            let (_, kept) = self.kept.iter().find(|(place, _)| *place == (number, which))?;
            if kept.spoilt || (source.alone && kept.series.len() > 1) {
                return None;
            }
            // Series of different names are distinct, regardless of their labels.
            let own = |(identity, value): &(u64, f64)| (identity.wrapping_add(which as u64), value * term.scale);
            all.extend(kept.series.iter().map(own));
        }
        let fits = match source.quantity.kind() {
            Kind::Highest | Kind::Single => all.iter().all(|(_, value)| *value <= 1.0),
            Kind::Level | Kind::Count => true,
        };
        fits.then_some(Found { source: number, series: all })
    }

    /// A current value; `None` for counts.
    pub(crate) fn level(&self, quantity: Quantity) -> Option<f64> {
        let values = self.find(quantity)?.series.into_iter().map(|(_, value)| value);
        match quantity.kind() {
            // A difference of values from two moments may be negative.
            Kind::Level => Some(values.sum::<f64>().max(0.0)),
            Kind::Highest => values.reduce(f64::max),
            Kind::Single => {
                let values: Vec<f64> = values.collect();
                if let [only] = values.as_slice() { Some(*only) } else { None }
            }
            Kind::Count => None,
        }
    }
}

fn term((source, which): Place) -> Option<&'static Term> {
    SOURCES.get(source)?.terms.get(which)
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
