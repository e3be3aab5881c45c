//! The series of one label set, looked up once and cached.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::export::attributes::Attributes;
use crate::export::attributes::Value;
use crate::export::classes::Admitted;
use crate::export::distribution::Exemplar;
use crate::export::labels::Label;
use crate::export::labels::millis;
use crate::export::live::LiveCounts;
use crate::export::live::LiveSeries;
use crate::export::series::Counter;
use crate::export::series::Families;
use crate::export::series::Histogram;
use crate::export::series::Series;
use crate::export::table::Id;
use crate::export::table::Key;
use crate::export::table::TABLE;

/// At most three attributes in addition to those of the label set.
pub(crate) type Extra = [Option<(Key, Value)>; 3];

/// No further attributes.
pub(crate) const NONE: Extra = [None, None, None];

/// One further attribute.
pub(crate) fn one(key: Key, value: Value) -> Extra {
    [Some((key, value)), None, None]
}

/// The series of one metric in a label set by their further attributes, as an append-only list. There are only a few,
/// so comparing them is cheaper than hashing one, and no lock is needed.
#[derive(Debug, Default)]
struct Chain(OnceLock<Box<Link>>);

#[derive(Debug)]
struct Link {
    extra: Extra,
    /// `None` when this generation has no such metric.
    series: Option<Series>,
    next: Chain,
}

/// The series of one label set.
#[derive(Debug)]
pub(crate) struct Handles {
    families: Arc<Families>,
    known: Vec<(Key, Value)>,
    /// In the order of the metric table.
    found: Vec<Chain>,
    live: OnceLock<LiveSeries>,
    /// Live counts that are in no series yet.
    counts: Arc<LiveCounts>,
    admitted: Admitted,
    /// The places of its model names, which are marked as used together with it.
    names: [Option<Arc<Label>>; 2],
    /// Time of the last use, in milliseconds as in [`Label`].
    used: AtomicU64,
}

impl Handles {
    pub(crate) fn new(
        families: Arc<Families>,
        known: Vec<(Key, Value)>,
        counts: Arc<LiveCounts>,
        names: [Option<Arc<Label>>; 2],
    ) -> Handles {
        let found = TABLE.iter().map(|_| Chain::default()).collect();
        let (live, admitted, used) = (OnceLock::new(), Admitted::default(), AtomicU64::new(0));
        Handles { families, known, found, live, counts, admitted, names, used }
    }

    /// Marks the label set and its names as used now.
    pub(crate) fn touch(&self, now: Duration) {
        self.used.fetch_max(millis(now), Ordering::Relaxed);
        self.names.iter().flatten().for_each(|name| name.touch(now));
    }

    /// Time of the last use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// True when one of its model names is `name`.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.names.iter().flatten().any(|label| *label.text == *name)
    }

    /// Live counts of its streams, written by the data path.
    pub(crate) fn counts(&self) -> &Arc<LiveCounts> {
        &self.counts
    }

    fn series(&self, id: Id, extra: &Extra) -> Option<&Series> {
        let mut chain = self.found.get(id as usize)?;
        loop {
            let link = chain.0.get_or_init(|| Box::new(self.link(id, extra)));
            if link.extra == *extra {
                return link.series.as_ref();
            }
            chain = &link.next;
        }
    }

    fn link(&self, id: Id, extra: &Extra) -> Link {
        let further: Vec<(Key, Value)> = extra.iter().flatten().cloned().collect();
        let series = self.families.get(id, |metric| Attributes::of(metric, &self.known, &further));
        Link { extra: extra.clone(), series, next: Chain::default() }
    }

    /// The series of a counter; `None` when this generation has no such metric.
    pub(crate) fn counter(&self, id: Id, extra: Extra) -> Option<Arc<Counter>> {
        match self.series(id, &extra) {
            Some(Series::Counter(counter)) => Some(Arc::clone(counter)),
            _ => None,
        }
    }

    /// The series of a histogram; `None` when this generation has no such metric.
    pub(crate) fn histogram(&self, id: Id, extra: Extra) -> Option<Arc<Histogram>> {
        match self.series(id, &extra) {
            Some(Series::Histogram(histogram)) => Some(Arc::clone(histogram)),
            _ => None,
        }
    }

    pub(crate) fn add(&self, id: Id, extra: Extra, n: u64) {
        if let Some(Series::Counter(counter)) = self.series(id, &extra) {
            counter.add(n);
        }
    }

    pub(crate) fn observe(&self, id: Id, extra: Extra, value: f64, exemplar: Option<Exemplar>) {
        if let Some(Series::Histogram(histogram)) = self.series(id, &extra) {
            histogram.observe(value, exemplar);
        }
    }

    /// The prompt classes that have a place in this label set.
    pub(crate) fn admitted(&self) -> &Admitted {
        &self.admitted
    }

    /// Attaches an exemplar for the longest gap of a request.
    pub(crate) fn longest_gap(&self, gap: Duration, tokens: Option<u32>, exemplar: Exemplar) {
        if let Some(live) = self.live.get() {
            live.longest(gap, tokens, exemplar);
        }
    }

    /// The series of its live counts.
    pub(crate) fn live(&self) -> &LiveSeries {
        self.live.get_or_init(|| LiveSeries::new(self))
    }
}
