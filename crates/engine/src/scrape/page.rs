//! One page: the series of the names that are known, and the figures that they make.

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

/// Most series of one name. Ranks and models are some; with more a name is left out rather than told in part.
const MOST_SERIES: usize = 256;

/// Labels that tell copies of one figure apart: every process of a tensor- or pipeline-parallel engine tells what is true
/// of them all (SGLang with `--enable-metrics-for-all-schedulers`; `pid` stands in pages of several processes).
const COPIES: [&[u8]; 5] = [b"tp_rank", b"pp_rank", b"moe_ep_rank", b"attn_tp_rank", b"pid"];

/// SGLang's figures by priority stand beside those of all, which have it empty.
const PART: &[u8] = b"priority";

/// Values of one name by a hash of the labels that tell them apart.
pub(crate) type Series = Vec<(u64, f64)>;

/// What is kept of a page while it is read: fixed memory, whatever its size.
#[derive(Debug, Default)]
pub struct Page {
    kept: Vec<(Place, Kept)>,
    name: Vec<u8>,
}

#[derive(Debug, Default)]
struct Kept {
    series: Series,
    /// There were more than [`MOST_SERIES`], or a value that cannot be.
    spoilt: bool,
}

/// A figure of a page and where it stood.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// Index in [`SOURCES`].
    pub(crate) source: usize,
    /// Scaled.
    pub(crate) series: Series,
}

impl Found {
    pub(crate) fn engine(&self) -> &'static str {
        SOURCES.get(self.source).map_or("", |source| source.engine)
    }
}

impl Page {
    /// Takes one sample of the page.
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
            // A copy may be a little behind another.
            Some((_, own)) => *own = own.max(value),
            None if full => kept.spoilt = true,
            None => kept.series.push((identity, value)),
        }
        // No figure of the table is negative, infinite or no number; vLLM V0 tells a ratio of -1 for "none".
        kept.spoilt |= !(value.is_finite() && value >= 0.0);
    }

    /// True when no name of the page is known.
    pub fn is_strange(&self) -> bool {
        self.kept.is_empty()
    }

    /// A figure of the first source of the table of which the page has all.
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
            // Series of different names are different ones, whatever their labels.
            let own = |(identity, value): &(u64, f64)| (identity.wrapping_add(which as u64), value * term.scale);
            all.extend(kept.series.iter().map(own));
        }
        let fits = match source.quantity.kind() {
            Kind::Highest | Kind::Single => all.iter().all(|(_, value)| *value <= 1.0),
            Kind::Level | Kind::Count => true,
        };
        fits.then_some(Found { source: number, series: all })
    }

    /// A figure of this moment; `None` for counts.
    pub(crate) fn level(&self, quantity: Quantity) -> Option<f64> {
        let values = self.find(quantity)?.series.into_iter().map(|(_, value)| value);
        match quantity.kind() {
            // What is left when parts of two moments are taken from each other may fall below nothing.
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

/// The same for the same labels in whatever order, and for copies of one figure.
fn identity(labels: Labels<'_>) -> u64 {
    let own = labels.filter(|(name, _)| !COPIES.contains(name));
    own.fold(0, |sum, label| {
        let mut hasher = DefaultHasher::new();
        label.hash(&mut hasher);
        sum.wrapping_add(hasher.finish())
    })
}
